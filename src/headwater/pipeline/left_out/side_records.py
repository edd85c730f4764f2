"""Side records: the records that a view leaves out, in the form that the topics for them share.

    invalid   ``<topic>.invalid``   does not fit the type of its stream (``invalid_records.py``)
    late      ``<view>.late``       its event time is before the watermark (``late_records.py``)
    failed    ``<view>.failed``     the query of the view fails on it (``failed_records.py``)

A side record names the place of the record in the log, the reason, and the value as text. Its key is that
place and its topic is compacted, so that a record that is sent again is kept once.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec
from confluent_kafka import Producer

from headwater.access import Access
from headwater.client.client import producer
from headwater.errors import MachineError

__all__ = ["SideRecord", "SideTopic", "encode", "tallied", "value_text"]

Kind = TypeVar("Kind", bound="SideRecord")

VALUE_CHARACTERS_MAX = 1_000
FLUSH_SECONDS_MAX = 120.0
IN_FLIGHT_MAX = 10_000


class SideRecord(msgspec.Struct, frozen=True):
    """The place of a record that was left out. Each kind adds its reason and the text of the value."""

    topic: str
    partition: int
    offset: int

    @property
    def key(self) -> str:
        return f"{self.topic}-{self.partition}-{self.offset}"


def encode(record: SideRecord) -> tuple[bytes, bytes]:
    """The key and the value under which its topic keeps it."""
    return record.key.encode(), msgspec.json.encode(record)


def tallied(records: Iterable[Kind], tally: Counter[str]) -> Iterator[Kind]:
    """The same records, counted by their topic on the way."""
    for record in records:
        tally[record.topic] += 1
        yield record


def value_text(value: bytes | None) -> str | None:
    """The text of a record's value, cut, with wrong bytes replaced."""
    if value is None:
        return None
    return value[: 4 * VALUE_CHARACTERS_MAX].decode(errors="replace")[:VALUE_CHARACTERS_MAX]


class SideTopic:
    """Sends side records outside of a batch's transaction.

    When ``send`` returns, they are safe in the log.
    """

    def __init__(self, log: Access) -> None:
        self._log = log

    def send(self, what: str, records: Iterable[tuple[str, bytes, bytes]]) -> None:
        """Sends records by topic, key and value.

        Raises MachineError, naming ``what``, if the log refuses them.
        """
        errors: list[str] = []
        for topic, key, value in records:
            while len(self._producer) >= IN_FLIGHT_MAX:
                self._producer.poll(0.1)
            self._producer.produce(
                topic, value, key, on_delivery=lambda error, _: errors.append(str(error)) if error else None
            )
        if self._producer.flush(FLUSH_SECONDS_MAX) or errors:
            raise MachineError(f"{what} could not be published", got=errors[0] if errors else "no answer")

    def close(self) -> None:
        self.__dict__.pop("_producer", None)

    @functools.cached_property
    def _producer(self) -> Producer:
        return producer(self._log)
