"""Change: one record of a table topic, as readers pass it on."""

import msgspec

__all__ = ["Change"]


class Change(msgspec.Struct, frozen=True, gc=False):
    """The new value of one key, or its deletion, and its place in the log."""

    key: str
    """The key on the wire: the text of one column, or a JSON array of several."""
    value: str | None
    """A JSON object of all columns; None deletes the key."""
    partition: int
    offset: int
    timestamp_ms: int
    version: int | None = None
    """``_version`` of the value, if the view has one: the greater version is newer, whatever the offset.

    Of equal versions the later record counts."""
    odd_key: bytes | msgspec.UnsetType | None = msgspec.UNSET
    """The key on the wire where ``key`` does not say it: bytes that are not text, or None for no key.

    Only records that are rows of their own have such keys."""

    @property
    def wire_key(self) -> bytes | None:
        """The key as bytes."""
        return self.key.encode() if self.odd_key is msgspec.UNSET else self.odd_key
