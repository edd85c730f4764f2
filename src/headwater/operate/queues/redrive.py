"""Redrive: dead letters go back to their topic, in their order, each once.

On the embedded log a letter is settled in the transaction that writes its message: the message is in its
topic, or the letter is still there. Apache Kafka has no such transaction: there a message is written first,
and after a crash it may be written again.

A message keeps its key, value, headers and timestamp. Two headers would keep it from being delivered: a time
that is over (``headwater-expires``) is left out, and after its id (``headwater-id``) comes another one, since
messages with the same id are duplicates.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec

from headwater.access import Log
from headwater.client.bulk.producer import BulkProducer
from headwater.client.client import Client
from headwater.client.share.link import Delivery
from headwater.client.share.session import TransactionIdentity
from headwater.clock import Clock, SystemClock
from headwater.errors import UsageError
from headwater.operate.queues.contents import contents
from headwater.operate.queues.edit import Edit
from headwater.operate.queues.groups import check_queue
from headwater.operate.queues.letters import Letters
from headwater.queue_headers import EXPIRES_HEADER, ID_HEADER
from headwater.record import Record
from headwater.worker.letter import SUFFIX, open_letter
from headwater.write.rate_limit import Limit

__all__ = ["Moved", "Wanted", "dead_letters", "redrive"]

BATCH_MAX = 500
"""Letters of one transaction."""


class Wanted(NamedTuple):
    """Which letters are moved, and how."""

    limit: int | None = None
    key: str | None = None
    edit: Edit | None = None
    rate: Limit | None = None


class Moved(msgspec.Struct, frozen=True):
    """A letter, and the topic and partition to which its message goes."""

    letter: str
    """Its id: topic, partition and offset."""
    topic: str
    partition: int
    key: str | None
    attempts: str
    reason: str


class _Return(NamedTuple):
    """A message on its way back."""

    moved: Moved
    message: Record
    keeps_partition: bool


def dead_letters(log: Log, name: str, wanted: Wanted) -> Iterator[Moved]:
    """What `redrive` would move at this moment. Nothing is held, nothing is changed."""
    queue, topics = _letter_queue(log, name)
    count, now_ms = 0, SystemClock().now_ms()
    for content in contents(log, queue) if queue in topics else ():
        if wanted.limit is not None and count >= wanted.limit:
            break
        back = _opened(content.id, content.record, wanted, topics, now_ms)
        if back is not None:
            count += 1
            yield back.moved


def _letter_queue(log: Log, name: str) -> tuple[str, Mapping[str, int]]:
    """The queue of dead letters of a queue, and all topics with their partitions."""
    queue = f"{name}{SUFFIX}"
    with closing(Client(log)) as client:
        topics = client.partitions()
    if queue not in topics:
        check_queue(log, name)
    return queue, topics


def _opened(
    letter: str, record: Record, wanted: Wanted, topics: Mapping[str, int], now_ms: int
) -> _Return | None:
    """The message of a letter, edited; None if it stays: it is not wanted, or is no letter at all."""
    message, facts = open_letter(record)
    if not facts or (wanted.key is not None and message.key != wanted.key.encode()):
        return None
    edited = message if wanted.edit is None else _edited(letter, message, wanted.edit)
    if edited is None:
        return None
    topic, partition = facts["topic"], int(facts["partition"])
    if topic not in topics:
        raise UsageError(
            f"letter {letter} cannot go back: there is no topic {topic!r}",
            hint="create the topic first, or choose other letters with --key",
        )
    key = None if edited.key is None else edited.key.decode(errors="replace")
    moved = Moved(letter, topic, partition, key, facts["attempts"], facts["reason"])
    keeps_partition = edited.key == message.key and partition < topics[topic]
    return _Return(moved, _deliverable(letter, edited, now_ms), keeps_partition)


def _deliverable(letter: str, message: Record, now_ms: int) -> Record:
    """The message without what would settle it before it is delivered."""
    headers = [
        each for each in message.headers if not (each[0] == EXPIRES_HEADER and _is_over(each[1], now_ms))
    ]
    ids = [value for name, value in headers if name == ID_HEADER]
    if ids:
        first = next(i for i, (name, _) in enumerate(headers) if name == ID_HEADER)
        headers = [each for i, each in enumerate(headers) if each[0] != ID_HEADER or i == first]
        headers.append((ID_HEADER, (ids[0] or b"") + f"#{letter}".encode()))
    return msgspec.structs.replace(message, headers=tuple(headers))


def _is_over(text: bytes | None, now_ms: int) -> bool:
    return text is not None and text.isdigit() and int(text) <= now_ms


def _edited(letter: str, message: Record, edit: Edit) -> Record | None:
    try:
        return edit(message)
    except UsageError as error:
        raise UsageError(
            f"letter {letter}: {error.what}", got=error.got, expected=error.expected, hint=error.hint
        ) from error


def redrive(log: Log, name: str, wanted: Wanted, clock: Clock | None = None) -> Iterator[Moved]:
    """Moves letters, and says of each that it was moved. Ends when there are no more, or with the limit.

    UsageError if a letter cannot be edited or its topic does not exist: those before it have been moved.
    """
    clock = clock or SystemClock()
    queue, topics = _letter_queue(log, name)
    if queue not in topics:
        return
    left = wanted.limit
    producer = BulkProducer(log, f"headwater-redrive-{name}", clock=clock)
    with closing(producer), closing(Letters(log, queue, clock)) as letters:
        producer.claim()
        while left is None or left > 0:
            burst = BATCH_MAX if wanted.rate is None else wanted.rate.burst
            taken = letters.take(min(BATCH_MAX, burst, BATCH_MAX if left is None else left))
            if not taken:
                break
            now_ms = clock.now_ms()
            returns = [
                (letter, _opened(_id(letter), letter.record, wanted, topics, now_ms)) for letter in taken
            ]
            chosen = [(letter, back) for letter, back in returns if back is not None]
            if not chosen:
                continue
            _move(producer, letters, chosen)
            yield from (back.moved for _, back in chosen)
            left = None if left is None else left - len(chosen)
            if wanted.rate is not None:
                letters.pause(len(chosen) / wanted.rate.per_second)


def _id(letter: Delivery) -> str:
    return f"{letter.topic}-{letter.place[1]}-{letter.record.offset}"


def _move(producer: BulkProducer, letters: Letters, chosen: Sequence[tuple[Delivery, _Return]]) -> None:
    """One transaction: messages are written, and their letters settled."""
    producer.begin()
    try:
        for _, back in chosen:
            partition = back.moved.partition if back.keeps_partition else None
            producer.send_records(back.moved.topic, [back.message], partition)
        producer.flush()
        taken = [letter for letter, _ in chosen]
        if letters.is_embedded:
            identity = TransactionIdentity(*producer.add_group(letters.queue))
            letters.accept_with(taken, identity)
        producer.commit()
        if not letters.is_embedded:
            letters.accept(taken)
    except BaseException:
        producer.abort(0.0)
        raise
