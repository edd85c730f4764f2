"""Wait: until a view has taken in what was written.

Every batch of a view leaves a result in ``<view>.progress`` that says up to where it has read (``headwater.result``). A position is
covered when a result has read at least so far; what its view made of that is complete, in the view's topic, up to the result's
outputs. These are a position again: of the view, for whoever waits for what reads the view (``lineage.py``).
"""

import contextlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from headwater import lineage
from headwater.access import Log
from headwater.client import TIMEOUT_S, Client, acquaint, consumer
from headwater.clock import Clock, SystemClock
from headwater.config import Settings, load
from headwater.errors import Behind, MachineError, UsageError
from headwater.lineage import History, Mark
from headwater.position import Position
from headwater.result import topic

__all__ = ["Follower", "History", "Mark", "wait"]

WAIT_S = 10.0
TAIL_OFFSETS = 32
"""So far before its end a topic of results is begun: a result and its transaction's marker take two."""
RESULTS_READ = 64
POLL_S = 0.25
CHECK_S = 1.0
"""How long a topic of results counts as there; the client says nothing of one that was deleted, for half a minute or for ever."""
SETTINGS: dict[str, Any] = {
    "auto.offset.reset": "error",
    "reconnect.backoff.max.ms": 1_000,
}
GONE = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")


def wait(
    view: str, at_least: Position | str, timeout: float = WAIT_S, *, log: Log | Settings | None = None
) -> Position:
    """Blocks until ``view`` has taken in all before a position of its input topics, or of those of the views that it reads; returns
    the position of its own topic up to which a reader then has to read.

    ``log`` is an address, an Access or Settings; without it, the settings of file and environment. Raises `Behind` when the time is
    over, UsageError for a view without results and for topics that the view does not read. Who waits often keeps a `Follower`.
    """
    with Follower(log) as follower:
        return follower.wait(view, at_least, timeout)


_decode = msgspec.json.Decoder(Mark).decode


@dataclass(slots=True, eq=False)
class _Following:
    """How a topic of results is read, from the time it is asked for until it is forgotten."""

    begun: int
    """From which offset on."""
    end: int
    """Where it ended when it was asked for."""
    read: int = 0
    """The offset behind the last result."""
    ended: bool = False
    """Whether its end was reached, once."""
    checked: float = 0.0


