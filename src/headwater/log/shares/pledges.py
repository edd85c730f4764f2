"""Pledges: acknowledgements that take effect with a producer's transaction.

They are records of the transaction in the state of share groups, so its marker there decides about them as it
does about the records that were made of what is acknowledged, also after a crash. Until then the transaction
holds the records, whatever becomes of the member.
"""

from collections.abc import Iterable, Iterator, Mapping

from headwater.log.shares.share_record import ShareKey
from headwater.queue.run import Run

__all__ = ["Pledges", "holder"]

Place = tuple[ShareKey, int]
"""A share partition, and the first offset of a pledge: no other one has it until it ends."""


def holder(producer_id: int) -> str:
    """The name under which a transaction holds records: none that a member may have."""
    return f"\0the open transaction of producer {producer_id}"


class Pledges:
    """What open transactions settle if they commit, by producer. The store of share groups owns it."""

    def __init__(self) -> None:
        self._runs: dict[int, dict[Place, list[Run]]] = {}

    def add(self, producer_id: int, key: ShareKey, runs: list[Run]) -> None:
        self._runs.setdefault(producer_id, {})[key, runs[0].first] = runs

    def end(self, producer_id: int) -> dict[Place, list[Run]]:
        """What a transaction has pledged, which is over."""
        return self._runs.pop(producer_id, {})

    def places(self, keys: Iterable[ShareKey]) -> list[Place]:
        """Where something is pledged of share partitions."""
        wanted = set(keys)
        return [place for pledged in self._runs.values() for place in pledged if place[0] in wanted]

    def drop(self, place: Place) -> None:
        for pledged in self._runs.values():
            pledged.pop(place, None)

    def of(self, key: ShareKey) -> Mapping[str, list[Run]]:
        """By holder, what open transactions settle of a share partition."""
        found: dict[str, list[Run]] = {}
        for producer_id, owner, runs in self._all():
            if owner == key:
                found.setdefault(holder(producer_id), []).extend(runs)
        return found

    def _all(self) -> Iterator[tuple[int, ShareKey, list[Run]]]:
        for producer_id, pledged in self._runs.items():
            for (key, _), runs in pledged.items():
                yield producer_id, key, runs
