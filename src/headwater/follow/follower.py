"""Follower: waits until a view includes what was written.

Each batch of a view publishes a result in ``<view>.progress`` that says up to where it has read
(``headwater.result``). A position is covered when a result has read at least so far; what the view computed
from that is complete, in the view's topic, up to the outputs of the result. The outputs are again a position,
of the view, for readers that wait for a view that reads this one (``lineage.py``).
"""

import contextlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, Client, acquaint, consumer
from headwater.client.poll import TOPIC_MISSING, poll_batch
from headwater.clock import Clock, SystemClock
from headwater.config import Settings, load
from headwater.errors import MachineError, NotReachedError, UsageError
from headwater.follow import lineage
from headwater.follow.lineage import History, Milestone
from headwater.position import Position
from headwater.result import LeftOut, topic

__all__ = ["Follower", "History", "Milestone", "wait"]

WAIT_S = 10.0
TAIL_OFFSETS = 32
"""How far before its end a topic of results is first read.

A result and the marker of its transaction take two.
"""
RESULTS_READ = 64
POLL_S = 0.25
CHECK_S = 1.0
"""How long a topic of results is assumed to exist.

The client may take long, or for ever, to report its deletion.
"""
SETTINGS: dict[str, Any] = {
    "auto.offset.reset": "error",
    "reconnect.backoff.max.ms": 1_000,
}


def wait(
    view: str, at_least: Position | str, timeout: float = WAIT_S, *, log: Log | Settings | None = None
) -> Position:
    """Blocks until a view includes everything before a position.

    Returns the position of the view that includes it. ``at_least`` is a position of topics that the view
    reads, directly or through other views: what `Writer.send` returns. A reader of the view's topic that has
    read up to the returned position has all that the view computed from it. ``log`` is an address, an Access
    or Settings; by default the settings of file and environment.

    Raises `NotReachedError` after ``timeout`` seconds, and UsageError for a view without results and for
    topics that the view does not read. Each call opens a connection; a program that waits often keeps a
    `Follower`.
    """
    with Follower(log) as follower:
        return follower.wait(view, at_least, timeout)


_decode = msgspec.json.Decoder(Milestone).decode


@dataclass(slots=True, eq=False)
class _Tail:
    """How far a topic of results is read."""

    begin: int
    """The offset at which reading begins."""
    end: int
    """The end of the topic when reading began."""
    read: int = 0
    """The offset after the last result that was read."""
    ended: bool = False
    """Whether the end of the topic was ever reached."""
    checked: float = 0.0
    """When the topic was last known to exist."""


