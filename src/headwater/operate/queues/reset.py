"""Reset: a queue delivers its messages again from an earlier place on, or those that are chosen alone.

The start of a group moves only while it has no members, as in Apache Kafka. Of what was settled before, the
messages that are not chosen are settled again at once. What was not settled is delivered in any case.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from typing import NamedTuple

import msgspec
from confluent_kafka import TopicPartition

from headwater.access import Log
from headwater.client.client import consumer
from headwater.client.share.queue_state import queue_states, record_states, settle
from headwater.errors import UsageError
from headwater.operate.log.replay import offset_of
from headwater.operate.queues.contents import places_of, records_in
from headwater.operate.queues.groups import Place, members, move
from headwater.operate.queues.spans import SETTLED, Span, spans
from headwater.queue.settlement import RANGES_AHEAD_MAX
from headwater.record import Record

__all__ = ["Choice", "Reset", "reset"]

Choice = Callable[[Record], bool]


class Reset(msgspec.Struct, frozen=True):
    """One partition: where it began, where it begins now, and how many messages come again."""

    topic: str
    partition: int
    start: int | None
    target: int
    again: int | None
    """Only if messages were chosen."""


class _Plan(NamedTuple):
    """What is to be done with a partition."""

    reset: Reset
    settled: list[tuple[int, int]]


def reset(
    log: Log,
    name: str,
    to: str | int | datetime,
    *,
    choice: Choice | None = None,
    topic: str = "",
    dry_run: bool = False,
) -> list[Reset]:
    """Moves a queue without members to a place in every partition, of one topic or of all that it reads.

    With a ``choice`` only the messages that fit come again. UsageError, and nothing is changed, if the queue
    has members, if its log does not know single records, or if the choice is too scattered.
    """
    places = [place for place in places_of(log, name) if topic in {"", place[0]}]
    if not places:
        topics = sorted({place[0] for place in places_of(log, name)})
        raise UsageError(
            f"queue {name!r} reads no topic {topic!r}" if topic else f"queue {name!r} has read no topic yet",
            hint=f"its topics are: {', '.join(topics) or 'none yet'}",
        )
    _check_empty(log, name)
    plans = list(_plans(log, name, sorted(places), to, choice))
    if not dry_run:
        move(log, name, {(plan.reset.topic, plan.reset.partition): plan.reset.target for plan in plans})
        ranges = {(plan.reset.topic, plan.reset.partition): plan.settled for plan in plans if plan.settled}
        if ranges:
            settle(log, name, ranges)
    return [plan.reset for plan in plans]


def _check_empty(log: Log, name: str) -> None:
    count = members(log, name).total
    if count:
        raise UsageError(
            f"queue {name!r} has {count} member{'' if count == 1 else 's'}, and moves only without any",
            hint="stop its workers first",
        )


def _plans(
    log: Log, name: str, places: Iterable[Place], to: str | int | datetime, choice: Choice | None
) -> Iterator[_Plan]:
    states = queue_states(log, name)
    with closing(consumer(log)) as reader:
        for place in places:
            state = states.get(place)
            start = None if state is None or state.start_offset < 0 else state.start_offset
            target = offset_of(reader, TopicPartition(*place), to)
            if choice is None:
                yield _Plan(Reset(*place, start, target, None), [])
                continue
            runs = list(record_states(log, name, *place, start or 0))
            end = max([start or 0, *(run.last + 1 for run in runs)])
            before = [Span(target, start - 1, SETTLED)] if start is not None and target < start else []
            known = [*before, *(span for span in spans(max(start or 0, target), end, runs))]
            done = [span for span in known if span.state == SETTLED]
            chosen = [record.offset for record, _ in records_in(log, place, done) if choice(record)]
            ranges = list(_without(done, chosen))
            _check_ranges(place, ranges)
            yield _Plan(Reset(*place, start, target, len(chosen)), ranges)


def _without(done: Iterable[Span], offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The parts of settled spans between the offsets that come again."""
    left = iter(offsets)
    offset = next(left, None)
    for span in done:
        at = span.first
        while offset is not None and offset <= span.last:
            if at < offset:
                yield at, offset - 1
            at, offset = offset + 1, next(left, None)
        if at <= span.last:
            yield at, span.last


def _check_ranges(place: Place, ranges: list[tuple[int, int]]) -> None:
    if len(ranges) > RANGES_AHEAD_MAX:
        raise UsageError(
            f"the messages of {place[0]}-{place[1]} that are chosen are too scattered",
            got=f"{len(ranges):,} ranges between them",
            expected=f"at most {RANGES_AHEAD_MAX:,}",
            hint="begin later with --to, or copy them into a topic of their own",
        )
