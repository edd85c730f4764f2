"""Whether a table's records go on under the keys that its topic has: those of the old rows would stay for ever otherwise."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["KeyColumn", "key_change", "way_out"]


class KeyColumn(NamedTuple):
    """A column of a key."""

    name: str
    form: object
    """Equal for types whose values are written alike: a number of 4 bytes and one of 8."""
    type: str
    """The database's own word for it."""


def key_change(old: Sequence[KeyColumn], new: Sequence[KeyColumn]) -> str | None:
    """What has become of the key, in words; None if the records stay the same. A table without a key has nothing to lose."""
    if not old or [(c.name, c.form) for c in old] == [(c.name, c.form) for c in new]:
        return None
    was = _shown(old)
    if not new:
        return f"its key ({was}) is gone, changes have no row to go to"
    return f"its key was ({was}) and is ({_shown(new)}), rows would stay under the old one"


def way_out(table: str, *, key: bool = True) -> str:
    """What to do with a table that is stopped, and that has a key or not."""
    anew = f"`headwater capture snapshot NAME app.py --table {table}`"
    return f"{anew} begins it anew" if key else f"give it a key again, then {anew}"


def _shown(key: Sequence[KeyColumn]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in key)
