"""The ledger: an account of every topic and each of its consumers, in records.

None may be missing, or counted twice.

    produced = processed + waiting + dead + late + invalid + failed + shed + expired + compacted + aborted

    produced               batch headers of the topic, offsets removed from it, records of ``<topic>.shed``
    waiting, aborted       batch headers after the consumer's position; transactions by their markers; and
                           for waiting, unfinished effects
    expired, compacted     offsets before the log's start that the consumer had not read; offsets that no
                           batch of a compacted topic has any more
    dead                   dead letters of the sink in ``<topic>.dead`` from before its position, each once
    late, invalid, failed  counts of the view's batches (``Result.taken``)
    shed                   records of ``<topic>.shed``
    processed              the consumer's own count, from where it began to count; before that, its
                           position. Effects once they are delivered

Offsets that no batch has, in a topic that is not compacted, are lost: they are in no term, and the account
does not add up. A consumer's own count is used only as far back as the log is complete, since removed records
cannot be compared with it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, Client, admin
from headwater.declare.spec import SINK_GROUP, VIEW_GROUP
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.follow import results
from headwater.operate.log.batches import Batches
from headwater.operate.log.census import Census, take
from headwater.result import TICKS, Result
from headwater.result import topic as result_topic
from headwater.sink import dead_letters
from headwater.sink.effects.journal import unfinished
from headwater.sink.loop.counters import Counted

__all__ = ["TERMS", "Account", "Reading", "Tally", "Unbalanced", "account", "accounts", "check"]

TERMS = (
    "processed",
    "waiting",
    "dead",
    "late",
    "invalid",
    "failed",
    "shed",
    "expired",
    "compacted",
    "aborted",
)
SHED = ".shed"
NO_CONSUMER = "-"
"""Shown as the consumer of a topic that has none."""

Choice = Callable[[str, str], bool]
"""Whether the account of a topic and a consumer was asked for."""


class Unbalanced(HeadwaterError):  # noqa: N818  the word for such an account
    """Records of a topic are missing from the account of a consumer, or are in it twice."""


class Tally(msgspec.Struct, frozen=True):
    """A consumer's own count, from some offsets up to its position."""

    since: Mapping[int, int]
    """The first counted offset of each partition; other partitions are not counted."""
    processed: int
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


class Account(msgspec.Struct, frozen=True):
    """One topic and one consumer, in records."""

    topic: str
    consumer: str
    produced: int = 0
    processed: int = 0
    waiting: int = 0
    dead: int = 0
    late: int = 0
    invalid: int = 0
    failed: int = 0
    shed: int = 0
    expired: int = 0
    compacted: int = 0
    aborted: int = 0
    lost: int = 0
    """Offsets that no batch has, in a topic that is not compacted. Not a term: always an error."""
    beyond: int = 0
    """Offsets from the end of the log to a position past it. Not a term: always an error."""

    @property
    def missing(self) -> int:
        """Records that are in no term; negative if the terms hold more than was produced."""
        return self.produced - sum(int(getattr(self, term)) for term in TERMS)

    @property
    def fault(self) -> str:
        """What is wrong with the account; empty if it adds up."""
        line = f"{self.topic} → {self.consumer}"
        if self.beyond:
            return f"{line}: the consumer's position is {self.beyond:,} offsets past the end of the topic"
        if self.lost:
            return (
                f"{line}: the log has lost {self.lost:,} records: the topic is not compacted,"
                " and no batch has their offsets"
            )
        if self.missing > 0:
            return f"{line}: {self.missing:,} of {self.produced:,} records are missing"
        if self.missing < 0:
            return f"{line}: {-self.missing:,} records more than the {self.produced:,} that were produced"
        return ""


