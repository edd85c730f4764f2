"""A sink's place in its consumer group: what it counts, and how far it says the store is."""

from headwater.access import access
from headwater.change import Change
from headwater.sink.loop.counters import Counted
from headwater.sink.loop.membership import Membership
from headwater.sink.store import Batch


def changes(first: int, end: int) -> Batch:
    return Batch([Change("k", "{}", 0, offset, 0) for offset in range(first, end)], {0: end})


def member(stored: int) -> Membership:
    """A membership that has claimed a partition from a store with that offset."""
    found = Membership(access("127.0.0.1:1"), "sink", "topic", 6_000, lambda _: None)
    found.offsets, found._counts = {0: stored}, {0: Counted(stored)}
    return found


def test_records_from_before_a_claim_that_still_come_are_neither_counted_nor_gone_back_to():
    mine = member(2_000)

    mine.applied(changes(0, 1_000))
    mine.applied(changes(1_000, 2_000))
    assert mine.offsets == {0: 2_000}
    assert mine._counts == {0: Counted(2_000, 0)}

    mine.applied(changes(1_990, 2_010))
    assert mine.offsets == {0: 2_010}
    assert mine._counts == {0: Counted(2_000, 10)}
