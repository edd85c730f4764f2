"""Administration of a queue: how many records are in which state, and records that no member is to get."""

from collections.abc import Sequence
from typing import NamedTuple

from headwater.errors import ErrorCode, RequestError
from headwater.log.shares.open_share import OpenShare
from headwater.log.shares.reading import readable_to
from headwater.log.shares.shares import Shares
from headwater.queue.parking import CANCELLED_RANGES_MAX
from headwater.queue.ranges import Ranges
from headwater.queue.settlement import RANGES_AHEAD_MAX, Settlement, settle
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_session import Place

__all__ = ["QueueCounts", "queue_counts", "settle_ranges"]

RANGES_MAX = 10_000
"""Of one request for one partition."""


class QueueCounts(NamedTuple):
    """The records of one share partition, by what becomes of them."""

    lag: int
    """All that are not settled: the next four together."""
    waiting: int
    in_flight: int
    delayed: int
    scheduled: int
    expired: int
    exhausted: int
    duplicate: int
    invalid: int


def queue_counts(share: OpenShare, config: ShareConfig) -> QueueCounts:
    """What members hold or wait for; the lag is that of Kafka."""
    state = share.state
    end = readable_to(share.log, config)
    ahead = sum(last - first + 1 for first, last in state.settled_ahead)
    lag = max(end - state.start - state.settled - ahead + len(state.parking), 0)
    scheduled = state.scheduled
    delayed = state.delayed - (scheduled - state.parking.scheduled)
    waiting = max(lag - state.in_flight - delayed - scheduled, 0)
    return QueueCounts(lag, waiting, state.in_flight, delayed, scheduled, *state.counts)


def settle_ranges(
    shares: Shares, group: str, place: Place, ranges: Sequence[tuple[int, int]], *, held_too: bool
) -> Settlement:
    """Settles ranges of a partition and stores that; the group may have members. Raises RequestError."""
    share = shares.opened(group).get(place)
    if share is None:
        what = f"group {group} has used no such partition"
        raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, what)
    share.log.check_online()
    share.drop_deleted()
    end = share.log.high_watermark
    if len(ranges) > RANGES_MAX:
        what = f"{len(ranges)} ranges, expected at most {RANGES_MAX}: send the rest in another request"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    for first, last in ranges:
        if not 0 <= first <= last < end:
            what = f"offsets {first} to {last} of {share.log.name}, expected 0 to {end - 1} in order"
            raise RequestError(ErrorCode.INVALID_REQUEST, what)
    copy = share.state.copy()
    cancelled = Ranges.of([*share.state.parking.cancelled, *ranges]) if share.state.parking.has_any else ()
    ahead = Ranges.of([*share.state.settled_ahead, *(r for r in ranges if r[1] >= share.state.end)])
    if len(ahead) > RANGES_AHEAD_MAX or len(cancelled) > CANCELLED_RANGES_MAX:
        what = f"{len(ranges)} ranges of {share.log.name} are too many to be kept: settle larger ones"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    settled = [settle(share.state, first, last, held_too=held_too) for first, last in ranges]
    try:
        shares.store([share])
    except RequestError:
        share.state.restore(copy)
        raise
    share.wake()
    held = [part for each in settled for part in each.held]
    return Settlement(sum(each.records for each in settled), held)
