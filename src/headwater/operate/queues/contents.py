"""Contents: the messages of a queue that are not settled, read without locking them."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka import Message as KafkaMessage

from headwater.access import Log
from headwater.client.client import READING, Client, acquaint, consumer
from headwater.client.share.queue_state import QueueState, queue_states, record_states
from headwater.errors import MachineError
from headwater.operate.queues.groups import Place, check_queue
from headwater.operate.queues.spans import STATES, Span, spans
from headwater.record import Record
from headwater.worker.letter import SUFFIX

__all__ = ["Content", "Places", "contents", "places_of", "records_in"]

READ_S = 30.0
NEAR_RECORDS = 1_000
"""A reader passes over so many records rather than ask for another offset."""

Places = Mapping[Place, QueueState | None]
"""The partitions of a queue, and what the log says of each."""


class Content(NamedTuple):
    """A message that is not settled, and what is known of it."""

    place: Place
    record: Record
    span: Span

    @property
    def id(self) -> str:
        return f"{self.place[0]}-{self.place[1]}-{self.record.offset}"


def places_of(log: Log, name: str) -> Places:
    """The partitions of a queue. Of dead letters that were never looked at, the log knows no state yet.

    UsageError if there is no such queue.
    """
    if places := queue_states(log, name):
        return dict(places)
    if name.endswith(SUFFIX):
        with closing(Client(log)) as client:
            count = client.partitions().get(name, 0)
        if count:
            return {(name, number): None for number in range(count)}
    check_queue(log, name)
    return {}


def contents(
    log: Log,
    name: str,
    states: Collection[str] = STATES,
    places: Places | None = None,
    only: tuple[int, int] | None = None,
) -> Iterator[Content]:
    """The messages of a queue, partition by partition in the order of offsets. Nothing is locked.

    ``only`` those between two offsets, both included. UsageError if there is no such queue, or its log does
    not know single records.
    """
    known = places_of(log, name) if places is None else places
    with closing(Client(log)) as client:
        for place, state in known.items():
            start, end = client.bounds(place[0])[place[1]]
            if state is not None:
                start = max(start, state.start_offset)
            if only is not None:
                start, end = max(start, only[0]), min(end, only[1] + 1)
            runs = () if state is None else record_states(log, name, *place, start)
            wanted = (span for span in spans(start, end, runs) if span.state in states)
            for record, span in records_in(log, place, wanted):
                yield Content(place, record, span)


def records_in(log: Log, place: Place, wanted: Iterable[Span]) -> Iterator[tuple[Record, Span]]:
    """The records of some spans of a partition; offsets without a record are passed over."""
    with closing(consumer(log, **READING)) as reader:
        acquaint(reader)
        left = iter(wanted)
        span, at = next(left, None), -1
        while span is not None:
            if at < 0 or span.first - at > NEAR_RECORDS:
                reader.assign([TopicPartition(*place, span.first)])
                at = span.first
            message = reader.poll(READ_S)
            if message is None:
                raise MachineError(f"{place[0]}-{place[1]} sent nothing for {READ_S:.0f} s")
            if message.error():
                if message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  its public name
                    return
                raise MachineError(f"{place[0]}-{place[1]} cannot be read", got=message.error().str())
            at = message.offset() + 1
            while span is not None and span.last < message.offset():
                span = next(left, None)
            if span is not None and span.first <= message.offset():
                yield record_of(message), span
                if span.last == message.offset():
                    span = next(left, None)


def record_of(message: KafkaMessage) -> Record:
    """A message of librdkafka as a record."""
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(message.key(), message.value(), headers, message.timestamp()[1], message.offset())
