"""Start: how a driver continues a view, decided by what the log, the checkpoint and the plan say.

The cases are tables. The first case that holds decides, and DESIGN.md shows the tables as they are (``make
start-page``). *c* is the last batch that the checkpoint has closed, *r* the batch of the newest result.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar, cast

from headwater.errors import UsageError
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.definition import definition
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.state.layouts import GROUPS
from headwater.result import Result, topic

__all__ = [
    "HISTORY_CASES",
    "PLAN_CASES",
    "Case",
    "Continuation",
    "History",
    "Start",
    "check_plan",
    "start_of",
]


class Start(StrEnum):
    """How a view starts."""

    FRESH = "fresh"
    RESUMED = "resumed"
    REPEATED = "repeated"
    REFUSED = "refused"


class History(NamedTuple):
    """What the log and the checkpoint say of one run of a view."""

    view: str
    run: str
    closed: int
    """*c*: the last batch that the checkpoint has closed, or -1."""
    newest: Result | None
    """The newest result that readers see; of a run that is still catching up, its own."""
    batches: Collection[int]
    """The batches of the run whose results are there."""
    partitions: int
    """The number of partitions of the topic to which the run publishes."""

    @property
    def batch(self) -> int:
        """*r*: the batch of the newest result, or -1."""
        return self.newest.batch if self.newest is not None else -1


class Continuation(NamedTuple):
    """The last result of a run, and the plan with which it is to continue."""

    view: str
    last: Result
    prepared: Prepared

    @property
    def shards(self) -> dict[str, int]:
        """By operator, the number of shards that its state has."""
        return {name: len(chains) for name, chains in self.last.state.items()}

    @property
    def wanted(self) -> dict[str, int]:
        """By operator, the number of shards in the plan."""
        return dict.fromkeys(self.prepared.timed, self.prepared.shards)


Subject = TypeVar("Subject")
Verdict = TypeVar("Verdict", bound=StrEnum)


@dataclass(frozen=True)
class Case(Generic[Subject, Verdict]):
    """One line of a table."""

    when: str
    """The condition, in words."""
    verdict: Verdict
    then: str
    """What the driver does, or why it refuses."""
    holds: Callable[[Subject], bool]
    error: Callable[[Subject], UsageError] | None = None
    """For a refusal."""


def start_of(history: History) -> Start:
    """How a run starts. Raises UsageError if it cannot."""
    for case in HISTORY_CASES:
        if case.holds(history):
            if case.error is not None:
                raise case.error(history)
            return case.verdict
    raise AssertionError(history)


def check_plan(view: str, last: Result, prepared: Prepared) -> None:
    """Raises UsageError if a run cannot continue with the plan that the view has now."""
    subject = Continuation(view, last, prepared)
    for case in PLAN_CASES:
        if case.error is not None and case.holds(subject):
            raise case.error(subject)


# ---- refusals ------------------------------------------------------------------------------------------


def _refusal(view: str, why: str, *, got: str = "", expected: str = "", command: str = "reset") -> UsageError:
    commands = {"reset": f"headwater view reset {view}", "rebuild": f"headwater view rebuild {view} APP"}
    return UsageError(
        f"view {view!r} cannot continue: {why}",
        got=got,
        expected=expected,
        hint=f"build it again from the log: {commands[command]}",
    )


def _other_run(history: History) -> UsageError:
    run = history.newest.run if history.newest is not None else ""
    return _refusal(
        history.view,
        "its topic was written by another run",
        got=f"run {run} up to batch {history.batch}, and a checkpoint of run {history.run}",
        expected="the checkpoint that made it (was it deleted, or does another application use the name?)",
    )


def _apart(why: str) -> Callable[[History], UsageError]:
    """For a log and a checkpoint that are not of one history."""

    def error(history: History) -> UsageError:
        ends = f"the checkpoint ends with batch {history.closed}, {topic(history.view)} with {history.batch}"
        return _refusal(history.view, why, got=ends)

    return error


def _no_result_before(history: History) -> UsageError:
    batch = history.batch
    return _refusal(
        history.view,
        "results are missing",
        got=f"batch {batch}, which Spark has not closed, without the one before it",
        expected=f"batch {batch - 1} in {topic(history.view)} too: batch {batch} is repeated from its state",
    )


def _other_partitions(history: History) -> UsageError:
    return _refusal(
        history.view,
        "keys would move to other partitions of its topic",
        got=f"{history.partitions} partitions",
        expected=str(history.newest.partitions if history.newest is not None else 0),
    )


def _other_definition(subject: Continuation) -> UsageError:
    error = definition.refusal(subject.view, subject.last.parts, subject.prepared.definition)
    return cast("UsageError", error)  # there is one, since the case holds


def _other_shards(subject: Continuation) -> UsageError:
    return _refusal(
        subject.view,
        "its operators or shards have changed",
        got=str(subject.wanted),
        expected=str(subject.shards),
        command="rebuild",
    )


def _no_groups(subject: Continuation) -> UsageError:
    return _refusal(
        subject.view,
        "its rows are stored where Spark has grouped them",
        expected="a query that ends with a groupBy of columns of its key only",
        command="rebuild",
    )


# ---- the tables ----------------------------------------------------------------------------------------

HISTORY_CASES: tuple[Case[History, Start], ...] = (
    Case(
        "the newest result is another run's",
        Start.REFUSED,
        "the checkpoint was deleted, or another application uses the name",
        lambda history: history.newest is not None and history.newest.run != history.run,
        _other_run,
    ),
    Case(
        "*r* > *c* + 1",
        Start.REFUSED,
        "the checkpoint is from an earlier time",
        lambda history: history.batch > history.closed + 1,
        _apart("the checkpoint is from an earlier time"),
    ),
    Case(
        "*r* < *c*",
        Start.REFUSED,
        "results are missing",
        lambda history: history.batch < history.closed,
        _apart("results are missing"),
    ),
    Case(
        "*r* = *c* + 1 > 0, and the result of *r* - 1 is gone",
        Start.REFUSED,
        "results are missing: *r* would be repeated from an empty state, and Spark's own operators "
        "downstream of ours would keep what it computes",
        lambda history: history.batch > max(history.closed, 0) and history.batch - 1 not in history.batches,
        _no_result_before,
    ),
    Case(
        "the topic has another number of partitions than *r* says",
        Start.REFUSED,
        "keys would move",
        lambda history: history.newest is not None and history.newest.partitions != history.partitions,
        _other_partitions,
    ),
    Case(
        "there is no result",
        Start.FRESH,
        "begin with batch 0",
        lambda history: history.newest is None,
    ),
    Case(
        "*r* = *c*",
        Start.RESUMED,
        "continue with *c* + 1",
        lambda history: history.batch == history.closed,
    ),
    Case(
        "*r* = *c* + 1",
        Start.REPEATED,
        "the crash came between the transaction and Spark's commit: run *r* again, since Spark's own state "
        "must advance, and discard its output. If its input is not that of the result, the view is refused: "
        "the batch was cut again, differently",
        lambda history: history.batch == history.closed + 1,
    ),
)
"""What the log and the checkpoint say."""

PLAN_CASES: tuple[Case[Continuation, Start], ...] = (
    Case(
        "the plan has another definition",
        Start.REFUSED,
        "the state would mean something else (`pipeline/definition/definition.py`)",
        lambda subject: (
            definition.refusal(subject.view, subject.last.parts, subject.prepared.definition) is not None
        ),
        _other_definition,
    ),
    Case(
        "the plan has other operators, or another number of shards",
        Start.REFUSED,
        "entries would be in other shards",
        lambda subject: subject.shards != subject.wanted,
        _other_shards,
    ),
    Case(
        "rows are stored where Spark has grouped them, and the plan does not end with that groupBy",
        Start.REFUSED,
        "only Spark knows the shard of a key",
        lambda subject: subject.last.layouts.get(PUBLISH) == GROUPS != subject.prepared.layouts.get(PUBLISH),
        _no_groups,
    ),
)
"""What the plan of the view says of the last result."""