def accounts(log: Log, names: Collection[str] = ()) -> list[Account]:
    """The accounts of all consumers, or of the named topics, views and sinks.

    UsageError for an unknown name.
    """
    client, batches = Client(log), Batches(log)
    try:
        partitions = client.partitions()
        views, groups = _view_names(partitions), _group_names(log, partitions)
        _refuse_unknown(names, {*partitions, *views, *groups.values()})

        def is_chosen(topic: str, consumer: str) -> bool:
            return topic in partitions and (not names or topic in names or consumer in names)

        chosen = [*_views(client, views, is_chosen), *_groups(log, client, groups, is_chosen)]
        _refuse_unknown(names, {*partitions, *(reading.consumer for reading in chosen)})
        shown = {name for reading in chosen for name in (reading.topic, reading.consumer)}
        chosen += [Reading(name, NO_CONSUMER, {}) for name in names if name not in shown]
        topics = {reading.topic for reading in chosen}
        censuses = {name: _census(client, batches, name) for name in sorted(topics)}
        compacted = _compacted(log, topics)
        shed = {name: _shed(client, batches, name) for name in topics if f"{name}{SHED}" in partitions}
    finally:
        client.close()
        batches.close()
    found = [
        account(
            reading,
            censuses[reading.topic],
            shed.get(reading.topic, 0),
            compacted=reading.topic in compacted,
        )
        for reading in chosen
    ]
    return sorted(found, key=lambda one: (one.topic, one.consumer))


def check(log: Log, names: Collection[str] = ()) -> list[Account]:
    """The same accounts; raises Unbalanced with every one that does not add up."""
    found = accounts(log, names)
    faults = [one.fault for one in found if one.fault]
    if faults:
        raise Unbalanced("the account does not add up", got="; ".join(faults))
    return found


def account(
    reading: Reading, partitions: Mapping[int, Census], shed: int = 0, *, compacted: bool = True
) -> Account:
    """The account of one consumer of a topic.

    ``compacted``: the log may remove single offsets of the topic.
    """
    position, tallies = reading.position, _usable(reading, partitions)
    since = {partition: first for tally in tallies for partition, first in tally.since.items()}
    sums: Counter[str] = Counter()
    for number, census in partitions.items():
        at = position.get(number, 0)
        dead, counted_dead, unfinished = (
            _before(at, census, number, places)
            for places in (reading.dead, reading.counted_dead, reading.unfinished)
        )
        unfinished -= dead
        counted_from = min(since.get(number, at), at)
        # These are among the processed records below, although they have a term of their own.
        in_other_terms = {o for o in dead if o < counted_from or o in counted_dead} | unfinished
        subtracted = sum(census.kind(o) in {"record", "open"} for o in in_other_terms)
        sums["expired"] += max(census.start - at, 0)
        sums["compacted" if compacted else "lost"] += census.holes()
        sums["produced"] += census.count("record", "open", "aborted")
        sums["aborted"] += census.count("aborted")
        sums["waiting"] += census.count("record", "open", first=at) + len(unfinished)
        sums["processed"] += census.count("record", "open", end=counted_from) - subtracted
        sums["dead"] += len(dead)
        sums["beyond"] += max(at - census.end, 0)
    for tally in tallies:
        sums.update(processed=tally.processed, late=tally.late, invalid=tally.invalid, failed=tally.failed)
    sums["produced"] += sums["expired"] + sums["compacted"] + sums["lost"] + shed
    return Account(reading.topic, reading.consumer, shed=shed, **sums)


def _before(at: int, census: Census, number: int, places: Collection[tuple[int, int]]) -> set[int]:
    """The offsets before a position that the log still has; compacted ones have a term of their own."""
    return {o for p, o in places if p == number and o < at and census.kind(o) is not None}


def _usable(reading: Reading, partitions: Mapping[int, Census]) -> list[Tally]:
    """For each part, the longest count after whose first offset the log is complete."""

    def is_complete(tally: Tally) -> bool:
        return all(
            number in partitions
            and partitions[number].start <= first
            and not partitions[number].holes(first, reading.position.get(number, 0))
            for number, first in tally.since.items()
        )

    chosen = (next(filter(is_complete, part), None) for part in reading.tallies)
    return [tally for tally in chosen if tally is not None]


# ---- counts from the log -------------------------------------------------------------------------------


def _census(client: Client, batches: Batches, topic: str) -> dict[int, Census]:
    leaders, bounds = batches.leaders(topic), client.bounds(topic)
    censuses = {
        number: take(batches.read(leaders[number], topic, number, start, end), start, end)
        for number, (start, end) in bounds.items()
        if number in leaders
    }
    starts = client.bounds(topic)  # what retention removed in the meantime is not a hole
    return {number: census.starting_at(starts[number][0]) for number, census in censuses.items()}


