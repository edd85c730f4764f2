"""Engine: who runs the queries of views and hands their batches to a publisher.

Spark does (``spark.py``). The simulator of ``tests/simulation`` has one that is scripted, with the same driver above it: so what the driver does
with a batch can be tried through years of faults.

    the engine  cuts batches, writes their positions into the checkpoint before and their commit after, computes rows, keeps what its operators know
    the driver  decides the watermark, publishes, remembers, fences (``publish.py``, ``runner.py``)
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from headwater.graph import Graph, Stream, View
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.definition import Definition
from headwater.pipeline.failed import Failure
from headwater.pipeline.observed import Observed
from headwater.pipeline.operator import Plan
from headwater.pipeline.skips import Skips
from headwater.pipeline.split import Judge
from headwater.pipeline.time import Input
from headwater.pipeline.topics import Positions

__all__ = ["Computed", "Engine", "Fault", "Groups", "Launch", "Prepared", "Query", "Take"]

Take = Callable[[Any, int], None]
"""Takes a batch: its rows, which only the engine knows how to run, and its number."""


class Prepared(msgspec.Struct, frozen=True):
    """A view whose plan is built, ready to be run."""

    view: View
    frame: Any
    """The engine's own: what it runs."""
    timed: dict[str, str]
    """By what the time-outs of its operators go, its publication included."""
    layouts: dict[str, str]
    """How the state of its operators is laid out."""
    shards: int
    inputs: dict[str, Input]
    """Its streams, when it has a watermark; empty otherwise."""
    definition: Definition
    holds: dict[str, dict[str, int]] = {}
    """For operators behind others that hold rows back: which they are, and how far behind the watermark their rows may be."""
    judge: Judge | None = None
    """By what its late rows are told apart."""
    views: tuple[str, ...] = ()
    """The views among its inputs."""
    sources: dict[str, str] = {}
    """By the name of each stream its topic; without those of patterns, and those that are read twice."""
    open_ended: bool = False
    """Whether it reads streams and has no watermark: nothing of it is ever complete."""
    columns: dict[str, str] = {}
    """The columns of its rows, in Spark's notation."""
    batch_records: int = 0
    """How many records a batch takes from each input at most."""
    skips: Skips | None = None
    """What its plan leaves out; None for one that runs in real time."""


class Query(Protocol):
    """A query that runs: what is asked of Spark's own. Any thread may ask."""

    @property
    def isActive(self) -> bool: ...  # noqa: N802

    @property
    def status(self) -> dict[str, Any]:
        """``isTriggerActive``: whether a batch runs."""
        ...

    def exception(self) -> Exception | None:
        """What ended it."""
        ...

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Whether it has ended within so many seconds; raises what ended it."""
        ...

    def stop(self) -> None: ...


class Groups(Protocol):
    """Commits what views have read, for lag tools."""

    def commit(self, view: str, positions: Positions, *, wait: bool = True) -> bool: ...

    def committed(self, view: str) -> Positions: ...

    def close(self) -> None: ...


class Computed(NamedTuple):
    """A batch that has run."""

    notes: list[str]
    """What the shards of the publication have written (``operator.Written``)."""
    seen: Observed


class Fault(NamedTuple):
    """Why a query fails on a record."""

    reason: str
    overflow: bool = False
    """Whether a number was out of range: an aggregate may be the one, and not the record."""


class Launch(NamedTuple):
    """How a query is to run."""

    name: str
    checkpoint: Checkpoint
    interval_ms: int | None
    """How often it looks for records; None: it takes what is there, and ends."""


class Engine(Protocol):
    """Runs queries. One thread starts them; each calls its publisher in a thread of its own, one batch after the other."""

    @property
    def groups(self) -> Groups: ...

    def start(self, slots: int, folder: Path | None) -> None:
        """Before anything else. ``slots``: how many tasks must be able to run at once, 0 for any; ``folder`` is the application's."""

    def partitions(self) -> int:
        """In how many parts a new query keeps what its own operators know."""
        ...

    def prepare(
        self, graph: Graph, view: View, shards: int, *, partitions: Mapping[str, int], in_groups: bool
    ) -> Prepared:
        """The plan of a view. UsageError, naming the view, for whatever is wrong with it."""
        ...

    def run(self, prepared: Prepared, launch: Launch, take: Take) -> Query:
        """Starts a query whose batches ``take`` publishes. A batch is complete when it returns; one that was not is run again at the next start."""
        ...

    def run_in_real_time(self, prepared: Prepared, launch: Launch) -> Query:
        """Starts a query that publishes by itself."""
        ...

    def compute(self, rows: Any, plan: Plan, query: Query | None) -> Computed:
        """Runs the batch under way, by the time and with the state that the plan tells its tasks."""
        ...

    def fault(self, error: Exception) -> Fault | None:
        """What ended a computation, when a record may be at fault; None for faults of the machine, the log or an operator."""
        ...

    def forget_attempt(self, rows: Any, query: Query | None) -> None:
        """Before the batch under way is computed once more with other records: nothing of the attempt before counts."""

    def keys_alone(self, graph: Graph, view: View, failure: Failure) -> list[str] | None:
        """The keys of the rows that a view makes of one record and nothing else; None when its query fails on that."""
        ...

    def repeat(self, rows: Any, plan: Plan) -> None:
        """The same as ``compute`` for a batch that is published already, so that only what the engine's own operators know moves on."""

    def began_ms(self, query: Query) -> int:
        """When the engine has begun to look for the records of the batch under way, by the time of day; it asks one source after the other."""
        ...

    def forget(self, query: Query, reached_us: int) -> None:
        """What the engine's own operators keep for times before that may go, from the next batch on. Never goes back."""

    def held(self, query: Query) -> AbstractContextManager[None]:
        """Inside, the query plans no batch."""
        ...

    def late(self, stream: Stream, starts: Positions, ends: Positions, *, before_us: int) -> Iterable[Any]:
        """The valid records between two positions whose time is before another, as topic, partition, offset, value, time_us."""
        ...

    def invalid(self, stream: Stream, starts: Positions, ends: Positions) -> Iterable[Any]:
        """The invalid records between two positions, as topic, partition, offset, value."""
        ...
