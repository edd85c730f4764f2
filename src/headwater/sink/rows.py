"""What a batch leaves of its changes: those that a store has not seen yet, and of a keyed feed one for each key."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headwater.change import Change
from headwater.sink.store import Batch, Superseded

__all__ = ["NOTHING", "Newest", "beaten", "check_offset", "fresh", "identity", "moved", "newest"]

NOTHING = -1
"""The offset of a partition of which a store has nothing."""


class Newest(msgspec.Struct, frozen=True, gc=False):
    """The change of a key that wins."""

    change: Change
    anew: bool
    """Whether the key was deleted on the way to it: then it takes the row's place whatever version that has."""


def fresh(batch: Batch, offsets: Mapping[int, int]) -> list[Change]:
    """The changes that come behind ``offsets``; those before took effect earlier."""
    return [each for each in batch.changes if each.offset >= offsets.get(each.partition, 0)]


def moved(batch: Batch, offsets: Mapping[int, int]) -> dict[int, int]:
    """The partitions that the batch takes further than ``offsets``, and where to."""
    return {number: upto for number, upto in batch.upto.items() if upto > offsets.get(number, -1)}


def check_offset(sink: str, number: int, stored: int | None, left: int | None) -> None:
    """Superseded when a partition does not stand where we have left it: the store was brought back to an older state, and our claim with it.

    A batch that is applied then would jump over what was lost; after a new claim it is read again.
    """
    there, wanted = (NOTHING if offset is None else offset for offset in (stored, left))
    if there != wanted:
        shown = (str(offset) if offset > NOTHING else "its beginning" for offset in (there, wanted))
        raise Superseded(
            f"sink {sink}: the store does not hold partition {number} as it was left",
            got=f"offset {next(shown)}",
            expected=f"offset {next(shown)}",
        )


def newest(changes: Iterable[Change]) -> dict[str, Newest]:
    """By key: the last change, unless an earlier one has a greater version."""
    found: dict[str, Newest] = {}
    for change in changes:
        held = found.get(change.key)
        if held is None:
            found[change.key] = Newest(change, change.value is None)
        elif _wins(change, held.change):
            del found[change.key]  # the order of the result is that of the log
            found[change.key] = Newest(change, anew=held.anew or change.value is None)
    return found


def identity(change: Change, *, append: bool) -> str:
    """What names the row of a change in a store: its key or, where each record is a row of its own, where it stands."""
    return f"{change.partition}-{change.offset}" if append else change.key


def beaten(rows: Sequence[Newest], stored: Mapping[str, int]) -> set[str]:
    """The keys whose stored row, by the versions in ``stored``, is newer than what came."""
    return {
        row.change.key
        for row in rows
        if not row.anew
        and row.change.version is not None
        and row.change.version < stored.get(row.change.key, -1)
    }


def _wins(change: Change, held: Change) -> bool:
    return held.version is None or change.version is None or change.version >= held.version
