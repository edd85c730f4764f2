"""Redrive: dead letters go back to their topic, in their order, each once.

On the embedded log a letter is settled in the transaction that writes its message: the message is in its
topic, or the letter is still there. Apache Kafka has no such transaction: there a message is written first,
and after a crash it may be written again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import NamedTuple

from headwater.access import Log
from headwater.client.bulk.producer import BulkProducer
from headwater.client.client import Client
from headwater.client.share.link import Delivery
from headwater.client.share.session import TransactionIdentity
from headwater.clock import Clock, SystemClock
from headwater.operate.queues.contents import contents
from headwater.operate.queues.edit import Edit
from headwater.operate.queues.groups import check_queue
from headwater.operate.queues.letters import Letters
from headwater.operate.queues.parked_letters import ParkedLetters, parked_letters
from headwater.operate.queues.returning import Moved, Return, returned
from headwater.record import Record
from headwater.worker.letter import SUFFIX
from headwater.worker.parked import SUFFIX as PARKED_SUFFIX
from headwater.write.rate_limit import Limit

__all__ = ["Wanted", "dead_letters", "redrive"]

BATCH_MAX = 500
"""Letters that are taken at once, and so the letters of one transaction, but for those of a parked key."""


class Wanted(NamedTuple):
    """Which letters are moved, and how."""

    limit: int | None = None
    key: str | None = None
    edit: Edit | None = None
    rate: Limit | None = None


class _Letter(NamedTuple):
    """A letter, and its message."""

    back: Return
    delivery: Delivery | None
    """None if it is only looked at."""


Seen = tuple[str, Record, Delivery | None]
"""A letter by its id."""


def dead_letters(log: Log, name: str, wanted: Wanted) -> list[Moved]:
    """What `redrive` would move at this moment. Nothing is held, nothing is changed.

    Raises as `redrive` does.
    """
    queue, topics = _letter_queue(log, name)
    if queue not in topics:
        return []
    choice = _Choice(wanted, topics, _parked(log, name, queue, topics))
    seen = ((content.id, content.record, None) for content in contents(log, queue))
    chosen, _ = choice.take(seen, SystemClock().now_ms())
    return [letter.back.moved for letter in chosen]


def redrive(log: Log, name: str, wanted: Wanted, clock: Clock | None = None) -> Iterator[Moved]:
    """Moves the letters that are there now, and says of each that it was moved; no more than the limit.

    A message that fails again meanwhile is a new letter, which stays.
    UsageError if a letter cannot be edited or its topic does not exist: those before it have been moved.
    """
    clock = clock or SystemClock()
    queue, topics = _letter_queue(log, name)
    if queue not in topics:
        return
    with closing(Client(log)) as client:
        ends = client.end_offsets([queue])
    choice = _Choice(wanted, topics, _parked(log, name, queue, topics))
    producer = BulkProducer(log, f"headwater-redrive-{name}", clock=clock)
    with closing(producer), closing(Letters(log, queue, clock)) as letters:
        producer.claim()
        while choice.left != 0:
            burst = BATCH_MAX if wanted.rate is None else wanted.rate.burst
            taken = letters.take(min(BATCH_MAX, burst))
            if all(_is_new(letter, ends) for letter in taken):  # or there are none
                break
            old: list[Seen] = [
                (_id(letter), letter.record, letter) for letter in taken if not _is_new(letter, ends)
            ]
            chosen, freed = choice.take(old, clock.now_ms())
            if not chosen:
                continue
            _move(producer, letters, chosen, f"{name}{PARKED_SUFFIX}", freed)
            yield from (letter.back.moved for letter in chosen)
            if wanted.rate is not None:
                letters.pause(len(chosen) / wanted.rate.per_second)


def _parked(log: Log, name: str, queue: str, topics: Mapping[str, int]) -> ParkedLetters[_Letter]:
    if f"{name}{PARKED_SUFFIX}" not in topics:
        return ParkedLetters({})
    return parked_letters(log, name, queue)


def _id(letter: Delivery) -> str:
    return f"{letter.topic}-{letter.place[1]}-{letter.record.offset}"


def _is_new(letter: Delivery, ends: Mapping[tuple[str, int], int]) -> bool:
    return letter.record.offset >= ends.get((letter.topic, letter.place[1]), 0)


def _letter_queue(log: Log, name: str) -> tuple[str, Mapping[str, int]]:
    """The queue of dead letters of a queue, and all topics with their partitions."""
    queue = f"{name}{SUFFIX}"
    with closing(Client(log)) as client:
        topics = client.partitions()
    if queue not in topics:
        check_queue(log, name)
    return queue, topics


class _Choice:
    """Which letters go back. Those of a parked key go all in one transaction, or not at all."""

    def __init__(self, wanted: Wanted, topics: Mapping[str, int], parked: ParkedLetters[_Letter]) -> None:
        self.left = wanted.limit
        self._wanted = wanted
        self._topics = topics
        self._parked = parked

    def take(self, seen: Iterable[Seen], now_ms: int) -> tuple[list[_Letter], list[bytes]]:
        """Those that go back now, and the keys that are free then."""
        chosen: list[_Letter] = []
        freed: list[bytes] = []
        for name, record, delivery in seen:
            if not self._has_room(len(chosen) + 1) and not self._parked.last_offsets:
                break
            key = record.key
            if key is None or not self._parked.holds(key):
                if self._has_room(len(chosen) + 1):
                    letter = self._letter(name, record, delivery, now_ms)
                    chosen += [] if letter is None else [letter]
                continue
            letters = self._parked.gather(key, record.offset, self._letter(name, record, delivery, now_ms))
            if letters and self._has_room(len(chosen) + len(letters)):
                chosen += letters
                freed.append(key)
        if self.left is not None:
            self.left -= len(chosen)
        return chosen, freed

    def _has_room(self, count: int) -> bool:
        return self.left is None or count <= self.left

    def _letter(self, name: str, record: Record, delivery: Delivery | None, now_ms: int) -> _Letter | None:
        wanted = self._wanted
        back = returned(name, record, self._topics, now_ms, key=wanted.key, edit=wanted.edit)
        return None if back is None else _Letter(back, delivery)


def _destination(letter: _Letter) -> tuple[str, int | None]:
    return letter.back.moved.topic, letter.back.partition


def _move(
    producer: BulkProducer,
    letters: Letters,
    chosen: Sequence[_Letter],
    parked_topic: str,
    freed: Sequence[bytes],
) -> None:
    """One transaction: messages are written, their letters settled, and parked keys set free."""
    producer.begin()
    try:
        for (topic, partition), group in groupby(
            chosen, lambda letter: (letter.back.moved.topic, letter.back.partition)
        ):
            producer.send_records(topic, [letter.back.message for letter in group], partition)
        if freed:
            producer.send_records(parked_topic, [Record(key, None) for key in freed])
        producer.flush()
        deliveries = [letter.delivery for letter in chosen if letter.delivery is not None]
        if letters.is_embedded:
            identity = TransactionIdentity(*producer.add_group(letters.queue))
            letters.accept_with(deliveries, identity)
        producer.commit()
        if not letters.is_embedded:
            letters.accept(deliveries)
    except BaseException:
        producer.abort(0.0)
        raise
