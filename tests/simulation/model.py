"""What clients were promised, and what each kind of reader must therefore see."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.record import Record

__all__ = [
    "Model",
    "Partition",
    "Seen",
    "Sent",
    "Topic",
    "Transaction",
    "Wrong",
    "check_reader",
    "check_time",
    "number",
]

DAY_MS = 86_400_000


class Wrong(AssertionError):  # noqa: N818  it is the outcome of a life
    """A promise was broken."""


@dataclass(eq=False)
class Transaction:
    """``committed`` is None while no client knows: then it is whole or invisible."""

    committed: bool | None = False
    records: list["Sent"] = field(default_factory=list)


@dataclass(eq=False)
class Sent:
    """A record as its producer sees it; ``offset`` is known once it was acknowledged."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    sent_ms: int
    transaction: Transaction | None = None
    offset: int | None = None

    @property
    def certain(self) -> bool:
        """Whether a ``read_committed`` reader must see it."""
        return self.offset is not None and (self.transaction is None or self.transaction.committed is True)

    @property
    def possible(self) -> bool:
        return self.transaction is None or self.transaction.committed is not False


@dataclass
class Partition:
    sent: dict[bytes, Sent] = field(default_factory=dict)
    """By number, which is in a header of the record."""
    deleted_to: int = 0


@dataclass
class Topic:
    """One life of a name: a topic that is made again is another one."""

    name: str
    compacted: bool
    retention_ms: int
    segment_ms: int
    partitions: list[Partition]
    offsets: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    """Of a group and a partition: the offset that was acknowledged, the last one it asked for, and when."""


@dataclass
class Model:
    topics: dict[str, Topic] = field(default_factory=dict)
    numbers: int = 0
    """How many records were sent in this life."""

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers


def number(row: Record) -> bytes:
    return row.headers[0][1] if row.headers else b""


class Seen(NamedTuple):
    """When and from where on readers have looked."""

    start: int
    now_ms: int


def check_reader(topic: Topic, index: int, rows: list[Record], raw: list[Record], seen: Seen) -> None:
    """A ``read_committed`` reader from the log start has seen these rows, a ``read_uncommitted`` one those."""
    where, part = f"{topic.name}-{index}", topic.partitions[index]
    found: dict[Sent, int] = {}
    for row in rows:
        sent = part.sent.get(number(row))
        if sent is None or (sent.key, sent.value) != (row.key, row.value):
            raise Wrong(f"{where}: {row.value!r} at {row.offset} was never sent")
        if sent in found:
            raise Wrong(f"{where}: {row.value!r} is there twice, at {found[sent]} and {row.offset}")
        if sent.offset is not None and sent.offset != row.offset:
            raise Wrong(f"{where}: {row.value!r} was acknowledged at {sent.offset} and is at {row.offset}")
        if not sent.possible:
            raise Wrong(f"{where}: {row.value!r} at {row.offset} is of an aborted transaction")
        found[sent] = row.offset
    if [row.offset for row in rows] != sorted({row.offset for row in rows}):
        raise Wrong(f"{where}: offsets are not in order")
    for row in raw:
        if number(row) not in part.sent:
            raise Wrong(f"{where}: {row.value!r} at {row.offset} was never sent, says an uncommitted reader")
    if topic.compacted:
        check_newest(topic, index, found, seen)
    else:
        check_transactions(where, part, found, seen.start)
        check_kept(topic, index, found, seen)


def check_transactions(where: str, part: Partition, found: dict[Sent, int], start: int) -> None:
    """A transaction without an answer is whole or invisible."""
    mine = set(part.sent.values())
    unknown = {s.transaction for s in mine if s.transaction and s.transaction.committed is None}
    for transaction in unknown:
        here = [s for s in transaction.records if s in mine and s.offset is not None and s.offset >= start]
        seen = [s for s in here if s in found]
        if seen and len(seen) != len(here):
            raise Wrong(f"{where}: {len(seen)} of {len(here)} records of a transaction are visible")


def check_kept(topic: Topic, index: int, found: dict[Sent, int], seen: Seen) -> None:
    where, part, start = f"{topic.name}-{index}", topic.partitions[index], seen.start
    for sent in part.sent.values():
        if not sent.certain or sent in found:
            continue
        if sent.offset >= start:
            raise Wrong(
                f"{where}: acknowledged {sent.value!r} at {sent.offset} is gone, the log starts at {start}"
            )
        expired = topic.retention_ms >= 0 and sent.time_ms < seen.now_ms - topic.retention_ms
        if sent.offset >= part.deleted_to and not expired:
            raise Wrong(
                f"{where}: {sent.value!r} at {sent.offset} is before the log start {start}, and not old"
            )


def check_newest(topic: Topic, index: int, found: dict[Sent, int], when: Seen) -> None:
    """Of each key the newest record, or one after it without an answer; what is too old may be gone."""
    where, part = f"{topic.name}-{index}", topic.partitions[index]
    oldest_ms = when.now_ms - topic.retention_ms if topic.retention_ms >= 0 else 0
    newest: dict[bytes | None, Sent] = {}
    for sent in part.sent.values():
        if sent.certain and (sent.key not in newest or newest[sent.key].offset < sent.offset):
            newest[sent.key] = sent
    last: dict[bytes | None, Sent] = {}
    for sent, offset in found.items():
        if sent.key not in last or found[last[sent.key]] < offset:
            last[sent.key] = sent
    for key, sent in newest.items():
        seen = last.get(key)
        if seen is sent or (seen is None and (sent.value is None or sent.time_ms < oldest_ms)):
            continue
        if seen is None or found[seen] < sent.offset:
            shown = f"{seen.value!r} at {found[seen]}" if seen else "nothing"
            raise Wrong(f"{where}: key {key!r} shows {shown}, its newest is {sent.value!r} at {sent.offset}")


def check_time(where: str, timestamp: int, answer: int, start: int, raw: Iterable[Record]) -> None:
    """The offset of a time is at or before the first record that is not older, and not before the log start."""
    expected = next((r.offset for r in raw if r.timestamp >= timestamp), None)
    if expected is not None and not start <= answer <= expected:
        raise Wrong(f"{where}: time {timestamp} is at {answer}, expected {start} to {expected}")
