"""What a partition knows of its idempotent producers: epoch, and the last batches by sequence number."""

from collections import deque

import msgspec

from headwater.errors import ErrorCode
from headwater.record import NO_PRODUCER, BatchHeader

__all__ = ["Producers"]

REMEMBERED_BATCHES = 5
"""A client keeps at most five batches in flight, so a repeated batch is among the last five."""
SEQUENCE_END = 2**31


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    first_sequence: int
    last_sequence: int
    base_offset: int


class _Producer(msgspec.Struct, array_like=True):
    epoch: int
    batches: list[_Batch]


class Producers:
    """Decides whether a batch is new, a repetition, or out of order. One partition owns it."""

    def __init__(self) -> None:
        self._producers: dict[int, tuple[int, deque[_Batch]]] = {}

    def check(self, header: BatchHeader) -> ErrorCode | int | None:
        """An error, the base offset of the batch that this one repeats, or None for a new batch."""
        known = self._producers.get(header.producer_id)
        if header.producer_id == NO_PRODUCER or known is None:
            return None
        epoch, batches = known
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if header.producer_epoch > epoch:
            return None if header.base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        last_sequence = _last_sequence(header)
        for batch in batches:
            if (batch.first_sequence, batch.last_sequence) == (header.base_sequence, last_sequence):
                return batch.base_offset
        expected = (batches[-1].last_sequence + 1) % SEQUENCE_END
        return None if header.base_sequence == expected else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def add(self, header: BatchHeader, base_offset: int) -> None:
        """Remembers an appended batch."""
        if header.producer_id == NO_PRODUCER:
            return
        epoch, batches = self._producers.get(header.producer_id, (-1, deque()))
        if header.producer_epoch != epoch:
            batches = deque(maxlen=REMEMBERED_BATCHES)
            self._producers[header.producer_id] = header.producer_epoch, batches
        batches.append(_Batch(header.base_sequence, _last_sequence(header), base_offset))

    def snapshot(self) -> bytes:
        """Everything known, to be restored beside the segment that it was taken at."""
        state = {pid: _Producer(epoch, list(batches)) for pid, (epoch, batches) in self._producers.items()}
        return msgspec.msgpack.encode(state)

    def restore(self, snapshot: bytes) -> None:
        state = msgspec.msgpack.decode(snapshot, type=dict[int, _Producer])
        self._producers = {pid: (p.epoch, deque(p.batches, REMEMBERED_BATCHES)) for pid, p in state.items()}


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % SEQUENCE_END
