"""Failed records: valid records on which a view's query fails, for ``<view>.failed``, each with the reason.

They fit the type of their stream, but an expression of the query fails on them: a division by zero, a number
out of range, a text that cannot be cast, an exception of a Python function. The transaction of their batch
publishes them, so each is there once.
"""

from collections.abc import Iterable, Iterator

from headwater.client.client import Client
from headwater.decoders import from_json
from headwater.pipeline.engine.engine import Failure
from headwater.pipeline.left_out.side_records import SideRecord, encode, value_text

__all__ = ["FailedRecord", "by_topic", "encoded", "published", "records", "topic"]


class FailedRecord(SideRecord, frozen=True):
    """One such record as its topic holds it; ``value`` is its text, cut and with wrong bytes replaced."""

    reason: str
    value: str | None
    run: str = ""
    """The run of the view that has left it out."""
    definition: str = ""
    """The digest of the definition that the view had then: another query may take the record."""

    @property
    def key(self) -> str:
        """Its place and the run: a view may return to the run before, which has failed on other records."""
        return f"{super().key}@{self.run}"

    @property
    def failure(self) -> Failure:
        return Failure(self.topic, self.partition, self.offset, self.reason)


def topic(view: str) -> str:
    """The topic of a view's failed records."""
    return f"{view}.failed"


def published(client: Client, view: str) -> Iterator[FailedRecord]:
    """The failed records of a view, of the runs to which it may return."""
    values = {record.key(): record.value() for record in client.read([topic(view)])}
    for value in values.values():
        if value is not None:
            yield from_json(value, FailedRecord)


def records(client: Client, failures: Iterable[Failure], run: str, definition: str) -> Iterator[FailedRecord]:
    """Failures with the values of their records, read from the log."""
    for failure in failures:
        start = {failure.topic: {failure.partition: failure.offset}}
        end = {failure.topic: {failure.partition: failure.offset + 1}}
        record = next(iter(client.read([failure.topic], end, since=start)), None)
        value = None if record is None else value_text(record.value())
        yield FailedRecord(
            failure.topic, failure.partition, failure.offset, failure.reason, value, run, definition
        )


def encoded(
    failed: Iterable[FailedRecord], gone: Iterable[FailedRecord] = ()
) -> Iterator[tuple[bytes, bytes | None]]:
    """Failed records as their topic holds them, and a tombstone for each that is to leave it."""
    yield from map(encode, failed)
    for record in gone:
        yield record.key.encode(), None


def by_topic(failures: Iterable[Failure]) -> dict[str, dict[int, list[int]]]:
    """Their offsets by topic and partition, as a result names them."""
    offsets: dict[str, dict[int, list[int]]] = {}
    for failure in sorted(failures):
        offsets.setdefault(failure.topic, {}).setdefault(failure.partition, []).append(failure.offset)
    return offsets
