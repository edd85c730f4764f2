"""Failed: records that a view's query cannot take, for ``<view>.failed``, each with the reason.

They fit the type of their stream, but an expression of the query fails on them: a division by zero, a number out of range, a text that
is not what it is cast to, an exception of a Python function. The transaction of their batch publishes them, so each is there once.
"""

from collections.abc import Iterable, Iterator

import msgspec

from headwater.client import Client
from headwater.decoders import from_json

__all__ = ["FailedRecord", "Failure", "by_topic", "encoded", "published", "records", "topic"]

VALUE_CHARACTERS_MAX = 1_000


class Failure(msgspec.Struct, frozen=True, order=True):
    """Where a record is that a query fails on, and why."""

    topic: str
    partition: int
    offset: int
    reason: str


class FailedRecord(msgspec.Struct, frozen=True):
    """One such record as its topic holds it; ``value`` is its text, cut and with wrong bytes replaced."""

    topic: str
    partition: int
    offset: int
    reason: str
    value: str | None
    run: str = ""
    """The run of the view that has left it out."""

    @property
    def key(self) -> str:
        """Its place and the run: a view may return to the run before, which has failed on other records."""
        return f"{self.topic}-{self.partition}-{self.offset}@{self.run}"

    @property
    def failure(self) -> Failure:
        return Failure(self.topic, self.partition, self.offset, self.reason)


def topic(view: str) -> str:
    """The topic of the records that a view could not take."""
    return f"{view}.failed"


def published(client: Client, view: str) -> Iterator[FailedRecord]:
    """Those of a view, of the runs that it may return to."""
    found = {record.key(): record.value() for record in client.read([topic(view)])}
    for value in found.values():
        if value is not None:
            yield from_json(value, FailedRecord)


def records(client: Client, failures: Iterable[Failure], run: str) -> Iterator[FailedRecord]:
    """Failures with the values of their records, read from the log."""
    for each in failures:
        here = {each.topic: {each.partition: each.offset}}
        after = {each.topic: {each.partition: each.offset + 1}}
        found = next(iter(client.read([each.topic], after, since=here)), None)
        value = None if found is None else _text(found.value())
        yield FailedRecord(each.topic, each.partition, each.offset, each.reason, value, run)


def encoded(
    found: Iterable[FailedRecord], gone: Iterable[FailedRecord] = ()
) -> Iterator[tuple[bytes, bytes | None]]:
    """Failed records as their topic has them, and a tombstone for each that is to leave it."""
    for each in found:
        yield each.key.encode(), msgspec.json.encode(each)
    for each in gone:
        yield each.key.encode(), None


def by_topic(failures: Iterable[Failure]) -> dict[str, dict[int, list[int]]]:
    """Their offsets by topic and partition, as a result names them."""
    found: dict[str, dict[int, list[int]]] = {}
    for each in sorted(failures):
        found.setdefault(each.topic, {}).setdefault(each.partition, []).append(each.offset)
    return found


def _text(value: bytes | None) -> str | None:
    if value is None:
        return None
    return value[: 4 * VALUE_CHARACTERS_MAX].decode(errors="replace")[:VALUE_CHARACTERS_MAX]
