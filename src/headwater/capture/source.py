"""Source: what the capture loop (``capture/loop/feed.py``) needs from a database.

A source returns records that are ready for the log, because creating objects for each of them twice is
expensive. The loop publishes them in one transaction with the position after them. A transaction of the
database is never divided: a reader of the topics sees all of it or none of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, overload, runtime_checkable

from headwater.capture.messages import Command, Notice

__all__ = [
    "Columns",
    "EventContext",
    "Part",
    "Partial",
    "Progress",
    "Record",
    "RereadSource",
    "SchemaSource",
    "SnapshotSource",
    "Source",
    "Unsent",
]


class Record(NamedTuple):
    """One record of a change topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    """None after a delete: the tombstone with which compaction removes the key."""
    committed_ms: int
    """When the database committed it, for the lag; 0 if unknown. The record's own timestamp is that of its
    publication."""


class Unsent(NamedTuple):
    """Values of a changed row that the database did not send because the change did not touch them."""

    columns: Mapping[str, tuple[int, ...]]
    """The type of each column, by name."""
    old_key: bytes | None
    """The key of the row before the change; None if it is the same."""
    texts: tuple[str, ...]
    """The columns of the key as SQL texts."""
    transaction: int
    """The number of the transaction that made the change, as the database counts them."""
    complete: Callable[[Mapping[str, bytes]], bytes]
    """From JSON values by column to the record's value; a column without a value keeps the placeholder."""


class Partial(Record):
    """A record whose row has Debezium's placeholder for the values that are `unsent`."""

    unsent: Unsent

    @classmethod
    def of(cls, record: Record, unsent: Unsent) -> "Partial":
        partial = cls(*record)
        partial.unsent = unsent
        return partial


class Columns(Sequence[Record]):
    """Records of one topic and one time, stored as columns of keys and values, as the log takes them.

    Its elements are records. A snapshot has millions of them.
    """

    __slots__ = ("committed_ms", "keys", "topic", "values")

    def __init__(
        self, topic: str, keys: list[bytes | None], values: list[bytes | None], committed_ms: int
    ) -> None:
        self.topic = topic
        self.keys = keys
        self.values = values
        self.committed_ms = committed_ms

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> "Columns": ...
    def __getitem__(self, at: int | slice) -> "Record | Columns":
        if isinstance(at, slice):
            return Columns(self.topic, self.keys[at], self.values[at], self.committed_ms)
        return Record(self.topic, self.keys[at], self.values[at], self.committed_ms)


class EventContext(NamedTuple):
    """What the events of several rows have in common."""

    topic: str
    source: str
    """The piece of the source block."""
    created: str
    """A `stamp` of the envelope."""
    at_ms: int
    """When the rows were committed."""


class Part(NamedTuple):
    """Some records in the order of their commits, and the position after them."""

    records: Sequence[Record]
    position: str | None
    """The position from which `Source.read` continues; None inside a transaction or inside a table's
    snapshot."""
    emptied: tuple[EventContext, ...] = ()
    """The contexts of truncates with which a new snapshot begins: rows of the topic that it does not have get
    deleted."""
    truncated: bool = False
    """Whether the records may contain truncates from the stream: the rows of these topics get deleted."""
    partial: bool = False
    """Whether the records may contain a `Partial`."""


class Progress(NamedTuple):
    """How far a snapshot is; a source that takes one may have it as ``progress``."""

    table: str
    rows: int
    about: int
    """The server's estimate of the number of rows of the table."""


class Source(Protocol):
    """One database with its captured tables.

    One thread calls it; it keeps nothing of what it has returned.
    """

    def read(self, position: str | None) -> Iterator[Part]:
        """All changes after a position, without end; without a position, first a snapshot of the tables.

        An empty part is a sign of life; there is a part at least once a second. CaptureError, with a hint, if
        the database no longer has the changes after the position. Any other failure of the database is
        UnavailableError: the loop reads again from its last position.
        """

    def confirm(self, position: str) -> None:
        """Everything up to there is durable in the log: the database may forget it.

        Called by the reading thread.
        """

    def close(self) -> None:
        """Ends the connections; slots and the like remain."""


@runtime_checkable
class RereadSource(Protocol):
    """A source whose records may be `Partial`."""

    def reread(self, records: Sequence[Partial]) -> Mapping[bytes, Mapping[str, bytes]]:
        """The unsent values of records of one topic, by key, as the table has them now, without deleted rows.

        The values include the transactions of these records. Called by the reading thread, between two parts.
        """


@runtime_checkable
class SchemaSource(Protocol):
    """A source that needs the schema versions that are published in ``<name>.schema``."""

    def recall(self, records: list[bytes]) -> None:
        """The values of the topic, oldest first; called before each `Source.read`."""


@runtime_checkable
class SnapshotSource(Protocol):
    """A source of which single tables can get a new snapshot while it runs, and which has notices."""

    notices: list[Notice]
    """The notices since the loop has last published them; the loop clears the list."""

    def with_snapshot(self, position: str, command: Command) -> str:
        """The position with which the command's snapshot is due; CaptureError if it is impossible."""
