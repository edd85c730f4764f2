"""Engine: what the driver asks of the program that runs the queries of views.

Spark is one (``spark_engine.py``). ``tests/simulation`` has a scripted one, with the same driver above it, so
that the driver can be tested through years of faults.

    the engine  cuts batches, writes their positions into the checkpoint before and their commit after each,
                computes rows, and keeps the state of its own operators
    the driver  decides the watermark, publishes, keeps results, fences (``run/publisher.py``,
                ``run/runner.py``)
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from headwater.declare.graph import Graph
from headwater.declare.spec import Stream, View
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.engine.observed import Observed
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.topics import Positions

__all__ = ["Computed", "Engine", "Failure", "Fault", "Groups", "Launch", "Notes", "Query", "Take"]

Take = Callable[[Any, int], None]
"""Takes a batch: its rows, which only the engine can compute, and its number."""


Notes = dict[str, dict[int, str]]
"""By topic and partition, a text beside a committed offset."""


class Query(Protocol):
    """A running query, with the interface of Spark's own. Any thread may call."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802

    @property
    def status(self) -> dict[str, Any]:
        """``isTriggerActive``: whether a batch is running."""
        ...

    def exception(self) -> Exception | None:
        """The error that ended it."""
        ...

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Whether it has ended within this many seconds; raises the error that ended it."""
        ...

    def stop(self) -> None: ...


class Groups(Protocol):
    """Commits the positions of views, for lag tools."""

    def commit(
        self, view: str, positions: Positions, notes: Notes | None = None, *, wait: bool = True
    ) -> bool: ...

    def committed(self, view: str) -> tuple[Positions, Notes]: ...

    def close(self) -> None: ...


class Computed(NamedTuple):
    """What a batch has computed."""

    notes: list[str]
    """What the shards of the publication have written, as JSON (``operator/messages.py``, ``Written``)."""
    seen: Observed


class Fault(NamedTuple):
    """Why a query fails on a record."""

    reason: str
    overflow: bool = False
    """Whether a number was out of range: an aggregate may be the cause, and not the record."""


class Failure(msgspec.Struct, frozen=True, order=True):
    """The place of a record on which a query fails, and the reason."""

    topic: str
    partition: int
    offset: int
    reason: str


class Launch(NamedTuple):
    """How to run a query."""

    name: str
    checkpoint: Checkpoint
    interval_ms: int | None
    """How often it looks for records; None: it reads what is there and ends."""


class Engine(Protocol):
    """Runs queries.

    One thread starts them; each calls its publisher in its own thread, one batch after the other.
    """

    @property
    def groups(self) -> Groups: ...

    def start(self, slots: int, folder: Path | None) -> None:
        """Called first.

        ``slots``: how many tasks must be able to run at once, 0 for any number; ``folder``: the
        application's.
        """

    def partitions(self) -> int:
        """The number of partitions in which a new query keeps the state of the engine's own operators."""
        ...

    def prepare(
        self, graph: Graph, view: View, shards: int, *, partitions: Mapping[str, int], in_groups: bool
    ) -> Prepared:
        """The plan of a view. Raises UsageError, naming the view, for anything wrong with it."""
        ...

    def run(self, prepared: Prepared, launch: Launch, take: Take) -> Query:
        """Starts a query whose batches ``take`` publishes.

        A batch is complete when ``take`` returns; an incomplete one is run again at the next start.
        """
        ...

    def run_in_real_time(self, prepared: Prepared, launch: Launch) -> Query:
        """Starts a query that publishes without the driver."""
        ...

    def compute(self, rows: Any, plan: Plan, query: Query | None) -> Computed:
        """Runs the current batch with the time and the state that the plan gives to its tasks."""
        ...

    def fault(self, error: Exception) -> Fault | None:
        """Why a computation failed, if a record may be the cause.

        None for faults of the machine, the log or an operator.
        """
        ...

    def forget_attempt(self, rows: Any, query: Query | None) -> None:
        """Discards the last attempt, before the current batch is computed again with other records."""

    def keys_alone(self, graph: Graph, view: View, failure: Failure) -> list[str] | None:
        """The keys of the rows that a view makes from one record alone.

        None if its query fails on that record before any aggregate has it, and no keys if it fails after one.
        """
        ...

    def reading(self) -> int:
        """How many records the tasks that run now have read; 0 if that is not known."""
        ...

    def repeat(self, rows: Any, plan: Plan) -> None:
        """Runs a published batch again, so that the state of the engine's own operators advances."""

    def began_ms(self, query: Query) -> int:
        """When the engine began to look for the records of the current batch, as wall-clock time.

        It asks one source after the other.
        """
        ...

    def forget(self, query: Query, reached_us: int) -> None:
        """Lets the engine's own operators drop state for earlier times, from the next batch on.

        Never goes back.
        """

    def held(self, query: Query) -> AbstractContextManager[None]:
        """A context in which the query plans no batch."""
        ...

    def late(self, stream: Stream, starts: Positions, ends: Positions, *, before_us: int) -> Iterable[Any]:
        """The valid records in a range with an earlier time, as topic, partition, offset, value, time_us."""
        ...

    def invalid(self, stream: Stream, starts: Positions, ends: Positions) -> Iterable[Any]:
        """The invalid records between two positions, as topic, partition, offset, value."""
        ...
