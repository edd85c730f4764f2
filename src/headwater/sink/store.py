"""Store: what a sink needs from the place that it keeps in sync with a topic.

The loop (``sink/loop/loop.py``) is the same for all stores. The position of a sink is kept with its rows,
never in the log: a batch takes effect together with the offsets after it, or not at all. After any failure
the loop claims its partitions again and continues from the offsets that the store returns. There is no
other way to start, so this is also the way to recover.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from headwater.access import Access
from headwater.change import Change
from headwater.client.client import Client
from headwater.declare.field_types import FieldType
from headwater.errors import HeadwaterError, MachineError, UnavailableError

__all__ = [
    "SESSION_MS",
    "Batch",
    "DatedStore",
    "DeliveringStore",
    "Full",
    "Poison",
    "SinkFeed",
    "StartRecorder",
    "Store",
    "Superseded",
    "Target",
    "partition_count",
]


ANSWER_S = 10.0
"""How long the log may take to answer."""
SESSION_MS = 6_000
"""How long another process waits for the partitions of a killed one: the shortest session that Kafka allows.

A process that is replaced too early does no harm: its claims are no longer valid."""


class SinkFeed(msgspec.Struct, frozen=True):
    """The records that a store will get: their topic, key and columns, and how to treat them."""

    sink: str
    """The sink's name: two sinks may keep their positions in one store."""
    topic: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    """The columns of a row in Spark's notation, like ``BIGINT`` or ``STRUCT<`a`: INT>``, without hidden
    ones (``_``)."""
    log: Access | None = None
    """The log of the topic, for stores that keep a journal there, as effects do."""
    append: bool = False
    """Each record is a row of its own. Otherwise the newest record of a key is its row, or deletes it."""
    enveloped: bool = False
    """Records are in Debezium's envelope; a store gets the rows inside."""
    session_ms: int = SESSION_MS
    """How long the process that holds a partition may be silent before another process may get it."""
    versioned: bool = False
    """Changes carry a version. Those of a real-time view do: an older row may come after a newer one."""
    type: FieldType | None = None
    """The type of the records of a stream or table, by which they are judged; None for rows of a view."""


class Batch(msgspec.Struct, frozen=True):
    """Changes of claimed partitions, in the order of each, and for each partition the offset after them."""

    changes: Sequence[Change]
    upto: Mapping[int, int]
    """All partitions of the changes are in it.

    A partition without changes has only markers or compacted records to skip, or asks whether the store
    still has its offset."""


class Store(Protocol):
    """One sink's side of a store.

    One thread calls it; a call that has failed may be repeated after `claim`.
    """

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Takes partitions over: from now on, what their previous holder writes is refused.

        Each call is a new claim.

        Returns the offset from which each partition continues, without those that were never written.
        UnavailableError if the store does not answer.
        """

    def apply(self, batch: Batch) -> None:
        """Makes a batch take effect with its offsets, all of it or nothing. It is done when the call returns.

        Superseded: nothing was written; another process has claimed one of the partitions, or the store
        does not have the offset that we left (it was restored from an older copy). Poison: nothing was
        written; one change can never be stored. Full: nothing was written. UnavailableError: the store did
        not answer, and the batch may or may not have taken effect.
        """

    def reset(self) -> None:
        """Removes all rows and offsets, to be filled from the start of the log.

        The topic was created again, or the log no longer has what the store needs.
        """

    def close(self) -> None:
        """Closes connections. Nothing that was applied is lost."""


@runtime_checkable
class DatedStore(Protocol):
    """A store that also knows from which topic it was filled, and up to when each partition is complete.

    So the loop notices that a topic was deleted and created again, or has lost tombstones, while no sink ran.
    """

    def origin(self) -> str:
        """The last argument of `adopt`; empty after `reset`."""

    def adopt(self, origin: str) -> None:
        """Stores the id of the topic that fills the store."""

    def at_ms(self) -> Mapping[int, int]:
        """For each partition, the time up to which it is complete (``complete_ms`` of what was applied).

        Only `reset` sets it back.
        """


@runtime_checkable
class DeliveringStore(Protocol):
    """A store that continues by itself with what it has taken, as effects do.

    An empty batch asks for its failures.
    """

    def release(self, partitions: Collection[int]) -> None:
        """Finishes what is in progress for partitions, before another process claims them."""


@runtime_checkable
class StartRecorder(Protocol):
    """A target that records where a sink begins that has never run."""

    def begin(self, log: Access, sink: str, topic: str) -> None:
        """Called before anything else, even before the topic exists. A sink that has begun is left as it is.

        UnavailableError if it cannot be recorded now.
        """

    def find_start(self, log: Access, sink: str, topic: str) -> Callable[[], None]:
        """Looks where the sink begins, for one that may record nothing yet; what it returns records that."""
        ...


class Target(Protocol):
    """The declaration of a store in an application: ``hw.sink.Postgres(url)``. Declaring opens nothing.

    A target that takes rows with any columns has ``typed = False``; one with expensive commits asks for
    batches of up to ``batch_records``. A target that needs a table or folder for itself names it with
    ``place(topic)``, in words that may be printed: a second sink with the same place is refused.
    """

    @property
    def kind(self) -> str:
        """One word for names and messages: ``postgres``."""

    def check(self, feed: SinkFeed) -> None:
        """UsageError, before anything starts, if such records cannot be stored there."""

    def open(self, feed: SinkFeed) -> Store:
        """Connects, and creates or migrates what the store needs.

        UnavailableError if the store does not answer, UsageError if it never will.
        """


class Superseded(HeadwaterError):  # noqa: N818  a successor, not a fault
    """Another process has claimed the partition: this process must not write to it."""

    exit_code = 6


class Full(UnavailableError):  # noqa: N818  a state that passes
    """The store answers, but takes nothing more until it has finished what it has."""


class Poison(HeadwaterError):  # noqa: N818  the record's fault
    """One record, at ``offset`` of ``partition``, can never be stored.

    It becomes a dead letter with this message.

    The part of the message that may quote the record comes after the first colon: the log of the sink has
    only what comes before (`headwater.sink.dead_letters`).
    """

    def __init__(self, partition: int, offset: int, what: str) -> None:
        super().__init__(what)
        self.partition = partition
        self.offset = offset


def partition_count(feed: SinkFeed) -> int:
    """The number of partitions of a feed's topic; 0 if there is no such topic.

    UnavailableError if the log does not answer.
    """
    if feed.log is None:
        return 0
    client = Client(feed.log, timeout_s=ANSWER_S)
    try:
        return client.partitions().get(feed.topic, 0)
    except MachineError as error:
        raise UnavailableError(error.what, got=error.got) from error
    finally:
        client.close()
