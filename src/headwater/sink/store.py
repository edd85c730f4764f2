"""Store: what a sink needs of the place that it keeps in step with a topic. The loop (``sink/loop.py``) is the same for all of them.

The position of a sink is kept where its rows are, never in the log: a batch takes effect together with the offsets behind it, or not at
all. Whatever goes wrong, the loop claims its partitions again and goes on from the position that it is given: there is one way to
start, and it is also the way to recover.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from headwater.access import Access
from headwater.change import Change
from headwater.errors import Away, HeadwaterError

__all__ = [
    "SESSION_MS",
    "Batch",
    "Beginning",
    "Carrying",
    "Dated",
    "Feed",
    "Full",
    "Poison",
    "Store",
    "Superseded",
    "Target",
]


SESSION_MS = 6_000
"""How long the partitions of a killed process wait for another: the least that Kafka allows by default. One that was given up too soon does no harm, its claims are passed."""


class Feed(msgspec.Struct, frozen=True):
    """What a store is told of the records that it will get."""

    sink: str
    """The sink's name: two sinks may keep their positions in one store."""
    topic: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    """The columns of a row in Spark's notation, like ``BIGINT`` or ``STRUCT<`a`: INT>``; those that begin with ``_`` are not among them."""
    log: Access | None = None
    """The log that the topic is in, for a store that keeps its own account there: effects do."""
    append: bool = False
    """Whether each record is a row of its own; otherwise the newest of a key is its row, and one without value deletes it."""
    enveloped: bool = False
    """Whether records are in Debezium's envelope; a store gets the rows inside."""
    session_ms: int = SESSION_MS
    """How long the process that holds a partition may be away before another may have it."""
    versioned: bool = False
    """Whether changes carry a version: those of a real-time view, where an older row may come behind a newer one."""


class Batch(msgspec.Struct, frozen=True):
    """Changes of claimed partitions, those of each in their order, and the offset that comes behind them in each partition."""

    changes: Sequence[Change]
    upto: Mapping[int, int]
    """Every partition of the changes is in it; one without changes has only markers or compacted records to pass, or asks whether the
    partition still stands there."""


class Store(Protocol):
    """One sink's side of a store. One thread calls it; a call that has raised may be made again, after `claim`."""

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Takes partitions over: whatever their holder before writes from now on is refused. Each call is a new claim.

        Gives back the offset that each of them goes on from; one that was never written is missing. Away when the store does not answer.
        """

    def apply(self, batch: Batch) -> None:
        """Makes a batch take effect with its offsets, all of it or nothing; done when it returns.

        Superseded: another has claimed one of the partitions, or it does not stand where it was left (the store was restored from an older
        copy), and nothing was written. Poison: one change can never be taken in, and nothing was written. Away: the store did not answer, and it is not known whether the batch took effect. Full: nothing was written.
        """

    def reset(self) -> None:
        """Forgets all rows and offsets, to be filled from the log's start: the topic was made anew, or has forgotten what we need."""

    def close(self) -> None:
        """Gives back connections; nothing that was applied is lost by it."""


@runtime_checkable
class Dated(Protocol):
    """What a store may do beside: it knows of which topic it was filled, and since when each partition is not known to be complete.

    So a topic that was deleted and made again while no sink ran is noticed, and deletions that the log has forgotten meanwhile too.
    """

    def origin(self) -> str:
        """What `adopt` was given last; empty after `reset`."""

    def adopt(self, origin: str) -> None:
        """Remembers the id of the topic that fills the store."""

    def at_ms(self) -> Mapping[int, int]:
        """By partition, the time up to which it is known to be complete: `known_ms` of what was applied. It never goes back but by `reset`."""


@runtime_checkable
class Carrying(Protocol):
    """What a store may do beside: it goes on by itself with what it has taken in, as effects do. An empty batch asks it how it fares."""

    def release(self, partitions: Collection[int]) -> None:
        """Another is about to claim them: what is under way comes to its end."""


@runtime_checkable
class Beginning(Protocol):
    """What a target may do beside: it notes where a sink begins that has never run."""

    def begin(self, log: Access, sink: str, topic: str) -> None:
        """Called first of all, before the topic is there or a view has its first result; a sink that has begun is left as it is. Away when it cannot be."""


class Target(Protocol):
    """The declaration of a store, as an application writes it: ``hw.sink.Postgres(url)``. Making one opens nothing.

    One that takes rows as they are, whatever their columns, says ``typed = False``, one whose commits are dear wants batches of up to ``batch_records``. One that has something outside to itself, a table or a
    folder, says with ``place(topic)`` what, in words that may be printed: a second sink with the same words is refused.
    """

    @property
    def kind(self) -> str:
        """One word for names and messages: ``postgres``."""

    def check(self, feed: Feed) -> None:
        """UsageError, before anything starts, when such records cannot go there."""

    def open(self, feed: Feed) -> Store:
        """Connects, and makes or migrates what the store needs. Away when it does not answer; UsageError when it never will."""


class Superseded(HeadwaterError):  # noqa: N818  a successor, not a fault
    """Another process has claimed the partition: this one lets go of it."""

    exit_code = 6


class Full(Away):
    """The store is there, and takes nothing more until what it has taken before is done."""


class Poison(HeadwaterError):  # noqa: N818  the record's fault
    """One record can never take effect; ``offset`` in ``partition`` says which. It goes to the dead letters with this message as its reason.

    What may quote the record comes behind the message's first colon: a log says only what comes before (`headwater.sink.letters`).
    """

    def __init__(self, partition: int, offset: int, what: str) -> None:
        super().__init__(what)
        self.partition = partition
        self.offset = offset
