"""Condition: whether a part of an application works, and when it is tried again after a failure.

    starting  it was started, and is not ready yet
    running   it works
    paused    a command has paused it
    failing   it does not work, or has not yet worked long enough since; it is tried again by itself
    stopped   it cannot continue until an operator acts; the error says how
    down      its process does not run

A part is a process, a view, a sink, a worker or a capture. What watches it reports what it sees; this class
decides the state and the time of the next try, and does nothing else.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from headwater.clock import Clock, SystemClock
from headwater.result import LeftOut

__all__ = ["PAUSES_S", "Condition", "PartStatus", "State", "WorkStatus"]

PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Waits before consecutive restarts; the last one is repeated without limit."""
STEADY_S = 60.0
"""After a part has worked this long, its earlier failures no longer count."""
RECOVERED_S = 5.0
"""A part that has failed counts as failing until it has worked this long, or as long as its last pause."""


class State(StrEnum):
    """How a part is."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    FAILING = "failing"
    STOPPED = "stopped"
    DOWN = "down"

    @property
    def is_bad(self) -> bool:
        return self in {State.FAILING, State.STOPPED, State.DOWN}


class WorkStatus(msgspec.Struct, frozen=True):
    """What a worker has done since its process began, and what is in its hands."""

    handled: int
    retried: int
    """Attempts that failed and were followed by another one."""
    dead: int
    """Messages that became dead letters."""
    in_work: int
    """Messages whose handler runs now."""


class PartStatus(msgspec.Struct, frozen=True):
    """One part, as ``headwater status``, ``/health``, the page and ``headwater up`` show it."""

    kind: str
    """``log``, ``console``, ``capture``, ``view``, ``sink``, ``worker``, or ``process`` for several."""
    name: str
    state: State
    since_ms: int
    """Since when it is in this state; a part that fails again and again is failing since the first time."""
    lag_records: int | None = None
    """The records that it has not taken in yet; None if that is not known."""
    lag_ms: int | None = None
    """For a capture: how long after its commit in the database the last record was published."""
    restarts: int = 0
    error: str = ""
    """Why it is failing or stopped; of a part that works, its last error."""
    error_ms: int | None = None
    next_try_ms: int | None = None
    left_out: LeftOut | None = None
    """For a real-time view: how many records it has left out. Results say so of the other views."""
    work: WorkStatus | None = None
    """Of a worker."""


class Condition:
    """The condition of one part. Its owner calls from one thread, or under a lock."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
        steady_s: float = STEADY_S,
        recovered_s: float = RECOVERED_S,
    ) -> None:
        self.state = State.STARTING
        self.error = ""
        self.restarts = 0
        self.failures = 0
        """Failures in a row."""
        self._clock = clock or SystemClock()
        self._pauses_s = pauses_s
        self._steady_s = steady_s
        self._recovered_s = recovered_s
        self._since_ms = self._clock.now_ms()
        self._error_ms: int | None = None
        self._was_begun = False
        self._works_since: float | None = None
        self._pause_s = 0.0
        self._retry_at: float | None = None
        """When the part is started again; None while it runs or is stopped."""

    @property
    def is_due(self) -> bool:
        """Whether a part that has ended is to be started again now."""
        return self._retry_at is not None and self._clock.monotonic() >= self._retry_at

    @property
    def has_ended(self) -> bool:
        """Whether the part does not run, and waits for its next start or for an operator."""
        return self._retry_at is not None or self.state is State.STOPPED

    def begin(self) -> None:
        """The part is started now."""
        self.restarts += self._was_begun
        self._was_begun = True
        self._works_since = self._retry_at = None
        if self.state is not State.FAILING:
            self.failures = 0
            self._move(State.STARTING)

    def work(self) -> None:
        """The part works; called again and again."""
        if self.has_ended:
            return
        now = self._clock.monotonic()
        if self._works_since is None:
            self._works_since = now
        worked_s = now - self._works_since
        if worked_s >= self._steady_s:
            self.failures = 0
        if self.state is not State.FAILING or worked_s >= max(self._recovered_s, self._pause_s):
            self._pause_s = 0.0
            self._move(State.RUNNING)

    def pause(self) -> None:
        """A command has paused the part; called again and again."""
        self._works_since = None
        self._move(State.PAUSED)

    def fail(self, why: str) -> None:
        """The part runs and does not work, because of something outside; it tries again by itself."""
        self._works_since = None
        self._note(why)
        self._move(State.FAILING)

    def end(self, why: str, *, heals: bool = True, slowly: bool = False) -> None:
        """The part has ended. It is started again after a pause, or never if only an operator can help.

        ``slowly``: only an operator can help, who gives no sign of it. It is tried at the longest pauses.
        """
        if self._works_since is not None and self._clock.monotonic() - self._works_since >= self._steady_s:
            self.failures = 0
        self._works_since = None
        self._note(why)
        if not heals:
            self._retry_at = None
            self._move(State.STOPPED)
            return
        self.failures += 1
        self._pause_s = self._pauses_s[-1 if slowly else min(self.failures, len(self._pauses_s)) - 1]
        self._retry_at = self._clock.monotonic() + self._pause_s
        self._move(State.FAILING)

    def status(
        self, kind: str, name: str, *, lag_records: int | None = None, lag_ms: int | None = None
    ) -> PartStatus:
        next_try_ms = None
        if self._retry_at is not None:
            left_s = max(0.0, self._retry_at - self._clock.monotonic())
            next_try_ms = self._clock.now_ms() + round(left_s * 1000)
        return PartStatus(
            kind,
            name,
            self.state,
            self._since_ms,
            lag_records=lag_records,
            lag_ms=lag_ms,
            restarts=self.restarts,
            error=self.error,
            error_ms=self._error_ms,
            next_try_ms=next_try_ms,
        )

    def _note(self, why: str) -> None:
        if why != self.error or self.state is not State.FAILING:
            self.error, self._error_ms = why, self._clock.now_ms()

    def _move(self, state: State) -> None:
        if state is not self.state:
            self.state, self._since_ms = state, self._clock.now_ms()
