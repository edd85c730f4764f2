"""Ledger: the account of every topic and each of its consumers, in records. Nothing may be missing from it, and nothing twice.

    produced = processed + waiting + dead + late + invalid + failed + shed + expired + compacted + aborted

    produced                   batch headers of the topic, what is gone from it, and the records of ``<topic>.shed``
    waiting, aborted           batch headers behind the consumer's position; transactions by their markers; effects that have not ended
    expired, compacted         offsets in front of the log's start that the consumer had not passed; offsets that no batch of a compacted topic has any more
    dead                       letters of the sink in ``<topic>.dead`` that stand before its position, each place once
    late, invalid, failed      what the view's batches have counted (``Result.taken``)
    shed                       records of ``<topic>.shed``
    processed                  what the consumer itself has counted, since it counts; what it has passed before, by its position. Effects when they are told

Offsets that no batch has in a topic that is not compacted are lost: they are in no term, and the account does not add up.
A consumer's own count is used as far back as the log is whole: what was removed behind it cannot be counted in the log again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from headwater import result
from headwater.access import Log
from headwater.client import TIMEOUT_S, Client, admin
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.graph import SINK_GROUP, VIEW_GROUP
from headwater.operate.batches import Batches
from headwater.operate.census import Census, take
from headwater.pipeline.time import TICKS
from headwater.result import Result
from headwater.result import topic as result_topic
from headwater.sink import letters
from headwater.sink.count import Counted
from headwater.sink.journal import unfinished

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
NOBODY = "-"
"""Stands for the consumer of a topic that has none."""


class Unbalanced(HeadwaterError):  # noqa: N818  the word for such an account
    """Records of a topic are missing from the account of a consumer, or are in it twice."""


class Tally(msgspec.Struct, frozen=True):
    """What a consumer has counted itself, from some offsets on up to its position."""

    since: Mapping[int, int]
    """By partition; it counts no others."""
    processed: int
    late: int = 0
    invalid: int = 0
    failed: int = 0


class Reading(msgspec.Struct, frozen=True):
    """How far one consumer of a topic is, and what it says of that."""

    topic: str
    consumer: str
    position: Mapping[int, int]
    tallies: Sequence[Sequence[Tally]] = ()
    """Parts of the topic that were counted by themselves; of each the same count from several places on, the longest first."""
    dead: Collection[tuple[int, int]] = frozenset()
    """Partition and offset of each dead letter."""
    carried: Collection[tuple[int, int]] = frozenset()
    """Those of them that the consumer had counted before they died: effects."""
    untold: Collection[tuple[int, int]] = frozenset()
    """Effects that it has taken over, and so counted, and that have not ended."""


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
    """Offsets that no batch has although nobody may have removed them: no term, always wrong."""
    beyond: int = 0
    """Offsets between the end of the log and a position behind it: no term, always wrong."""

    @property
    def missing(self) -> int:
        """Records that are in no term; less than none when terms hold more than was produced."""
        return self.produced - sum(int(getattr(self, term)) for term in TERMS)

    @property
    def fault(self) -> str:
        """What is wrong with it, empty when it adds up."""
        line = f"{self.topic} → {self.consumer}"
        if self.beyond:
            return f"{line}: the consumer is {self.beyond:,} offsets behind the end of the topic"
        if self.lost:
            return f"{line}: the log has lost {self.lost:,} records: the topic is not compacted, and no batch has their offsets"
        if self.missing > 0:
            return f"{line}: {self.missing:,} of {self.produced:,} records are missing"
        if self.missing < 0:
            return f"{line}: {-self.missing:,} records more than the {self.produced:,} that were produced"
        return ""


def accounts(log: Log, names: Collection[str] = ()) -> list[Account]:
    """Those of all consumers, or of the topics, views and sinks that are named. UsageError for a name that is none of these."""
    client, batches = Client(log), Batches(log)
    try:
        known = client.partitions()
        found = [*_views(client, known), *_groups(log, client, known)]
        found = [each for each in found if each.topic in known]
        _refuse_unknown(names, known, found)
        chosen = [each for each in found if not names or {each.topic, each.consumer} & set(names)]
        shown = {name for each in chosen for name in (each.topic, each.consumer)}
        chosen += [Reading(name, NOBODY, {}) for name in names if name not in shown]
        topics = {each.topic for each in chosen}
        counted = {name: _census(client, batches, name) for name in sorted(topics)}
        compacted = _compacted(log, topics)
        shed = {name: _shed(client, batches, name) for name in topics if f"{name}{SHED}" in known}
    finally:
        client.close()
        batches.close()
    made = [
        account(each, counted[each.topic], shed.get(each.topic, 0), compacted=each.topic in compacted)
        for each in chosen
    ]
    return sorted(made, key=lambda each: (each.topic, each.consumer))


def check(log: Log, names: Collection[str] = ()) -> list[Account]:
    """The same; raises Unbalanced, naming all that do not add up."""
    found = accounts(log, names)
    faults = [each.fault for each in found if each.fault]
    if faults:
        raise Unbalanced("the account does not add up", got="; ".join(faults))
    return found


def account(
    reading: Reading, partitions: Mapping[int, Census], shed: int = 0, *, compacted: bool = True
) -> Account:
    """What has become of the records of a topic for one consumer. ``compacted``: the log may leave offsets out of it."""
    position, tallies = reading.position, _usable(reading, partitions)
    since = {partition: at for each in tallies for partition, at in each.since.items()}
    sums: Counter[str] = Counter()
    for number, census in partitions.items():
        at = position.get(number, 0)
        dead, carried, untold = (
            _before(at, census, number, places) for places in (reading.dead, reading.carried, reading.untold)
        )
        untold -= dead
        counted_from = min(since.get(number, at), at)
        counted = {o for o in dead if o < counted_from or o in carried} | untold
        taken_back = sum(census.kind(o) in {"record", "open"} for o in counted)
        sums["expired"] += max(census.start - at, 0)
        sums["compacted" if compacted else "lost"] += census.holes()
        sums["produced"] += census.count("record", "open", "aborted")
        sums["aborted"] += census.count("aborted")
        sums["waiting"] += census.count("record", "open", first=at) + len(untold)
        sums["processed"] += census.count("record", "open", end=counted_from) - taken_back
        sums["dead"] += len(dead)
        sums["beyond"] += max(at - census.end, 0)
    for each in tallies:
        sums.update(processed=each.processed, late=each.late, invalid=each.invalid, failed=each.failed)
    sums["produced"] += sums["expired"] + sums["compacted"] + sums["lost"] + shed
    return Account(reading.topic, reading.consumer, shed=shed, **sums)


def _before(at: int, census: Census, number: int, places: Collection[tuple[int, int]]) -> set[int]:
    """The offsets of a partition in front of a position that the log still has: what was compacted has its own term."""
    return {o for p, o in places if p == number and o < at and census.kind(o) is not None}


def _usable(reading: Reading, partitions: Mapping[int, Census]) -> list[Tally]:
    """Of each part the longest count behind whose beginning the log is whole."""

    def is_whole(tally: Tally) -> bool:
        return all(
            number in partitions
            and partitions[number].start <= at
            and not partitions[number].holes(at, reading.position.get(number, 0))
            for number, at in tally.since.items()
        )

    chosen = (next(filter(is_whole, part), None) for part in reading.tallies)
    return [each for each in chosen if each is not None]


# ---- what there is in the log --------------------------------------------------------------------------


def _census(client: Client, batches: Batches, topic: str) -> dict[int, Census]:
    leaders, bounds = batches.leaders(topic), client.bounds(topic)
    found = {
        number: take(batches.read(leaders[number], topic, number, start, end), start, end)
        for number, (start, end) in bounds.items()
        if number in leaders
    }
    starts = client.bounds(topic)  # what retention took while we read is no hole
    return {number: each.behind(starts[number][0]) for number, each in found.items()}


def _compacted(log: Log, topics: Collection[str]) -> set[str]:
    """Those of the topics from which the log takes records that newer ones replace."""
    if not topics:
        return set()
    asked = admin(log)
    try:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        answers = {
            each.name: answer.result(TIMEOUT_S) for each, answer in asked.describe_configs(resources).items()
        }
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
    return {name for name, config in answers.items() if "compact" in config["cleanup.policy"].value}


def _shed(client: Client, batches: Batches, topic: str) -> int:
    return sum(each.count("record") for each in _census(client, batches, f"{topic}{SHED}").values())


def _views(client: Client, known: Mapping[str, int]) -> Iterator[Reading]:
    """The views that publish in batches, from their results."""
    ending = result_topic("")
    for view in sorted(name.removesuffix(ending) for name in known if name.endswith(ending)):
        newest = result.newest(client, view)
        if newest is not None:
            kept = result.of_run(client, view, newest.run)
            same = [each for each in kept if each.batch <= newest.batch]
            for topic, position in newest.inputs.items():
                if topic != TICKS:
                    tallies = list(_tallies(topic, newest, same))
                    yield Reading(topic, view, position, [tallies] if tallies else ())


def _tallies(topic: str, newest: Result, kept: Iterable[Result]) -> Iterator[Tally]:
    """What the batches of a run have counted of a topic: since it counts, then since each result that is still there."""
    last = newest.taken.get(topic)
    if last is None:
        return
    whole = dict.fromkeys(newest.inputs[topic], 0)
    yield Tally(whole | dict(last.since), last.processed, last.late, last.invalid, last.failed)
    for each in sorted(kept, key=lambda result: result.batch):
        then = each.taken.get(topic)
        if then is not None and then.since == last.since:
            yield Tally(
                whole | each.inputs.get(topic, {}),
                last.processed - then.processed,
                last.late - then.late,
                last.invalid - then.invalid,
                last.failed - then.failed,
            )


def _groups(log: Log, client: Client, known: Mapping[str, int]) -> Iterator[Reading]:
    """Sinks, and views that run in real time: what they have committed to their groups."""
    asked = admin(log)
    try:
        listed = asked.list_consumer_groups().result(TIMEOUT_S).valid
        for name in sorted(each.group_id for each in listed if each.group_id.startswith(VIEW_GROUP)):
            is_sink = name.startswith(SINK_GROUP)
            consumer = name.removeprefix(SINK_GROUP if is_sink else VIEW_GROUP)
            if not is_sink and result_topic(consumer) in known:
                continue
            answer = asked.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)])[name]
            yield from _group(client, consumer, answer.result(TIMEOUT_S).topic_partitions)
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error


def _group(client: Client, consumer: str, places: Iterable[object]) -> Iterator[Reading]:
    committed: dict[str, list[tuple[int, int, str]]] = {}
    for place in places:
        topic, partition, offset, said = (
            getattr(place, name) for name in ("topic", "partition", "offset", "metadata")
        )
        if offset >= 0:
            committed.setdefault(topic, []).append((partition, offset, said or ""))
    for topic, found in committed.items():
        counted = {partition: Counted.read(said) for partition, _, said in found}
        dead = letters.places(client, consumer, topic)
        yield Reading(
            topic,
            consumer,
            {partition: offset for partition, offset, _ in found},
            [[Tally({p: each.since}, each.applied)] for p, each in counted.items() if each is not None],
            dead.keys(),
            {place for place, was_taken_over in dead.items() if was_taken_over},
            unfinished(client, consumer),
        )


def _refuse_unknown(names: Collection[str], known: Mapping[str, int], found: Iterable[Reading]) -> None:
    there = set(known) | {each.consumer for each in found}
    for name in names:
        if name not in there:
            raise UsageError(
                f"there is no topic, view or sink {name!r}",
                hint="headwater ledger without a name shows all that there are",
            )
