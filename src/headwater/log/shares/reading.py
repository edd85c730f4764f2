"""Records of the log for one member: what is available is locked, and the batches that hold it are returned.

Batches are not opened: their headers say which offsets they have, and whether a transaction was aborted.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headwater.errors import RequestError
from headwater.log.storage.partition import Partition
from headwater.queue.acquisition import Acquired, Acquisition, Span, Wish
from headwater.queue.batch_acquisition import acquire_batches, next_offset
from headwater.queue.share_config import EARLIEST, ShareConfig
from headwater.queue.share_partition import SharePartition
from headwater.record import CONTROL, TRANSACTIONAL, BatchHeader, whole_batches

__all__ = ["Delivery", "deliver", "first_offset", "readable_to", "spans"]

READ_BYTES = 1 << 16
"""How much is read at first, if many records are asked for; each further read takes twice as much."""
RECORD_BYTES = 1 << 12
"""How much is read at first for each record that is asked for."""
SEARCH_BYTES_MAX = 1 << 23
"""How much of records that are not for members is passed over in one step of the event loop."""


class Delivery(NamedTuple):
    """Record batches as they are in the log, and which of their records the member has locked."""

    records: bytes
    acquired: list[Acquired]
    is_cut: bool = False
    """Whether nothing was found so far, and there is more to search."""


def readable_to(partition: Partition, config: ShareConfig) -> int:
    """The offset up to which a group's members may read."""
    return partition.last_stable_offset if config.reads_committed else partition.high_watermark


def deliver(
    share: SharePartition,
    partition: Partition,
    wish: Wish,
    config: ShareConfig,
    *,
    bytes_max: int,
    is_first: bool,
    now: float,
) -> Delivery:
    """Locks what a member may have now. The first partition of an answer may exceed ``bytes_max``."""
    partition.check_online()
    share.drop_before(partition.log_start_offset)
    acquisition = Acquisition(wish, config, now)
    batches: list[tuple[BatchHeader, memoryview]] = []
    read_bytes = min(READ_BYTES, wish.records_max * RECORD_BYTES)
    left, searched_bytes, more = bytes_max, 0, True
    while more and (left > 0 or (is_first and not batches)):
        offset = batches[-1][0].last_offset + 1 if batches else next_offset(share, config)
        if offset is None or offset >= readable_to(partition, config):
            break
        if searched_bytes > SEARCH_BYTES_MAX:
            return Delivery(b"", [], is_cut=True)
        try:
            found = _read(partition, offset, min(read_bytes, max(left, 1)), config)
        except RequestError:
            if not acquisition.taken:
                raise
            break  # what is locked already can be delivered
        size_bytes = sum(len(batch) for _, batch in found)
        if (batches and not found) or (size_bytes > left and (batches or not is_first)):
            break
        more = acquire_batches(share, acquisition, offset, spans(partition, offset, found, config))
        read_bytes *= 2
        if acquisition.taken:
            batches += found
            left -= size_bytes
        elif next_offset(share, config) == offset:
            break
        else:
            searched_bytes += size_bytes
    acquired = acquisition.acquired()
    return Delivery(b"".join(_wanted(batches, acquired)), acquired)


def _read(
    partition: Partition, offset: int, bytes_max: int, config: ShareConfig
) -> list[tuple[BatchHeader, memoryview]]:
    data = partition.read(offset, bytes_max, committed=config.reads_committed)
    return [(BatchHeader.read(batch), batch) for batch in whole_batches(data)]


def spans(
    partition: Partition,
    offset: int,
    batches: Sequence[tuple[BatchHeader, memoryview]],
    config: ShareConfig,
) -> list[Span]:
    """What a piece of the log holds from an offset on."""
    if not batches:  # compaction has left nothing up to the end
        return [Span(offset, readable_to(partition, config) - 1, deliver=False)]
    aborted = (
        partition.producers.aborted_between(batches[0][0].base_offset, batches[-1][0].last_offset)
        if config.reads_committed
        else []
    )
    found = []
    for header, _ in batches:
        is_data = not header.attributes & CONTROL and header.record_count > 0
        if is_data and aborted and header.attributes & TRANSACTIONAL:
            is_data = not any(
                a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                for a in aborted
            )
        found.append(Span(header.base_offset, header.last_offset, is_data))
    return found


def _wanted(
    batches: Sequence[tuple[BatchHeader, memoryview]], acquired: Sequence[Acquired]
) -> list[memoryview]:
    """The batches that hold an acquired record; both are in the order of their offsets."""
    wanted, index = [], 0
    for header, batch in batches:
        while index < len(acquired) and acquired[index].last < header.base_offset:
            index += 1
        if index < len(acquired) and acquired[index].first <= header.last_offset:
            wanted.append(batch)
    return wanted


def first_offset(log: Partition, config: ShareConfig, now_ms: int) -> int:
    """Where a group begins that has not used a partition before."""
    if config.auto_offset_reset == EARLIEST:
        return log.log_start_offset
    if config.reset_age_ms is not None:
        record = log.find_time(now_ms - config.reset_age_ms)
        if record is not None:
            return record.offset
    return log.high_watermark
