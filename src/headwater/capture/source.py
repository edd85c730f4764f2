"""Source: what the capture loop (``capture/feed.py``) needs of a database.

A source hands over records that are ready for the log, because making them one by one twice is what costs; the loop puts them there,
in one transaction with the position behind them. Transactions of the database are never cut: a reader of the topics sees all of one or
nothing of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload, runtime_checkable

if TYPE_CHECKING:
    from headwater.capture.envelope import Around

__all__ = ["Columns", "Part", "Partial", "Progress", "Record", "Rereadable", "Source", "Unsent"]


class Record(NamedTuple):
    """One record of a change topic."""

    topic: str
    key: bytes | None
    value: bytes | None
    """None behind a delete: the tombstone by which compaction forgets the key."""
    committed_ms: int
    """When the database committed it, for the lag; 0 if that is not known. The log stamps records with the time of their publication."""


class Unsent(NamedTuple):
    """Values of a changed row that the database did not send, since the change did not touch them."""

    columns: Mapping[str, tuple[int, ...]]
    """By name, the type of each."""
    old_key: bytes | None
    """The key of the row before the change; None where it is the same."""
    texts: tuple[str, ...]
    """The key's columns as texts of SQL."""
    transaction: int
    """The one that made the change, as the database counts them."""
    completed: Callable[[Mapping[str, bytes]], bytes]
    """The record's value with these values as JSON; the placeholder is left where there is none."""


class Partial(Record):
    """A record whose row has Debezium's placeholder for what is `unsent`."""

    unsent: Unsent

    @classmethod
    def of(cls, record: Record, unsent: Unsent) -> "Partial":
        made = cls(*record)
        made.unsent = unsent
        return made


class Columns(Sequence[Record]):
    """Records of one topic and one time as two columns, which is how they go into the log: a snapshot makes millions of them.

    Whoever looks at them one by one finds records.
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


class Part(NamedTuple):
    """Some records in the order of their commits, and where the database is behind them."""

    records: Sequence[Record]
    position: str | None
    """What `Source.read` goes on from; None inside a transaction or a table's snapshot that is not at its end."""
    emptied: "tuple[Around, ...]" = ()
    """What stands around the truncates in it with which topics begin anew: rows that are in them and do not come again are to be deleted."""
    truncated: bool = False
    """Whether there may be truncates of the stream among the records: the rows that they leave in topics are to be deleted."""
    partial: bool = False
    """Whether there may be a `Partial` among the records."""


class Progress(NamedTuple):
    """How far a snapshot is; a source that takes one may have it as ``progress``."""

    table: str
    rows: int
    about: int
    """How many rows the server believes the table to have."""


class Source(Protocol):
    """One database with the tables that are captured. One thread calls; what was read is kept by nobody but the caller."""

    def read(self, position: str | None) -> Iterator[Part]:
        """All changes behind a position, for ever; without one, first the rows that the tables have, as a snapshot that fits the log.

        An empty part is a sign of life, at least once a second. CaptureError when the database no longer has what comes behind the
        position, with the way out; any other failure of the database raises Away, and the loop comes back with its last position.
        """

    def confirm(self, position: str) -> None:
        """Everything up to there is durable in the log: the database may forget it. Called from the thread that reads."""

    def close(self) -> None:
        """Ends the connections; slots and the like stay."""


@runtime_checkable
class Rereadable(Protocol):
    """A source whose records may be `Partial`."""

    def reread(self, records: Sequence[Partial]) -> Mapping[bytes, Mapping[str, bytes]]:
        """The unsent values of records of one topic as the table has them now, by key; a row that is gone is left out.

        What they show includes the transactions of these records. Called from the thread that reads, between two parts.
        """
