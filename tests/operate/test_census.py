"""A census counts records, not offsets: markers, aborted transactions and what compaction took are told apart."""

from headwater.operate.log.census import take
from headwater.record import (
    TRANSACTIONAL,
    BatchHeader,
    Record,
    encode_batch,
    encode_marker,
    open_batch,
    reencode_batch,
)


class Written:
    """Batches as a log keeps them, at offsets of their own."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0

    def records(self, count: int, producer: int = -1) -> "Written":
        made = encode_batch(
            [Record(b"k", b"v", (), 1_000)] * count,
            base_offset=self.end,
            producer_id=producer,
            attributes=TRANSACTIONAL if producer >= 0 else 0,
        )
        self.batches.append(made)
        self.end += count
        return self

    def marker(self, producer: int, *, commit: bool) -> "Written":
        made = bytearray(encode_marker(producer, 0, 1_000, commit=commit))
        made[:8] = self.end.to_bytes(8, "big")
        self.batches.append(bytes(made))
        self.end += 1
        return self

    def thin_out(self, number: int, *kept: int) -> "Written":
        """Compaction leaves some records of a batch."""
        header = BatchHeader.read(self.batches[number])
        left = [each for each in open_batch(self.batches[number]) if each.offset in kept]
        self.batches[number] = reencode_batch(header, left)
        return self

    def census(self, start: int = 0):
        return take(map(memoryview, self.batches), start, self.end)


def test_records_are_counted_and_markers_are_not():
    found = Written().records(3).records(2, producer=7).marker(7, commit=True).records(4).census()

    assert (found.count("record"), found.count("marker"), found.end) == (9, 1, 10)
    assert found.count("record", first=2, end=7) == 4
    assert (found.holes(), found.kind(5), found.kind(6), found.kind(10)) == (0, "marker", "record", None)


def test_the_marker_of_each_producer_decides_about_its_own_records():
    both = Written().records(2, producer=1).records(3, producer=2).records(1, producer=1)
    found = both.marker(2, commit=False).marker(1, commit=True).records(5, producer=2).census()

    assert (found.count("record"), found.count("aborted"), found.count("open")) == (3, 3, 5)
    assert found.kind(3) == "aborted"


def test_what_compaction_took_is_a_hole_inside_a_batch_between_batches_and_at_the_end():
    written = Written().records(4).records(3).records(2).records(2)
    written.thin_out(0, 0, 2)
    del written.batches[1]
    del written.batches[-1]
    found = written.census()

    assert found.count("record") == 4
    assert (found.holes(), found.holes(0, 4), found.holes(7, 9), found.holes(9)) == (7, 2, 0, 2)


def test_a_log_may_begin_inside_a_batch():
    found = Written().records(10).census(start=4)

    assert (found.count("record"), found.holes(), found.kind(3), found.kind(4)) == (6, 0, None, "record")


def test_what_was_removed_while_it_was_counted_is_no_hole():
    written = Written().records(4).records(3).records(2)
    del written.batches[0]
    found = written.census()

    assert found.holes() == 4
    assert (found.starting_at(4).holes(), found.starting_at(4).count("record")) == (0, 5)
    assert (found.starting_at(20).count("record"), found.starting_at(20).holes()) == (0, 0)
    assert found.starting_at(0) is found