class Follower:
    """Reads the results of views as they are published, with one consumer, and waits for positions.

    End it with `close`, or use ``with``. `poll` and `wait` use the consumer, so one thread at a time may call
    them; all other methods may be called by any thread. A topic of results is read from shortly before its
    end, and from its start only if there is no result.
    """

    def __init__(
        self,
        log: Log | Settings | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        """``log`` as for `wait`; ``timeout_s`` is how long the log may take to answer."""
        source = load() if log is None else log
        access = source.access if isinstance(source, Settings) else source
        self._client = Client(access, timeout_s=timeout_s)
        self._clock = clock or SystemClock()
        self._consumer = consumer(self._client.log, **SETTINGS)
        self._lock = threading.Lock()
        self._histories: dict[str, History] = {}
        self._following: dict[str, _Tail] = {}
        self._assigned: dict[str, _Tail] = {}
        """What the consumer reads; `poll` adapts it to what is followed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        self._consumer.close()
        self._client.close()

    def wait(self, view: str, at_least: Position | str, timeout: float = WAIT_S) -> Position:
        """The same as the function `wait`, over the connection of this follower."""
        position = Position.parse(at_least) if isinstance(at_least, str) else at_least
        begun = self._clock.monotonic()
        while True:
            self.follow(view)
            outputs = self.covering(view, position)
            waited = self._clock.monotonic() - begun
            if outputs is not None:
                return outputs
            if waited >= timeout and self._following[view].ended:
                raise self.not_reached(view, position, timeout)
            if waited >= timeout + TIMEOUT_S:
                raise MachineError(f"log {self._client.log} sends no results of view {view!r}")
            self.poll(min(POLL_S, max(timeout - waited, 0.01)))

    def follow(self, view: str) -> None:
        """Begins to read the results of a view, or checks that their topic still exists.

        UsageError if there is none. The views that it reads, by its results, are followed too; these may be
        without results.
        """
        self._follow(view)
        for upstream in self._history(view).views:
            with contextlib.suppress(UsageError):
                self.follow(upstream)

    def _follow(self, view: str) -> None:
        with self._lock:
            tail = self._following.get(view)
            if tail and self._clock.monotonic() < tail.checked + CHECK_S:
                return
            ends = self._client.end_offsets([topic(view)])
            end = ends.get((topic(view), 0), 0)
            if tail and end < tail.read:
                self._forget(view)
            if not ends:
                raise UsageError(
                    f"there is no view {view!r} with results", hint="is its name right, and was it started?"
                )
            if view not in self._following:
                self._following[view] = _Tail(max(end - TAIL_OFFSETS, 0), end)
            self._following[view].checked = self._clock.monotonic()

    def covering(self, view: str, position: Position) -> Position | None:
        """`lineage.covering` for the results that were read so far."""
        return lineage.covering(self._histories, view, position)

    def complete(self, view: str, held: Position) -> int | None:
        """`lineage.complete` for the results that were read so far."""
        return lineage.complete(self._histories, view, held)

    def columns(self, view: str) -> Mapping[str, str]:
        """The types of a view's columns in Spark's notation, by its newest result."""
        return self._history(view).columns

    def left_out(self, view: str) -> LeftOut | None:
        """How many records a view has left out, by its newest result."""
        return self._history(view).left_out

    def caught_up(self, view: str) -> bool:
        """Whether all results that existed when the view was first followed have been read."""
        tail = self._following.get(view)
        # The last offset is a transaction marker, which the consumer does not deliver.
        if tail is None or not (tail.ended or tail.read + 1 >= tail.end):
            return False
        return all(self.caught_up(name) for name in self._history(view).views if name in self._following)

    def not_reached(self, view: str, position: Position, seconds: float) -> NotReachedError:
        """The error after a wait in vain; it says how far the view is."""
        return self._history(view).not_reached(position, seconds)

    def poll(self, seconds: float) -> set[str]:
        """Reads results, waiting up to ``seconds``; returns the views that have news.

        News of a view are a new result, the end of its results, or news of a view that it reads.
        """
        self._assign()
        news = self._take(poll_batch(self._consumer, seconds, RESULTS_READ))
        for view in sorted(news):
            for upstream in self._history(view).views:
                if upstream not in self._following:
                    with contextlib.suppress(UsageError):
                        self.follow(upstream)
        while downstream := self._readers(news) - news:
            news |= downstream
        return news

    def _readers(self, views: set[str]) -> set[str]:
        """The views that read one of these."""
        return {view for view, history in list(self._histories.items()) if views & {*history.views}}

    def _history(self, view: str) -> History:
        return self._histories.get(view, History(view))

    def _forget(self, view: str) -> None:
        del self._following[view]
        self._histories.pop(view, None)

    def _assign(self) -> None:
        with self._lock:
            wanted = dict(self._following)
        ended = [view for view, tail in self._assigned.items() if wanted.get(view) is not tail]
        for view in ended:
            del self._assigned[view]
            self._consumer.incremental_unassign([TopicPartition(topic(view), 0)])
        new = wanted.keys() - self._assigned.keys()
        if new:
            acquaint(self._consumer)
        for view in new:
            begin = wanted[view].begin or OFFSET_BEGINNING
            self._consumer.incremental_assign([TopicPartition(topic(view), 0, begin)])
            self._assigned[view] = wanted[view]

    def _take(self, messages: Iterable[Any]) -> set[str]:
        news: set[str] = set()
        with self._lock:
            views = {topic(view): view for view in self._assigned}
            for message in messages:
                view = views.get(message.topic())
                if message.error() is not None:
                    self._handle(view, message.error(), news)
                elif view is not None and self._assigned[view] is self._following.get(view):
                    self._following[view].read = message.offset() + 1
                    self._histories[view] = self._history(view).then(_decode(message.value()))
                    news.add(view)
        return news

    def _handle(self, view: str | None, error: KafkaError, news: set[str]) -> None:
        """Handles an error that the consumer reports for a view; the client itself retries what it can."""
        if error.fatal():
            raise MachineError(f"reading the log failed: {error.str()}")
        if view is None or self._assigned[view] is not self._following.get(view):
            return
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  the client's public name for it
            if self._following[view].begin and not self._history(view).results:
                self._following[view] = _Tail(0, self._following[view].end)
            else:
                self._following[view].ended = True
                news.add(view)
        elif error.name() in TOPIC_MISSING or error.name() == "_AUTO_OFFSET_RESET":
            self._forget(view)  # the topic was deleted, and perhaps created again