class Follower:
    """Reads the results of views as they come, with one consumer. Give it back with `close`, or use ``with``.

    `poll` and `wait` may be called by one thread at a time, since the consumer is theirs; all else by any. A view's topic of results is
    read from shortly before its end, and only from its start if no result is found there.
    """

    def __init__(
        self,
        log: Log | Settings | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        """``timeout_s`` is how long the log may take to answer."""
        found = load() if log is None else log
        self._client = Client(found.access if isinstance(found, Settings) else found, timeout_s=timeout_s)
        self._clock = clock or SystemClock()
        self._consumer = consumer(self._client.log, **SETTINGS)
        self._lock = threading.Lock()
        self._histories: dict[str, History] = {}
        self._following: dict[str, _Following] = {}
        self._assigned: dict[str, _Following] = {}
        """What the consumer reads; `poll` makes it what is followed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._consumer.close()
        self._client.close()

    def follow(self, view: str) -> None:
        """Begins to read the results of a view, or looks whether they are still those; UsageError when there are none.

        Its results say which other views it reads: those are followed too, and may be without results.
        """
        self._follow(view)
        for each in self._history(view).views:
            with contextlib.suppress(UsageError):
                self.follow(each)

    def _follow(self, view: str) -> None:
        with self._lock:
            known = self._following.get(view)
            if known and self._clock.monotonic() < known.checked + CHECK_S:
                return
            ends = self._client.end_offsets([topic(view)])
            end = ends.get((topic(view), 0), 0)
            if known and end < known.read:
                self._forget(view)
            if not ends:
                raise UsageError(
                    f"there is no view {view!r} with results", hint="is its name right, and was it started?"
                )
            if view not in self._following:
                self._following[view] = _Following(max(end - TAIL_OFFSETS, 0), end)
            self._following[view].checked = self._clock.monotonic()

    def covering(self, view: str, position: Position) -> Position | None:
        """What `History.covering` says now, also of positions of what the views are made of that it reads."""
        return lineage.covering(self._histories, view, position)

    def complete(self, view: str, held: Position) -> int | None:
        """What `History.complete` says now, and not more than the views that it reads."""
        return lineage.complete(self._histories, view, held)

    def columns(self, view: str) -> Mapping[str, str]:
        """The types of a view's columns in Spark's notation, by the newest of its results."""
        return self._history(view).columns

    def caught_up(self, view: str) -> bool:
        """Whether the results that were there when a view was first followed have been read."""
        reading = self._following.get(view)
        # The marker of a transaction stands behind its result, and is not seen.
        if reading is None or not (reading.ended or reading.read + 1 >= reading.end):
            return False
        return all(self.caught_up(each) for each in self._history(view).views if each in self._following)

    def behind(self, view: str, position: Position, seconds: float) -> Behind:
        return self._history(view).behind(position, seconds)

    def poll(self, seconds: float) -> set[str]:
        """Reads what has come, or waits for it so long; the views that have new results, or whose end was reached."""
        self._assign()
        first = self._consumer.poll(seconds)
        if first is None:
            return set()
        # consume alone would wait for a full batch; with no time to wait it takes what is there.
        news = self._take([first, *self._consumer.consume(RESULTS_READ, 0)])
        for view in sorted(news):
            for each in self._history(view).views:
                if each not in self._following:
                    with contextlib.suppress(UsageError):
                        self.follow(each)
        while more := {view for view, each in list(self._histories.items()) if news & {*each.views}} - news:
            news |= more  # what reads them may have come further by that
        return news

    def wait(self, view: str, at_least: Position | str, timeout: float = WAIT_S) -> Position:
        """`wait`, without a new connection for each call."""
        position = Position.parse(at_least) if isinstance(at_least, str) else at_least
        begun = self._clock.monotonic()
        while True:
            self.follow(view)
            found = self.covering(view, position)
            waited = self._clock.monotonic() - begun
            if found is not None:
                return found
            if waited >= timeout and self._following[view].ended:
                raise self.behind(view, position, timeout)
            if waited >= timeout + TIMEOUT_S:
                raise MachineError(f"log {self._client.log} sends no results of view {view!r}")
            self.poll(min(POLL_S, max(timeout - waited, 0.01)))

    def _history(self, view: str) -> History:
        return self._histories.get(view, History(view))

    def _forget(self, view: str) -> None:
        del self._following[view]
        self._histories.pop(view, None)

    def _assign(self) -> None:
        with self._lock:
            wanted = dict(self._following)
        gone = [view for view, reading in self._assigned.items() if wanted.get(view) is not reading]
        for view in gone:
            del self._assigned[view]
            self._consumer.incremental_unassign([TopicPartition(topic(view), 0)])
        new = wanted.keys() - self._assigned.keys()
        if new:
            acquaint(self._consumer)
        for view in new:
            begun = wanted[view].begun or OFFSET_BEGINNING
            self._consumer.incremental_assign([TopicPartition(topic(view), 0, begun)])
            self._assigned[view] = wanted[view]

    def _take(self, messages: Iterable[Any]) -> set[str]:
        news: set[str] = set()
        with self._lock:
            views = {topic(view): view for view in self._assigned}
            for message in messages:
                view = views.get(message.topic())
                if message.error() is not None:
                    self._note(view, message.error(), news)
                elif view is not None and self._assigned[view] is self._following.get(view):
                    self._following[view].read = message.offset() + 1
                    self._histories[view] = self._history(view).then(_decode(message.value()))
                    news.add(view)
        return news

    def _note(self, view: str | None, error: KafkaError, news: set[str]) -> None:
        """Acts on what the consumer reports of a view; the client itself retries what it can."""
        if error.fatal():
            raise MachineError(f"reading the log failed: {error.str()}")
        if view is None or self._assigned[view] is not self._following.get(view):
            return
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
            if self._following[view].begun and not self._history(view).results:
                self._following[view] = _Following(0, self._following[view].end)
            else:
                self._following[view].ended = True
                news.add(view)
        elif error.name() in (*GONE, "_AUTO_OFFSET_RESET"):  # deleted, and perhaps made again
            self._forget(view)
