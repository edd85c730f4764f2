"""WorkList: the messages that a worker holds, and what is due for each. No I/O: calls carry the time.

                 start                  finish: GiveBack
    WAITING ───────────────► RUNNING ──────────────────────► (released)
       │                      │   │     finish: Succeeded, Bury
       │ stop, pause          │   └────────────────────────► ENDING ──► settled
       ▼                      │ time-out
    (released, uncounted)     ▼
                           OVERDUE: released or a dead letter; its handler may end at any time or never

Where the log itself cannot delay a message, it is held until its pause is over (PAUSED), and then released.

A message whose connection was lost is no longer held: others get it. Its handler runs on, and what it says
does not count.
"""

import enum
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from headwater.client.share.link import Delivery
from headwater.client.share.session import Place
from headwater.declare.backoff import Backoff
from headwater.record import Record
from headwater.worker.outcome import Bury, Failed, Outcome, Verdict, judge
from headwater.worker.work import Work

__all__ = ["AHEAD_MAX", "Task", "TaskState", "WorkList"]

AHEAD_S = 0.2
"""Messages are fetched ahead that handlers will probably begin within this time."""
AHEAD_MAX = 500
PAUSED_MAX = 500
CONCLUDED_MAX = 1_000
STUCK = 2
"""A call that has run for so many times its time keeps a key from its next message for good."""
RENEWALS_PER_LOCK = 3
"""A lock is renewed after a third of its time, so that two renewals may come too late."""
NO_WORK = Work()
WEIGHT = 0.1
"""Of the last handler, in the moving mean of how long they take."""


