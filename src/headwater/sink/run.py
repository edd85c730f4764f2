"""Sinks: the sinks of an application in one process, each with a loop in a thread of its own."""

import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headwater.access import Log
from headwater.client import Client
from headwater.errors import HeadwaterError, UsageError
from headwater.graph import Graph, Sink
from headwater.sink.loop import Loop
from headwater.sink.pause import Pauses
from headwater.sink.source import check, feed, topic
from headwater.sink.store import SESSION_MS

__all__ = ["Sinks"]

AGAIN_S = 5.0
"""Before a sink is tried again that ended for another reason than a wrong declaration."""
JOIN_S = 15.0

logger = logging.getLogger(__name__)


class Sinks:
    """Runs the named sinks, or all. One that can never run says so and does not disturb the others."""

    def __init__(
        self,
        log: Log,
        graph: Graph,
        data: Path,
        names: Sequence[str] = (),
        *,
        session_ms: int = SESSION_MS,
    ) -> None:
        unknown = [name for name in names if name not in graph.sinks]
        if unknown:
            raise UsageError(
                f"application {graph.name!r} has no sink {unknown[0]!r}",
                hint=f"there is {', '.join(graph.sinks) or 'none'}",
            )
        if not graph.sinks:
            raise UsageError(
                f"application {graph.name!r} has no sinks", hint="declare one with app.sink(...)"
            )
        self._log = log
        self._graph = graph
        self._pauses = Pauses(data)
        self._session_ms = session_ms
        self._sinks = [sink for name, sink in graph.sinks.items() if not names or name in names]
        self._client = Client(log)
        self._failures: dict[str, UsageError] = {}
        self.loops: dict[str, Loop] = {}

    def run(self, stop: threading.Event, *, forever: bool = False) -> None:
        """Until ``stop``; without ``forever`` also until none is left that can run, with the error of the first."""
        threads = [
            threading.Thread(target=self._follow, args=(sink, stop), name=f"sink {sink.name}", daemon=True)
            for sink in self._sinks
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(0.2):
            if not forever and not any(thread.is_alive() for thread in threads):
                break
            for loop in list(self.loops.values()):
                loop.look()
        for loop in list(self.loops.values()):
            loop.stop()
        for thread in threads:
            thread.join(JOIN_S)
        if self._failures and not stop.is_set():
            raise next(iter(self._failures.values()))

    def _follow(self, sink: Sink, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                check(self._graph, sink)
                loop = self._loop(sink)
                if not stop.is_set():
                    loop.run()
            except UsageError as error:
                logger.error("sink %s cannot run: %s", sink.name, error)  # noqa: TRY400  our own words are enough
                self._failures[sink.name] = error
                return
            except Exception as error:
                ours = isinstance(error, HeadwaterError)
                logger.log(logging.ERROR, "sink %s ended: %s", sink.name, error, exc_info=not ours)
                stop.wait(AGAIN_S)

    def _loop(self, sink: Sink) -> Loop:
        loop = self.loops[sink.name] = Loop(
            self._log,
            sink.name,
            topic(self._graph, sink),
            sink.target,
            partial(feed, self._graph, sink, self._client),
            paused=partial(self._pauses.is_paused, sink.name),
            session_ms=self._session_ms,
        )
        return loop
