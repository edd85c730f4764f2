"""Change: one record of a table topic, as its readers pass it on."""

import msgspec

__all__ = ["Change"]


class Change(msgspec.Struct, frozen=True, gc=False):
    """The new value of one key, or its deletion, and where in the log it stands."""

    key: str
    """The key as it is on the wire: the text of one column, or a JSON array of several."""
    value: str | None
    """A JSON object of all columns; None deletes the key."""
    partition: int
    offset: int
    timestamp_ms: int
    version: int | None = None
    """``_version`` of the value, where the view carries one: greater is newer, whatever the offset; of equal ones the later record counts."""
    odd_key: bytes | msgspec.UnsetType | None = msgspec.UNSET
    """Where ``key`` does not say what is on the wire: bytes that are no text, None for no key at all. Only records that are rows of their own have such."""

    @property
    def wire_key(self) -> bytes | None:
        """The key byte for byte."""
        return self.key.encode() if self.odd_key is msgspec.UNSET else self.odd_key
