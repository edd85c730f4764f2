"""Readings: how far each consumer of a topic has read, and what it has counted itself.

views            their results
real-time views  the offsets of their groups, with notes of what was left out
sinks            the offsets of their groups, with their counts; dead letters; effects that are not done
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headwater.access import Log
from headwater.client.bulk.committed_offsets import CommittedOffset, committed_offsets
from headwater.client.client import TIMEOUT_S, Client, admin
from headwater.declare.spec import SINK_GROUP, VIEW_GROUP
from headwater.errors import MachineError
from headwater.follow import results
from headwater.follow.left_out_note import LeftOutNote
from headwater.result import TICKS, Result
from headwater.result import topic as result_topic
from headwater.sink import dead_letters
from headwater.sink.effects.journal import unfinished
from headwater.sink.loop.counters import Counted

__all__ = ["Consumers", "Reading", "Tally", "answering"]

Choice = Callable[[str, str], bool]
"""Whether the account of a topic and a consumer was asked for."""


class Tally(msgspec.Struct, frozen=True):
    """A consumer's own count, from some offsets up to its position."""

    since: Mapping[int, int]
    """The first counted offset of each partition; other partitions are not counted."""
    processed: int | None
    """None: it counts only the records that it leaves out, and processes all others."""
    late: int = 0
    invalid: int = 0
    failed: int = 0


class Reading(msgspec.Struct, frozen=True):
    """The position of one consumer of a topic, with its own counts."""

    topic: str
    consumer: str
    position: Mapping[int, int]
    tallies: Sequence[Sequence[Tally]] = ()
    """For each part of the topic with a count of its own: the same count from several offsets on, the longest
    first."""
    dead: Collection[tuple[int, int]] = frozenset()
    """Partition and offset of each dead letter."""
    counted_dead: Collection[tuple[int, int]] = frozenset()
    """The dead letters that are also in the consumer's own count: effects, which are counted when they are
    read."""
    unfinished: Collection[tuple[int, int]] = frozenset()
    """Effects that are in the consumer's own count and are neither delivered nor dead yet."""


class Consumers:
    """All views and sinks that a log knows: their names at once, and what they have read when asked."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._partitions = client.partitions()
        ending = result_topic("")
        self._views = sorted(name.removesuffix(ending) for name in self._partitions if name.endswith(ending))
        with answering(client.log) as admin_client:
            listed = admin_client.list_consumer_groups().result(TIMEOUT_S).valid
        self._groups = sorted(group.group_id for group in listed if group.group_id.startswith(VIEW_GROUP))

    @property
    def names(self) -> set[str]:
        return {*self._views, *self._sinks.values(), *self._real_time_views.values()}

    def readings(self, is_chosen: Choice) -> list[Reading]:
        """The chosen readings of all consumers."""
        newest = {view: results.newest(self._client, view) for view in self._views}
        real_time = {g: view for g, view in self._real_time_views.items() if newest.get(view) is None}
        return [
            *(each for view, last in newest.items() if last for each in self._view(view, last, is_chosen)),
            *(
                _real_time_view(view, topic, offsets)
                for group, view in real_time.items()
                for topic, offsets in committed_offsets(self._client.log, group).items()
                if is_chosen(topic, view)
            ),
            *(
                self._sink(sink, topic, offsets)
                for group, sink in self._sinks.items()
                for topic, offsets in committed_offsets(self._client.log, group).items()
                if is_chosen(topic, sink)
            ),
        ]

    @property
    def _sinks(self) -> dict[str, str]:
        """The sinks by their groups."""
        return {
            group: group.removeprefix(SINK_GROUP) for group in self._groups if group.startswith(SINK_GROUP)
        }

    @property
    def _real_time_views(self) -> dict[str, str]:
        """The views by their groups: those without a result run in real time, unless they were reset."""
        views = {
            group: group.removeprefix(VIEW_GROUP)
            for group in self._groups
            if not group.startswith(SINK_GROUP)
        }
        return {group: view for group, view in views.items() if view in self._partitions}

    def _view(self, view: str, newest: Result, is_chosen: Choice) -> Iterator[Reading]:
        topics = [topic for topic in newest.inputs if topic != TICKS and is_chosen(topic, view)]
        of_run = results.of_run(self._client, view, newest.run) if topics else []
        earlier = [result for result in of_run if result.batch <= newest.batch]
        for topic in topics:
            tallies = list(_tallies(topic, newest, earlier))
            yield Reading(topic, view, newest.inputs[topic], [tallies] if tallies else ())

    def _sink(self, sink: str, topic: str, offsets: Sequence[CommittedOffset]) -> Reading:
        counts = {place.partition: Counted.read(place.note) for place in offsets}
        dead = dead_letters.places(self._client, sink, topic)
        return Reading(
            topic,
            sink,
            _position(offsets),
            [[Tally({p: count.since}, count.applied)] for p, count in counts.items() if count is not None],
            dead.keys(),
            {place for place, was_taken_over in dead.items() if was_taken_over},
            unfinished(self._client, sink),
        )


def _position(offsets: Iterable[CommittedOffset]) -> dict[int, int]:
    return {place.partition: place.offset for place in offsets}


def _real_time_view(view: str, topic: str, offsets: Sequence[CommittedOffset]) -> Reading:
    """Each offset has a note of the whole topic; a partition without one is not counted."""
    notes = {place.partition: LeftOutNote.read(place.note) for place in offsets}
    since = {partition: note.since for partition, note in notes.items() if note is not None}
    newest = max((note for note in notes.values() if note is not None), key=_left_out, default=None)
    tallies = [] if newest is None else [[Tally(since, None, newest.late, newest.invalid)]]
    return Reading(topic, view, _position(offsets), tallies)


def _left_out(note: LeftOutNote) -> int:
    return note.late + note.invalid


def _tallies(topic: str, newest: Result, earlier: Iterable[Result]) -> Iterator[Tally]:
    """The counts of a run for a topic: from its first counted offset, then from each remaining result."""
    last = newest.taken.get(topic)
    if last is None:
        return
    whole = dict.fromkeys(newest.inputs[topic], 0)
    yield Tally(whole | dict(last.since), last.processed, last.late, last.invalid, last.failed)
    for result in sorted(earlier, key=lambda result: result.batch):
        then = result.taken.get(topic)
        if then is not None and then.since == last.since:
            yield Tally(
                whole | result.inputs.get(topic, {}),
                last.processed - then.processed,
                last.late - then.late,
                last.invalid - then.invalid,
                last.failed - then.failed,
            )


@contextmanager
def answering(log: Log) -> Iterator[AdminClient]:
    """An admin client, whose errors are the machine's."""
    try:
        yield admin(log)
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
