"""The producers of a partition: epochs, last batches, open and aborted transactions."""

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from headwater.decoders import from_msgpack
from headwater.errors import ErrorCode
from headwater.record import NO_PRODUCER, TRANSACTIONAL, BatchHeader

__all__ = ["Aborted", "Marker", "Producer", "Producers"]

REMEMBERED_BATCHES = 5
"""A client keeps at most five batches in flight, so a repeated batch is among the last five."""
PRODUCERS_MAX = 10_000
"""If there are more, the ones that were silent for longest and have no open transaction are forgotten."""
SEQUENCE_END = 2**31


class Aborted(msgspec.Struct, frozen=True, array_like=True):
    """A transaction whose records ``read_committed`` readers skip."""

    producer_id: int
    first_offset: int
    last_offset: int


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    first_sequence: int
    last_sequence: int
    base_offset: int


class Producer(msgspec.Struct, array_like=True):
    """The state of one producer in one partition."""

    epoch: int
    batches: list[_Batch]
    last_timestamp: int = -1
    unsure: bool = False
    """A scan has only seen a marker of it, so its next sequence number is unknown."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    by_id: dict[int, Producer]
    open: dict[int, int]
    aborted: list[Aborted]


class Marker(NamedTuple):
    """The end of a transaction, as in its control record."""

    producer_id: int
    epoch: int
    commit: bool


class Producers:
    """Decides whether a batch is new, repeated or out of order, and which transactions are open.

    One partition owns it.
    """

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}
        self.open: dict[int, int] = {}
        """First offset of each open transaction, by producer."""
        self.aborted: list[Aborted] = []

    def check(self, header: BatchHeader) -> ErrorCode | int | None:
        """An error, the base offset of the batch that this one repeats, or None for a new batch."""
        if header.producer_id == NO_PRODUCER:
            return None
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if header.producer_epoch > producer.epoch or not producer.batches:  # a marker has no sequence number
            begins = header.base_sequence == 0 or (
                producer.unsure and header.producer_epoch == producer.epoch
            )
            return None if begins else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        last_sequence = _last_sequence(header)
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last_sequence):
                return batch.base_offset
        expected = (producer.last_sequence + 1) % SEQUENCE_END
        return None if header.base_sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def add(self, header: BatchHeader, base_offset: int) -> None:
        """Remembers an appended batch."""
        if header.producer_id == NO_PRODUCER:
            return
        producer = self._current(header.producer_id, header.producer_epoch)
        if header.base_sequence >= 0:
            producer.batches.append(_Batch(header.base_sequence, _last_sequence(header), base_offset))
        del producer.batches[:-REMEMBERED_BATCHES]
        producer.last_timestamp = header.max_timestamp
        if header.attributes & TRANSACTIONAL and header.record_count:  # compaction leaves empty batches
            self.open.setdefault(header.producer_id, base_offset)

    def end(self, marker: Marker, offset: int, *, scanned: bool = False) -> None:
        """Ends a producer's transaction by its marker."""
        producer = self._current(marker.producer_id, marker.epoch)
        producer.unsure = scanned and not producer.batches
        first_offset = self.open.pop(marker.producer_id, None)
        if first_offset is not None and not marker.commit:
            self.aborted.append(Aborted(marker.producer_id, first_offset, offset))

    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return min(self.open.values()) if self.open else None

    def aborted_between(self, first: int, last: int) -> list[Aborted]:
        """Aborted transactions with records in a range of offsets, in the order of their first offsets."""
        return sorted(
            (a for a in self.aborted if a.first_offset <= last and a.last_offset >= first),
            key=lambda a: a.first_offset,
        )

    def snapshot(self) -> bytes:
        """The whole state, to be stored with the segment at whose end it was taken."""
        return msgspec.msgpack.encode(_Snapshot(self.by_id, self.open, self.aborted))

    def restore(self, snapshot: bytes) -> None:
        state = from_msgpack(snapshot, _Snapshot)
        self.by_id, self.open, self.aborted = state.by_id, state.open, state.aborted

    def forget_before(self, offset: int) -> None:
        """Drops aborted transactions that end before an offset, because the log holds nothing of them."""
        self.aborted = [a for a in self.aborted if a.last_offset >= offset]

    def forget_ends(self, markers: Collection[int]) -> None:
        """Drops aborted transactions whose markers were compacted.

        A reader that gets one in its answer skips the producer's records until the marker; without it, all
        that follow.
        """
        self.aborted = [a for a in self.aborted if a.last_offset not in markers]

    def _current(self, producer_id: int, epoch: int) -> Producer:
        """The producer's entry for an epoch, which becomes the most recently used one."""
        producer = self.by_id.pop(producer_id, None)
        if producer is None or producer.epoch != epoch:
            producer = Producer(epoch, [])
        self.by_id[producer_id] = producer
        if len(self.by_id) > PRODUCERS_MAX:
            oldest = next((key for key in self.by_id if key not in self.open), None)
            if oldest is not None:
                del self.by_id[oldest]
        return producer


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_END