def _compacted(log: Log, topics: Collection[str]) -> set[str]:
    """The compacted ones among the topics."""
    if not topics:
        return set()
    with _admin(log) as client:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        answers = {
            resource.name: answer.result(TIMEOUT_S)
            for resource, answer in client.describe_configs(resources).items()
        }
    return {name for name, config in answers.items() if "compact" in config["cleanup.policy"].value}


def _shed(client: Client, batches: Batches, topic: str) -> int:
    return sum(census.count("record") for census in _census(client, batches, f"{topic}{SHED}").values())


# ---- consumers -----------------------------------------------------------------------------------------


def _view_names(partitions: Collection[str]) -> list[str]:
    """The views that publish in batches."""
    ending = result_topic("")
    return sorted(name.removesuffix(ending) for name in partitions if name.endswith(ending))


def _views(client: Client, names: Iterable[str], is_chosen: Choice) -> Iterator[Reading]:
    """The chosen readings of views, from their results."""
    for view in names:
        newest = results.newest(client, view)
        inputs = {} if newest is None else newest.inputs
        topics = [topic for topic in inputs if topic != TICKS and is_chosen(topic, view)]
        if newest is None or not topics:
            continue
        of_run = results.of_run(client, view, newest.run)
        earlier = [result for result in of_run if result.batch <= newest.batch]
        for topic in topics:
            tallies = list(_tallies(topic, newest, earlier))
            yield Reading(topic, view, inputs[topic], [tallies] if tallies else ())


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


def _group_names(log: Log, partitions: Collection[str]) -> dict[str, str]:
    """The groups of sinks and real-time views, each with the consumer's name."""
    with _admin(log) as client:
        listed = client.list_consumer_groups().result(TIMEOUT_S).valid
    names: dict[str, str] = {}
    for group in sorted(group.group_id for group in listed if group.group_id.startswith(VIEW_GROUP)):
        is_sink = group.startswith(SINK_GROUP)
        consumer = group.removeprefix(SINK_GROUP if is_sink else VIEW_GROUP)
        if is_sink or result_topic(consumer) not in partitions:
            names[group] = consumer
    return names


def _groups(log: Log, client: Client, names: Mapping[str, str], is_chosen: Choice) -> Iterator[Reading]:
    """The chosen readings of sinks and real-time views, from the offsets of their groups."""
    with _admin(log) as admin_client:
        for group, consumer in names.items():
            answer = admin_client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
            yield from _group(client, consumer, answer.result(TIMEOUT_S).topic_partitions, is_chosen)


def _group(client: Client, consumer: str, places: Iterable[object], is_chosen: Choice) -> Iterator[Reading]:
    committed: dict[str, list[tuple[int, int, str]]] = {}
    for place in places:
        topic, partition, offset, metadata = (
            getattr(place, name) for name in ("topic", "partition", "offset", "metadata")
        )
        if offset >= 0 and is_chosen(topic, consumer):
            committed.setdefault(topic, []).append((partition, offset, metadata or ""))
    for topic, offsets in committed.items():
        counts = {partition: Counted.read(metadata) for partition, _, metadata in offsets}
        dead = dead_letters.places(client, consumer, topic)
        yield Reading(
            topic,
            consumer,
            {partition: offset for partition, offset, _ in offsets},
            [[Tally({p: count.since}, count.applied)] for p, count in counts.items() if count is not None],
            dead.keys(),
            {place for place, was_taken_over in dead.items() if was_taken_over},
            unfinished(client, consumer),
        )


def _refuse_unknown(names: Collection[str], existing: Collection[str]) -> None:
    for name in names:
        if name not in existing:
            raise UsageError(
                f"there is no topic, view or sink {name!r}", hint="headwater ledger without a name shows all"
            )


@contextmanager
def _admin(log: Log) -> Iterator[AdminClient]:
    """An admin client, whose errors are the machine's."""
    try:
        yield admin(log)
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