class TaskState(enum.Enum):
    """What the worker does with a message."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    """The handler has ended; what follows is not yet acknowledged."""
    OVERDUE = "overdue"
    """The handler has not ended in time."""
    PAUSED = "paused"
    """It has failed and is held until its pause is over."""
    GONE = "gone"
    """It is no longer held."""


@dataclass(slots=True, eq=False)
class Task:
    """One message in the hands of a worker."""

    topic: str
    place: Place
    record: Record
    attempt: int
    """How often the message was delivered, this time included."""
    renew_at: float
    state: TaskState = TaskState.WAITING
    begun: float = 0.0
    is_lost: bool = False
    """Whether its handler runs though the message is no longer held."""
    is_committing: bool = False
    """Whether its acknowledgement is part of a transaction, which keeps it locked."""
    work: Work = field(default=NO_WORK, repr=False)
    """What its handler gets, and what that has written."""

    @property
    def id(self) -> str:
        return f"{self.topic}-{self.place[1]}-{self.record.offset}"

    @property
    def order(self) -> tuple[Place, bytes] | None:
        """What the messages have in common that are handled one after the other; None if it has no key."""
        return None if self.record.key is None else (self.place, self.record.key)


class WorkList:
    """Belongs to the thread of its worker.

    With ``in_order`` no two handlers run for messages of one key, whatever is delivered: a message whose
    handler runs for too long is held until that has ended, and one that was delivered again waits for it too.
    """

    def __init__(
        self,
        concurrency: int,
        timeout_s: float,
        policy: Backoff,
        chance: Callable[[], float],
        *,
        in_order: bool = False,
        with_checks: bool = False,
    ) -> None:
        """``with_checks``: messages with a key wait for `admit` before they begin, after `to_check`."""
        self._concurrency = concurrency
        self._in_order = in_order
        self._with_checks = with_checks
        self._unchecked: set[Task] = set()
        self._to_check: list[Task] = []
        self._timeout_s = timeout_s
        self._policy = policy
        self._chance = chance
        self._held: dict[tuple[Place, int], Task] = {}
        """All messages that are held, by partition and offset."""
        self._waiting: deque[Task] = deque()
        self._running: set[Task] = set()
        """Those whose handler runs and is not overdue, also of messages that are no longer held."""
        self._overdue: set[Task] = set()
        self._paused: dict[Task, float] = {}
        self._busy: set[tuple[Place, bytes]] = set()
        """In order: what has a handler that runs, overdue ones too."""
        self._mean_s: float | None = None
        self._concluded: dict[tuple[Place, int], tuple[Task, Verdict]] = {}
        """Messages that have ended, but whose end could not be stored: for when they come again."""

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def running(self) -> int:
        """Handlers that run, without overdue ones."""
        return len(self._running)

    @property
    def hung(self) -> int:
        """Handlers that were given up and have not ended."""
        return len(self._overdue)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in work."""
        return not self._held and not self._running

    def room(self) -> int:
        """How many messages to fetch: as many as can begin at once, and some ahead if handlers are quick."""
        ahead = 0
        if self._mean_s is not None:
            quick = self._concurrency * AHEAD_S / max(self._mean_s, 1e-6)
            ahead = 0 if self._mean_s > AHEAD_S else min(math.ceil(quick), AHEAD_MAX)
        return max(
            0, self._concurrency + ahead - len(self._running) - len(self._waiting) - len(self._unchecked)
        )

    def take(self, deliveries: Iterable[Delivery], now: float, lock_s: float) -> list[tuple[Task, Verdict]]:
        """Takes messages over. Returns those that end without calling the handler, and how."""
        ended: list[tuple[Task, Verdict]] = []
        for delivery in deliveries:
            renew_at = now + lock_s / RENEWALS_PER_LOCK
            task = Task(delivery.topic, delivery.place, delivery.record, delivery.deliveries, renew_at)
            earlier = self._held.get((delivery.place, delivery.record.offset))
            if earlier is not None:  # its lock has ended without our notice
                self.drop(earlier)
            self._held[delivery.place, delivery.record.offset] = task
            concluded = self._conclusion(task)
            if concluded is not None:
                task.state = TaskState.ENDING
                ended.append((task, concluded))
            elif delivery.deliveries > self._policy.attempts:
                count = delivery.deliveries - 1
                task.state = TaskState.ENDING
                why = f"{count} deliveries ended without an outcome: the process died or hung"
                ended.append((task, Bury(why)))
            elif self._with_checks and task.order is not None:
                self._unchecked.add(task)
                self._to_check.append(task)
            else:
                self._waiting.append(task)
        return ended

    def to_check(self) -> list[Task]:
        """Messages that were taken over since the last call, and may begin only after a check."""
        tasks, self._to_check = self._to_check, []
        return tasks

    def admit(self, task: Task, verdict: Verdict | None) -> bool:
        """After the check: it may begin, or ends with a verdict. Returns whether it is still held."""
        if task not in self._unchecked:
            return False
        self._unchecked.remove(task)
        if verdict is None:
            self._waiting.append(task)
        else:
            task.state = TaskState.ENDING
        return True

    def start(self, now: float) -> Task | None:
        """The next message whose handler is to be called now, if there is one."""
        if len(self._running) >= self._concurrency:
            return None
        task = self._next()
        if task is None:
            return None
        task.state, task.begun = TaskState.RUNNING, now
        self._running.add(task)
        return task

    def finish(self, task: Task, outcome: Outcome, now: float) -> Verdict | None:
        """What follows from the outcome; None if the message is no longer held, so that nothing does."""
        if task.order is not None:
            self._busy.discard(task.order)
        if task in self._overdue:
            self._overdue.remove(task)
            return None if task.is_lost or not self._in_order else self._too_late(task)
        if task not in self._running:
            return None
        self._running.remove(task)
        seconds = now - task.begun
        self._mean_s = seconds if self._mean_s is None else self._mean_s + WEIGHT * (seconds - self._mean_s)
        if task.is_lost:
            task.state = TaskState.GONE
            return None
        task.state = TaskState.ENDING
        return judge(outcome, task.attempt, self._policy, self._chance())

    def overdue(self, now: float) -> list[tuple[Task, Verdict | None]]:
        """Handlers that have run for too long since the last call, and what becomes of their messages.

        None: nothing yet, or nothing any more.
        """
        late: list[tuple[Task, Verdict | None]] = []
        for task in [task for task in self._running if now - task.begun >= self._timeout_s]:
            self._running.remove(task)
            self._overdue.add(task)
            if not task.is_lost:
                task.state = TaskState.OVERDUE
            waits = task.is_lost or self._in_order
            late.append((task, None if waits else self._too_late(task)))
        return late

    def stuck(self, now: float) -> Task | None:
        """A message whose handler does not end, so that those of its key after it would wait for ever."""
        if not self._in_order:
            return None
        limit = STUCK * self._timeout_s
        return next((task for task in self._overdue if task.order and now - task.begun >= limit), None)

    def renewals(self, now: float, lock_s: float) -> Iterator[Task]:
        """Messages whose lock is to be renewed now."""
        for task in self._held.values():
            if task.renew_at <= now and not task.is_committing:
                task.renew_at = now + lock_s / RENEWALS_PER_LOCK
                yield task

    def settle(self, task: Task) -> None:
        """The message is no longer held: it was acknowledged, or released."""
        self._paused.pop(task, None)
        if not task.is_lost:
            self._held.pop((task.place, task.record.offset), None)
        if task.state is not TaskState.OVERDUE:
            task.state = TaskState.GONE

    def lose(self, places: Iterable[Place]) -> int:
        """All that is held of these partitions is now others'. Returns how many messages that are."""
        gone = set(places)
        lost = [task for task in self._held.values() if task.place in gone]
        for task in lost:
            self._lose(task)
        self._waiting = deque(task for task in self._waiting if not task.is_lost)
        return len(lost)

    def give_back(self) -> list[Task]:
        """The messages whose handler was not called. They are no longer held, and to be released."""
        tasks, self._waiting = [*self._waiting, *self._unchecked], deque()
        self._unchecked.clear()
        for task in tasks:
            self.settle(task)
        return tasks

    def conclude_later(self, task: Task, verdict: Verdict) -> None:
        """Its end could not be stored, and it is no longer held: it ends in the same way when it comes again.

        What its handler has written is still with the task.
        """
        self.drop(task)
        self._concluded[task.place, task.record.offset] = task, verdict
        if len(self._concluded) > CONCLUDED_MAX:
            del self._concluded[next(iter(self._concluded))]

    def pause(self, task: Task, until: float) -> bool:
        """Holds a message that has failed; returns False if too many are held already."""
        if task.is_lost or len(self._paused) >= PAUSED_MAX:
            return False
        task.state = TaskState.PAUSED
        self._paused[task] = until
        return True

    def paused_until(self, now: float) -> list[Task]:
        """The messages whose pause is over; they are no longer held, and to be released."""
        due = [task for task, until in self._paused.items() if until <= now]
        for task in due:
            self.settle(task)
        return due

    def find(self, place: Place, offset: int) -> Task | None:
        return self._held.get((place, offset))

    def drop(self, task: Task) -> None:
        """One message is now others': its lock could not be renewed, or its transaction has failed."""
        self._lose(task)
        if task.state is TaskState.GONE:
            self._waiting = deque(other for other in self._waiting if other is not task)

    def _next(self) -> Task | None:
        """Takes the first message that may begin: in order, one whose key has no handler that runs."""
        if not self._in_order:
            return self._waiting.popleft() if self._waiting else None
        task = next((task for task in self._waiting if task.order not in self._busy), None)
        if task is not None:
            self._waiting.remove(task)
            if task.order is not None:
                self._busy.add(task.order)
        return task

    def _too_late(self, task: Task) -> Verdict:
        outcome = Failed(f"TimeoutError: the handler ran for more than {self._timeout_s:g} s")
        return judge(outcome, task.attempt, self._policy, self._chance())

    def _conclusion(self, task: Task) -> Verdict | None:
        """How a message ends that has ended before. One that the group was set back to begins again."""
        earlier, verdict = self._concluded.pop((task.place, task.record.offset), (None, None))
        if earlier is None or earlier.attempt >= task.attempt:
            return None
        task.work = earlier.work
        return verdict

    def _lose(self, task: Task) -> None:
        self._paused.pop(task, None)
        self._unchecked.discard(task)
        key = task.place, task.record.offset
        if self._held.get(key) is task:  # it may have been delivered to us again
            del self._held[key]
        task.is_lost = True
        if task.state is not TaskState.RUNNING:
            task.state = TaskState.GONE
