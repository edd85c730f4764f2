"""Sinks: the sinks of an application in one process, each with a loop in a thread of its own."""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from headwater.access import Log, access
from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.declare.graph import Graph
from headwater.declare.spec import Sink
from headwater.errors import HeadwaterError, UsageError, one_line
from headwater.health.board import BoardFile
from headwater.health.condition import Condition, PartStatus
from headwater.health.pauses import Pauses
from headwater.sink.loop.feeds import check_sink, sink_feed, sink_topic
from headwater.sink.loop.life import SinkState
from headwater.sink.loop.loop import Loop
from headwater.sink.store import SESSION_MS, StartRecorder

__all__ = ["Sinks"]

JOIN_S = 15.0
LOOK_S = 0.2
TURN_S = 0.05
LAG_S = 5.0
"""How often the lags of sinks are measured."""

logger = logging.getLogger(__name__)


class Sinks:
    """Runs the named sinks, or all. A sink that can never run logs why, and does not disturb the others.

    One that ended for another reason than a wrong declaration is started again, after a pause that grows up
    to a minute.
    """

    def __init__(
        self,
        log: Log,
        graph: Graph,
        data: Path,
        names: Sequence[str] = (),
        *,
        session_ms: int = SESSION_MS,
        may_begin: Callable[[Sink], bool] = lambda _: True,
    ) -> None:
        """``may_begin``: whether a sink may touch its store and the log; asked again until it says so."""
        unknown = [name for name in names if name not in graph.sinks]
        if unknown:
            raise UsageError(
                f"application {graph.name!r} has no sink {unknown[0]!r}",
                hint=f"sinks are: {', '.join(graph.sinks) or 'none'}",
            )
        if not graph.sinks:
            raise UsageError(
                f"application {graph.name!r} has no sinks", hint="declare one with app.sink(...)"
            )
        self._log = log
        self._graph = graph
        self._pauses = Pauses(data)
        self._session_ms = session_ms
        self._may_begin = may_begin
        self._beginnings: dict[str, Callable[[], None]] = {}
        """For sinks that had to wait, what records where they begin."""
        self._sinks = [sink for name, sink in graph.sinks.items() if not names or name in names]
        self._client = Client(log)
        self._failures: dict[str, UsageError] = {}
        self._conditions = {sink.name: Condition() for sink in self._sinks}
        self._lock = threading.Lock()
        """For the conditions."""
        self._lags: dict[str, int] = {}
        self._measured = 0.0
        self._clock = SystemClock()
        self.loops: dict[str, Loop] = {}

    def run(self, stop: threading.Event, *, forever: bool = False, board: BoardFile | None = None) -> None:
        """Runs until ``stop`` is set, and says on the board how each sink is.

        Without ``forever`` it also ends when no sink can run any more, with the error of the first.
        """
        threads = [
            threading.Thread(target=self._follow, args=(sink, stop), name=f"sink {sink.name}", daemon=True)
            for sink in self._sinks
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(LOOK_S):
            if not forever and not any(thread.is_alive() for thread in threads):
                break
            for loop in list(self.loops.values()):
                loop.look()
            if board is not None:
                board.write(self._statuses())
        for loop in list(self.loops.values()):
            loop.stop()
        for thread in threads:
            thread.join(JOIN_S)
        if self._failures and not stop.is_set():
            raise next(iter(self._failures.values()))

    def _follow(self, sink: Sink, stop: threading.Event) -> None:
        condition = self._conditions[sink.name]
        while not stop.is_set():
            with self._lock:
                condition.begin()
            try:
                check_sink(self._graph, sink)
                self._await_turn(sink, stop)
                loop = self._loop(sink)
                if not stop.is_set():
                    loop.run()
            except UsageError as error:
                logger.error("sink %s cannot run: %s", sink.name, error)  # noqa: TRY400  it says enough
                self._failures[sink.name] = error
                with self._lock:
                    condition.end(one_line(error), heals=False)
                return
            except Exception as error:
                ours = isinstance(error, HeadwaterError)
                logger.log(logging.ERROR, "sink %s ended: %s", sink.name, error, exc_info=not ours)
                with self._lock:
                    condition.end(one_line(error) or repr(error))
                while not condition.is_due and not stop.wait(LOOK_S):
                    pass

    def _await_turn(self, sink: Sink, stop: threading.Event) -> None:
        """Returns when a sink may begin. What comes while it waits is new to it, and no history."""
        if sink.name not in self._beginnings:
            if self._may_begin(sink):
                return
            if isinstance(sink.target, StartRecorder):
                topic = sink_topic(self._graph, sink)
                self._beginnings[sink.name] = sink.target.find_start(access(self._log), sink.name, topic)
        while not self._may_begin(sink):
            if stop.wait(TURN_S):
                return
        if sink.name in self._beginnings:
            self._beginnings[sink.name]()
            del self._beginnings[sink.name]

    def _statuses(self) -> list[PartStatus]:
        now = self._clock.monotonic()
        if now >= self._measured + LAG_S and self._client.is_reachable():
            self._measured = now
            with contextlib.suppress(HeadwaterError):
                self._lags = {name: self._lag(loop) for name, loop in list(self.loops.items())}
        with self._lock:
            return [self._status(sink.name) for sink in self._sinks]

    def _status(self, name: str) -> PartStatus:
        condition, loop = self._conditions[name], self.loops.get(name)
        if loop is not None and not condition.has_ended:
            if self._pauses.is_paused(name):
                condition.pause()
            elif loop.trouble:
                condition.fail(loop.trouble)
            elif loop.state is SinkState.RUNNING:  # before that it is starting
                condition.work()
        return condition.status("sink", name, lag_records=self._lags.get(name))

    def _lag(self, loop: Loop) -> int:
        """The records after the positions of this process, in the partitions that it has."""
        ends = self._client.end_offsets([loop.topic])
        positions = dict(loop.positions)
        return sum(
            max(0, end - positions[number]) for (_, number), end in ends.items() if number in positions
        )

    def _loop(self, sink: Sink) -> Loop:
        loop = self.loops[sink.name] = Loop(
            self._log,
            sink.name,
            sink_topic(self._graph, sink),
            sink.target,
            partial(sink_feed, self._graph, sink, self._client),
            paused=partial(self._pauses.is_paused, sink.name),
            session_ms=self._session_ms,
        )
        return loop
