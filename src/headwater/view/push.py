"""Hub: who is told of which commit, and up to where. No I/O; the callers bring the wake-up and the wire."""

import threading
from collections.abc import Callable, Sequence

import msgspec

from headwater.change import Change
from headwater.clock import Clock, SystemClock
from headwater.position import Position

__all__ = ["Activity", "Commit", "Hub", "Pending", "Subscription"]

PENDING_CHANGES_MAX = 10_000
"""A subscriber that is further behind reads the table again instead of having the changes kept for it."""

Wake = Callable[[], None]


class Commit(msgspec.Struct, frozen=True):
    """What one transaction changed in a view's table, and the position that it reached."""

    changes: Sequence[Change]
    position: Position


class Pending(msgspec.Struct, frozen=True):
    """What a subscriber has to do next: send ``commits``, or read the table again, or end."""

    commits: Sequence[Commit] = ()
    resync: bool = False
    closed: bool = False


class Activity(msgspec.Struct, frozen=True):
    """What has gone through the hub for one view since the process started."""

    changes: int = 0
    changed_at_ms: int | None = None
    position: Position | None = None


class Subscription:
    """One reader's place in the commits of one view, with a bounded queue.

    It guarantees no gap and no repeat, provided that the reader reads the table after subscribing (and
    after each ``resync``), and says with `begin` which position that reading had. Made by `Hub.subscribe`;
    the hub's lock guards it.
    """

    def __init__(self, hub: "Hub", view: str, wake: Wake) -> None:
        self.view = view
        self._hub = hub
        self._wake = wake
        self._floor: Position | None = None
        self._queue: list[Commit] = []
        self._queued = 0
        self._lost = False

    def begin(self, position: Position) -> None:
        """The reader has everything up to ``position``: earlier commits are not handed out again."""
        with self._hub.lock:
            self._floor = position

    def take(self) -> Pending:
        """All that is waiting, in commit order; the queue is empty afterwards."""
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
        """Forgets the subscriber; it may be called twice."""
        self._hub.leave(self)

    def offer(self, commit: Commit, changes_max: int) -> None:
        """Called by the hub under its lock."""
        self._queued += len(commit.changes) + 1
        if self._queued > changes_max:
            self._queue, self._lost = [], True
        if not self._lost:
            self._queue.append(commit)
        self._wake()


class Hub:
    """Passes commits from the delivery thread to subscribers in other threads.

    `publish` never blocks and never waits for a subscriber; its memory is bounded for each of them. The
    commits of one view must be published by one thread, in commit order.
    """

    def __init__(self, clock: Clock | None = None, *, pending_changes_max: int = PENDING_CHANGES_MAX) -> None:
        self.lock = threading.Lock()
        self.closed = False
        self._clock = clock or SystemClock()
        self._changes_max = pending_changes_max
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._watchers: set[Wake] = set()
        self._activity: dict[str, Activity] = {}
        self._sizes: dict[str, tuple[Position, int]] = {}

    def publish(self, view: str, changes: Sequence[Change], position: Position) -> None:
        """Tells all subscribers of ``view``; fits `Delivery` as its ``on_commit``."""
        commit = Commit(changes, position)
        with self.lock:
            was = self._activity.get(view, Activity())
            at = self._clock.now_ms() if changes else was.changed_at_ms
            self._activity[view] = Activity(was.changes + len(changes), at, position)
            for subscription in self._subscriptions.get(view, ()):
                subscription.offer(commit, self._changes_max)
            for wake in self._watchers:
                wake()

    def subscribe(self, view: str, wake: Wake) -> Subscription:
        """A place in the commits of ``view`` from now on; ``wake`` is called when there is something to take.

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
        """What was published for one view so far."""
        with self.lock:
            return self._activity.get(view, Activity())

    def size(self, view: str) -> tuple[Position, int] | None:
        """How many rows a view's table had at a position, if somebody has looked."""
        return self._sizes.get(view)

    def note_size(self, view: str, found: tuple[Position, int]) -> None:
        """Remembers that for others."""
        self._sizes[view] = found

    def subscribers(self, view: str) -> int:
        """How many subscriptions of a view are open."""
        with self.lock:
            return len(self._subscriptions.get(view, ()))

    def close(self) -> None:
        """Ends every subscription: their next `take` says so. The console calls it before it stops."""
        with self.lock:
            self.closed = True
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription.offer(Commit((), Position()), self._changes_max)
            for wake in self._watchers:
                wake()


def _beyond(position: Position, floor: Position) -> bool:
    """Whether a commit at ``position`` holds anything that a reader at ``floor`` has not seen."""
    if position.build != floor.build:
        return position.build > floor.build
    return not floor.covers(position)
