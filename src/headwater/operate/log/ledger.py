"""The ledger: an account of every topic and each of its consumers, in records.

None may be missing, or counted twice.

    produced = processed + waiting + dead + late + invalid + failed + shed + expired + compacted + aborted

    produced               batch headers of the topic, offsets removed from it, records of ``<topic>.shed``
    waiting, aborted       batch headers after the consumer's position; transactions by their markers; and
                           for waiting, unfinished effects
    expired, compacted     offsets before the log's start that the consumer had not read; offsets that no
                           batch of a compacted topic has any more
    dead                   dead letters of the sink in ``<topic>.dead`` from before its position, each once
    late, invalid, failed  counts of the view's batches (``Result.taken``); of a real-time view, beside its
                           position (``follow/left_out_note.py``)
    shed                   records of ``<topic>.shed``
    processed              the consumer's own count, from where it began to count; before that, its
                           position. Effects once they are delivered

Offsets that no batch has, in a topic that is not compacted, are lost: they are in no term, and the account
does not add up. A consumer's own count is used only as far back as the log is complete, since removed records
cannot be compared with it.
"""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec
from confluent_kafka.admin import ConfigResource, ResourceType

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, Client
from headwater.errors import HeadwaterError, UsageError
from headwater.operate.log.batches import Batches
from headwater.operate.log.census import Census, take
from headwater.operate.log.readings import Consumers, Reading, Tally, answering

__all__ = ["TERMS", "Account", "Unbalanced", "account", "accounts", "check"]

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


class Unbalanced(HeadwaterError):  # noqa: N818  the word for such an account
    """Records of a topic are missing from the account of a consumer, or are in it twice."""


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
        consumers = Consumers(client)
        _refuse_unknown(names, {*partitions, *consumers.names})

        def is_chosen(topic: str, consumer: str) -> bool:
            return topic in partitions and (not names or topic in names or consumer in names)

        chosen = consumers.readings(is_chosen)
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
    since = {
        partition: first
        for tally in tallies
        if tally.processed is not None
        for partition, first in tally.since.items()
    }
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
        left_out = tally.late + tally.invalid + tally.failed
        processed = -left_out if tally.processed is None else tally.processed
        sums.update(processed=processed, late=tally.late, invalid=tally.invalid, failed=tally.failed)
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
    with answering(log) as client:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        answers = {
            resource.name: answer.result(TIMEOUT_S)
            for resource, answer in client.describe_configs(resources).items()
        }
    return {name for name, config in answers.items() if "compact" in config["cleanup.policy"].value}


def _shed(client: Client, batches: Batches, topic: str) -> int:
    return sum(census.count("record") for census in _census(client, batches, f"{topic}{SHED}").values())


def _refuse_unknown(names: Collection[str], existing: Collection[str]) -> None:
    for name in names:
        if name not in existing:
            raise UsageError(
                f"there is no topic, view or sink {name!r}", hint="headwater ledger without a name shows all"
            )
