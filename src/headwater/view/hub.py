"""Hub: passes commits of view tables on to subscribers.

No I/O: the callers bring the wake-up and the wire.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from headwater.change import Change
from headwater.clock import Clock, SystemClock
from headwater.position import Position

__all__ = ["Activity", "Hub", "Pending", "Subscription", "TableCommit"]

MINUTE_S = 60
PENDING_CHANGES_MAX = 10_000
"""A subscriber that lags by more reads the table again: its changes are not kept."""

Wake = Callable[[], None]


class TableCommit(msgspec.Struct, frozen=True):
    """The changes of one transaction in a view's table, and the position after it."""

    changes: Sequence[Change]
    position: Position


class Pending(msgspec.Struct, frozen=True):
    """What a subscriber does next: send ``commits``, read the table again (``resync``), or end."""

    commits: Sequence[TableCommit] = ()
    resync: bool = False
    closed: bool = False


class Activity(msgspec.Struct, frozen=True):
    """The commits of one view since the process started."""

    changes: int = 0
    changed_at_ms: int | None = None
    position: Position | None = None


class Subscription:
    """One reader's place in the commits of one view, with a bounded queue.

    It guarantees no gap and no repeat if the reader reads the table after subscribing, and after each
    ``resync``, and calls `begin` with the position of what it has read. `Hub.subscribe` creates it; the
    hub's lock guards it.
    """

    def __init__(self, hub: "Hub", view: str, wake: Wake) -> None:
        self.view = view
        self._hub = hub
        self._wake = wake
        self._floor: Position | None = None
        self._queue: list[TableCommit] = []
        self._queued = 0
        self._lost = False

    def begin(self, position: Position) -> None:
        """The reader has everything up to ``position``: `take` leaves earlier commits out."""
        with self._hub.lock:
            self._floor = position

    def take(self) -> Pending:
        """All queued commits, in order; the queue is empty afterwards."""
        with self._hub.lock:
            if self._hub.closed:
                return Pending(closed=True)
            commits, lost = self._queue, self._lost
            self._queue, self._queued, self._lost = [], 0, False
            floor = self._floor
        if floor is not None:
            commits = [commit for commit in commits if _beyond(commit.position, floor)]
            lost = lost or any(commit.position.build > floor.build for commit in commits)
        return Pending(resync=True) if lost else Pending(commits)

    def close(self) -> None:
        """Ends the subscription; may be called twice."""
        self._hub.leave(self)

    def offer(self, commit: TableCommit, changes_max: int) -> None:
        """Adds a commit. Called by the hub under its lock."""
        self._queued += len(commit.changes) + 1
        if self._queued > changes_max:
            self._queue, self._lost = [], True
        if not self._lost:
            self._queue.append(commit)
        self._wake()


class Hub:
    """Passes commits from the delivery thread to subscribers in other threads.

    `publish` never waits for a subscriber, and keeps a bounded number of changes for each. One thread
    publishes the commits of a view, in commit order.
    """

    def __init__(self, clock: Clock | None = None, *, pending_changes_max: int = PENDING_CHANGES_MAX) -> None:
        self.lock = threading.Lock()
        self.closed = False
        self._clock = clock or SystemClock()
        self._changes_max = pending_changes_max
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._watchers: set[Wake] = set()
        self._activity: dict[str, Activity] = {}
        self._seconds: dict[str, deque[tuple[int, int]]] = {}
        """By view, the seconds in which it has changed, with the number of changes."""
        self._sizes: dict[str, tuple[Position, int]] = {}

    def publish(self, view: str, changes: Sequence[Change], position: Position) -> None:
        """Passes a commit to all subscribers of ``view``; can be the ``on_commit`` of `Delivery`."""
        commit = TableCommit(changes, position)
        with self.lock:
            before = self._activity.get(view, Activity())
            at = self._clock.now_ms() if changes else before.changed_at_ms
            self._activity[view] = Activity(before.changes + len(changes), at, position)
            if changes:
                self._count(view, len(changes))
            for subscription in self._subscriptions.get(view, ()):
                subscription.offer(commit, self._changes_max)
            for wake in self._watchers:
                wake()

    def subscribe(self, view: str, wake: Wake) -> Subscription:
        """A place in the commits of ``view`` from now on; ``wake`` is called when there is a commit to take.

        ``wake`` runs in the publishing thread and under the hub's lock: it may only signal.
        """
        subscription = Subscription(self, view, wake)
        with self.lock:
            self._subscriptions.setdefault(view, set()).add(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Ends a subscription."""
        with self.lock:
            self._subscriptions.get(subscription.view, set()).discard(subscription)

    def watch(self, wake: Wake) -> Callable[[], None]:
        """Calls ``wake`` after every commit of any view, until the returned function is called."""
        with self.lock:
            self._watchers.add(wake)

        def end() -> None:
            with self.lock:
                self._watchers.discard(wake)

        return end

    def activity(self, view: str) -> Activity:
        """The commits of one view so far."""
        with self.lock:
            return self._activity.get(view, Activity())

    def minute(self, view: str) -> tuple[int, ...]:
        """The number of changes in each of the last sixty seconds; the last one is not over yet."""
        with self.lock:
            now, counted = int(self._clock.monotonic()), dict(self._seconds.get(view, ()))
        return tuple(counted.get(second, 0) for second in range(now - MINUTE_S + 1, now + 1))

    def _count(self, view: str, changes: int) -> None:
        now = int(self._clock.monotonic())
        seconds = self._seconds.setdefault(view, deque(maxlen=MINUTE_S))
        if seconds and seconds[-1][0] == now:
            changes += seconds.pop()[1]
        seconds.append((now, changes))

    def size(self, view: str) -> tuple[Position, int] | None:
        """The number of rows of a view's table at a position, if a reader has counted them."""
        return self._sizes.get(view)

    def note_size(self, view: str, size: tuple[Position, int]) -> None:
        """Keeps a size for other readers."""
        self._sizes[view] = size

    def subscribers(self, view: str) -> int:
        """The number of open subscriptions of a view."""
        with self.lock:
            return len(self._subscriptions.get(view, ()))

    def close(self) -> None:
        """Ends all subscriptions: their next `take` returns ``closed``.

        The console calls it before it stops.
        """
        with self.lock:
            self.closed = True
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription.offer(TableCommit((), Position()), self._changes_max)
            for wake in self._watchers:
                wake()


def _beyond(position: Position, floor: Position) -> bool:
    """Whether a commit at ``position`` has changes that a reader at ``floor`` has not seen."""
    if position.build != floor.build:
        return position.build > floor.build
    return not floor.covers(position)
