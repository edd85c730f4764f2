"""Changes of a table's key, after which the rows of the old key would remain in the topic for ever."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["KeyColumn", "key_change", "way_out"]


class KeyColumn(NamedTuple):
    """A column of a key."""

    name: str
    form: object
    """Equal for types whose values are written the same: integers of 4 and 8 bytes."""
    type: str
    """The database's name for the type."""


def key_change(old: Sequence[KeyColumn], new: Sequence[KeyColumn]) -> str | None:
    """The change of a key in words; None if records keep their keys, or there was no key."""
    if not old or [(c.name, c.form) for c in old] == [(c.name, c.form) for c in new]:
        return None
    before = _columns(old)
    if not new:
        return f"its key ({before}) is gone, so its changes belong to no row"
    return f"its key was ({before}) and is ({_columns(new)}), rows would remain under the old one"


def way_out(table: str, *, key: bool = True) -> str:
    """What to do about a stopped table; ``key`` says whether it has one now."""
    snapshot = f"`headwater capture snapshot NAME app.py --table {table}`"
    if key:
        return f"{snapshot} takes a new snapshot of it"
    return f"create a key, then {snapshot}"


def _columns(key: Sequence[KeyColumn]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in key)
