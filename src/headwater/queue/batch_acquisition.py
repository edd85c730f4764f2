"""Acquisition by whole batches of the log, as in Apache Kafka: for groups that open no records."""

from collections.abc import Iterable, Iterator, Sequence

from headwater.queue.acquisition import Acquired, Acquisition, Span, acquired
from headwater.queue.run import DeliveryState, Run
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_partition import SharePartition

__all__ = ["acquire_batches", "held", "next_offset"]


def next_offset(share: SharePartition, config: ShareConfig) -> int | None:
    """Where to read for the next delivery; None while members hold as many records as they may."""
    if not share.locks_left(config):
        return None
    available = share.first_available()
    if available is not None:
        return available
    return share.end if _room(share, config) > 0 else None


def acquire_batches(
    share: SharePartition, acquisition: Acquisition, first: int, spans: Sequence[Span]
) -> bool:
    """Locks records for a member; returns whether it may get more of those that follow.

    ``spans`` is what the log has from ``first`` on. Offsets between them are gaps: nothing is there, and
    nothing will be.
    """
    at, more = max(first, share.start), True
    for span in _without_settled(share, spans):
        if at < span.first:
            share.note_new(acquisition)
            share.skip(at, span.first - 1)
        begin = max(span.first, at)
        if begin > span.last:
            continue
        if not span.deliver:
            share.note_new(acquisition)
            share.skip(begin, span.last)
        elif not _take(share, begin, span.last, acquisition):
            more = False
            break
        at = span.last + 1
    share.note_acquired(acquisition)
    return more and not acquisition.is_full


def _without_settled(share: SharePartition, spans: Iterable[Span]) -> Iterator[Span]:
    """The same, but for what was settled before it came up."""
    for span in spans:
        if not span.deliver or not share.settled_ahead:
            yield span
            continue
        for first, last, is_settled in share.settled_ahead.split(span.first, span.last):
            yield Span(first, last, not is_settled)


def _take(share: SharePartition, first: int, last: int, acquisition: Acquisition) -> bool:
    """Locks what is available of one batch of the log; returns whether there may be more."""
    if acquisition.is_full:
        return False
    if first < share.end and not _take_known(share, first, min(last, share.end - 1), acquisition):
        return False
    first = max(first, share.end)
    return first > last or _take_new(share, first, last, acquisition)


def _take_known(share: SharePartition, first: int, last: int, acquisition: Acquisition) -> bool:
    """Locks records that were delivered before."""
    for run in share.between(first, last):
        if run.state is not DeliveryState.AVAILABLE:
            continue
        count = min(acquisition.share_of(run), share.locks_left(acquisition.config))
        if count:
            share.change(run.first, run.first + count - 1, acquisition.lock)
        if count < run.length or acquisition.is_closed:
            return False
    return True


def _take_new(share: SharePartition, first: int, last: int, acquisition: Acquisition) -> bool:
    """Locks records that were never delivered."""
    room = _room(share, acquisition.config)
    if room <= 0:
        return False
    count = min(last - first + 1, room)
    if acquisition.wish.strict:
        count = min(count, acquisition.left)
    if count > 0:
        share.append(acquisition.lock(Run(first, first + count - 1, DeliveryState.AVAILABLE)))
    return first + count > last


def _room(share: SharePartition, config: ShareConfig) -> int:
    """How many records that were never delivered members may get; delayed ones hold no locks."""
    if share.delayed >= config.delayed_max:
        return 0
    return config.partition_max_record_locks - (share.unsettled - share.delayed)


def held(share: SharePartition, member: str, delivered: Iterable[Acquired]) -> list[Acquired]:
    """Of what a member has acquired, what it holds still, with the same delivery."""
    return acquired(
        run
        for a in delivered
        for run in share.between(a.first, a.last)
        if (run.state, run.member, run.deliveries) == (DeliveryState.ACQUIRED, member, a.deliveries)
    )
