"""Delivery: the one loop that applies view topics to view tables.

One consumer reads all views, so that twenty idle ones cost what one costs. It is assigned the offsets
that stand in the tables, never those of a consumer group, so a crash at any point repeats nothing and
loses nothing: a batch is either in the table together with its offsets, or not at all.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from headwater.access import Log, access
from headwater.change import Change
from headwater.client import acquaint, consumer
from headwater.clock import Clock, SystemClock
from headwater.errors import HeadwaterError, MachineError
from headwater.position import Position
from headwater.sink.folder import FolderLock
from headwater.sink.message import read
from headwater.sink.patience import Patience
from headwater.sink.table import SqliteTable
from headwater.sink.topics import Topic, TopicWatch

__all__ = ["Delivery"]

BATCH_RECORDS = 5_000
"""At most so many records go into one round of transactions."""
IDLE_SECONDS = 0.25
"""How long one wait for a record lasts, and so how long `stop` may take."""
SEARCH_SECONDS = 0.05
"""The same while a topic is still missing."""
GROUP = "headwater.console"
"""Required by the client; nothing is committed to it."""
GONE = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")

OnCommit = Callable[[str, Sequence[Change], Position], None]

logger = logging.getLogger(__name__)


class Delivery:
    """Keeps one SQLite file per view equal to the view's topic.

    Guarantees: each record takes effect once, in the order of its partition; ``on_commit`` is called after
    the commit, in commit order, from the delivery thread. A topic that does not exist yet is waited for, a
    log that is away is waited for, and a table whose offsets the log no longer has is rebuilt from its
    start (its position then has a greater build). A record that is no row is left out and named in the log.
    A full disk is waited for. It does not survive a failing one: ``on_failure`` is called once and the loop ends.
    """

    def __init__(
        self,
        log: Log,
        views: Sequence[str],
        folder: Path,
        on_commit: OnCommit,
        *,
        on_failure: Callable[[Exception], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._log = access(log)
        self._views = tuple(views)
        self._folder = folder
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._tables: dict[str, SqliteTable] = {}
        self._assigned: dict[str, int] = {}
        self._behind: set[tuple[str, int]] = set()
        """Partitions that were not yet read up to their end."""
        self._away = False
        self._patience = Patience("of view tables", self._stopping, self._clock)

    def start(self) -> None:
        """Locks the folder (a StorageError if another process delivers there) and runs in a thread."""
        lock = FolderLock(self._folder)
        self._thread = threading.Thread(target=self._run, args=(lock,), name="delivery", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Runs in the calling thread until `stop` is called from another one."""
        self._loop(FolderLock(self._folder))

    def stop(self) -> None:
        """Ends after the batch in hand; what was committed stays."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, lock: FolderLock) -> None:
        try:
            self._loop(lock)
        except Exception as error:
            logger.log(
                logging.ERROR, "delivery ended: %s", error, exc_info=not isinstance(error, HeadwaterError)
            )
            if self._on_failure is not None:
                self._on_failure(error)

    def _loop(self, lock: FolderLock) -> None:
        try:
            self._tables = {
                view: SqliteTable(self._folder / f"{view}.db", self._clock) for view in self._views
            }
            self._consumer = self._connect()
            watch = TopicWatch(self._log, self._views, self._clock)
            while not self._stopping.is_set():
                found = watch.look()
                if found.keys() - self._assigned.keys():
                    acquaint(self._consumer)
                for view, topic in found.items():
                    self._follow(view, topic)
                for table in self._tables.values():
                    self._patience.until(table.tidy)
                messages = self._take(IDLE_SECONDS if watch.complete else SEARCH_SECONDS)
                if messages and self._deliver(messages):
                    watch.hurry()
        finally:
            self._close(lock)

    def _connect(self) -> Any:
        settings = {
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "error_cb": self._on_client_error,
        }
        return consumer(self._log, group=GROUP, **settings)

    def _close(self, lock: FolderLock) -> None:
        for table in self._tables.values():
            table.close()
        if hasattr(self, "_consumer"):
            self._consumer.close()
        lock.release()

    def _take(self, seconds: float) -> list[Any]:
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        # consume() alone would wait for a full batch; this takes what is there.
        return [first, *self._consumer.consume(BATCH_RECORDS - 1, 0)]

    def _deliver(self, messages: Sequence[Any]) -> bool:
        """Commits one batch, a transaction for each view; true when a topic was seen to be gone."""
        batches: dict[str, list[Any]] = {}
        errors: dict[str, Any] = {}
        ends: dict[str, dict[int, int]] = {}
        for message in messages:
            if message.error() is not None and message.error().name() == "_PARTITION_EOF":
                self._note_end(message, ends)
            elif message.error() is not None:
                errors[message.topic()] = message.error()
            elif message.topic() in self._assigned:
                batches.setdefault(message.topic(), []).append(message)
        for view in batches.keys() | ends.keys():
            self._commit(view, batches.get(view, []), ends.get(view, {}))
        gone = [view for view, error in errors.items() if self._handle(view, error)]
        return bool(gone)

    def _note_end(self, message: Any, ends: dict[str, dict[int, int]]) -> None:
        """The first end of a partition moves its table there: what compaction or an aborted batch has left out of the log's end
        will not come any more, and somebody may wait for it. Later ends say nothing new."""
        place = (message.topic(), message.partition())
        if place in self._behind:
            self._behind.discard(place)
            ends.setdefault(place[0], {})[place[1]] = message.offset()

    def _commit(self, view: str, messages: Iterable[Any], ends: dict[int, int]) -> None:
        self._away = False
        changes, offsets = read(messages)
        table = self._tables[view]
        reached = offsets | {p: max(end, offsets.get(p, 0)) for p, end in ends.items()}
        applied = self._patience.until(lambda: table.apply(changes, Position({view: reached})))
        if applied is None:
            return
        self._patience.over()
        self._on_commit(view, applied, table.position())

    def _handle(self, view: str, error: Any) -> bool:
        """Acts on what the consumer reported of a view; the client itself retries what it can."""
        if error.fatal():
            raise MachineError(f"reading the log failed: {error.str()}")
        if error.name() == "_AUTO_OFFSET_RESET" and view in self._assigned:
            self._rebuild(view, self._tables[view].origin, "the log no longer has the offsets of its table")
        elif error.name() in GONE and view in self._assigned:
            logger.warning("view %s: its topic is gone; waiting for it", view)
            self._unassign(view)
            return True
        elif view in self._assigned:
            logger.warning("view %s: %s", view, error.str())
        return False

    def _follow(self, view: str, topic: Topic | None) -> None:
        """Takes up a topic that has appeared, has grown, or was deleted and made again."""
        table = self._tables[view]
        if topic is None:
            return
        if topic.id and table.origin and topic.id != table.origin:
            self._rebuild(view, topic.id, "its topic was deleted and made again")
        elif topic.id and not table.origin:
            table.adopt(topic.id)
        self._assign(view, range(self._assigned.get(view, 0), topic.partitions))

    def _rebuild(self, view: str, origin: str, why: str) -> None:
        logger.warning("view %s: %s; building it anew from the log's start", view, why)
        partitions = self._assigned.get(view, 0)
        self._unassign(view)
        table = self._tables[view]
        table.reset(origin)
        self._on_commit(view, [], table.position())
        self._assign(view, range(partitions))

    def _unassign(self, view: str) -> None:
        partitions = self._assigned.pop(view, 0)
        self._behind -= {(view, p) for p in range(partitions)}
        if partitions:
            self._consumer.incremental_unassign([TopicPartition(view, p) for p in range(partitions)])

    def _assign(self, view: str, partitions: range) -> None:
        if not partitions:
            return
        self._assigned[view] = partitions.stop
        self._behind |= {(view, p) for p in partitions}
        offsets = self._tables[view].position().of(view)
        places = [TopicPartition(view, p, offsets.get(p, OFFSET_BEGINNING)) for p in partitions]
        self._consumer.incremental_assign(places)

    def _on_client_error(self, error: Any) -> None:
        if not self._away:
            logger.warning(
                "the log at %s does not answer (%s); going on when it is back", self._log, error.str()
            )
        self._away = True
