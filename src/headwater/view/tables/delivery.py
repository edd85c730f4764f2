"""Delivery: the one loop that applies view topics to view tables.

One consumer reads all views, so that twenty idle views cost as much as one. It is assigned the offsets
that are in the tables, never those of a consumer group. So a crash at any point neither repeats nor loses
anything: a batch is in the table together with its offsets, or not at all.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from headwater.access import Log, access
from headwater.change import Change
from headwater.client.client import acquaint
from headwater.client.poll import TOPIC_MISSING
from headwater.client.topic_watch import Topic, TopicWatch
from headwater.clock import Clock, SystemClock
from headwater.errors import HeadwaterError, MachineError
from headwater.position import Position
from headwater.sink.changes import read_changes
from headwater.sink.log_consumer import LogConsumer, Messages
from headwater.sink.patience import Patience
from headwater.view.tables.folder import FolderLock
from headwater.view.tables.writer import SqliteTable

__all__ = ["Delivery"]

BATCH_RECORDS = 5_000
"""The records of one round of transactions at most."""
IDLE_SECONDS = 0.25
"""How long one wait for a record lasts, and so how long `stop` may take."""
SEARCH_SECONDS = 0.05
"""The same while a topic is missing."""
SILENT_S = 60.0
"""A round takes less than a second, also without records."""
GROUP = "headwater.console"
"""Required by the client; nothing is committed to it."""

OnCommit = Callable[[str, Sequence[Change], Position], None]

logger = logging.getLogger(__name__)


class Delivery:
    """Keeps one SQLite file per view equal to the view's topic.

    Guarantees: each record takes effect once, in the order of its partition; ``on_commit`` is called after
    the commit, in commit order, from the delivery thread. It waits for a topic that does not exist yet,
    for a log that is away, and for room on a full disk. A table whose offsets the log no longer has is
    rebuilt from the start of the log (its position then has a greater build). A record that is not a row
    is skipped and named in the log. A failing disk ends the loop: ``on_failure`` is called once.
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
        self._unfinished: set[tuple[str, int]] = set()
        """Partitions that were not yet read to their end."""
        self._patience = Patience("of view tables", self._stopping, self._clock)
        self._round_at = self._clock.monotonic()

    def trouble(self) -> str:
        """Why the tables do not grow; empty while they can. Any thread may ask."""
        if self._patience.error:
            return self._patience.error
        is_silent = self._clock.monotonic() - self._round_at > SILENT_S
        return (
            f"no view table was written for more than {SILENT_S:.0f} s: its disk hangs" if is_silent else ""
        )

    def start(self) -> None:
        """Locks the folder (a StorageError if another process delivers there) and runs in a thread."""
        lock = FolderLock(self._folder)
        self._thread = threading.Thread(target=self._run, args=(lock,), name="delivery", daemon=True)
        self._thread.start()

    def run(self) -> None:
        """Runs in the calling thread until `stop` is called from another one."""
        self._loop(FolderLock(self._folder))

    def stop(self) -> None:
        """Stops after the current batch; what was committed stays."""
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
            self._reader = LogConsumer(self._log, "view tables", GROUP, **{"fetch.queue.backoff.ms": 50})
            watch = TopicWatch(self._log, self._views, self._clock)
            while not self._stopping.is_set():
                self._round_at = self._clock.monotonic()
                topics = watch.look()
                if topics.keys() - self._assigned.keys():
                    acquaint(self._reader.client)
                for view, topic in topics.items():
                    self._follow(view, topic)
                for table in self._tables.values():
                    self._patience.until(table.tidy)
                seconds = IDLE_SECONDS if watch.complete else SEARCH_SECONDS
                messages = self._reader.take(seconds, BATCH_RECORDS)
                if messages is not None and self._deliver(messages):
                    watch.hurry()
        finally:
            self._close(lock)

    def _close(self, lock: FolderLock) -> None:
        for table in self._tables.values():
            table.close()
        if hasattr(self, "_reader"):
            self._reader.close()
        lock.release()

    def _deliver(self, messages: Messages) -> bool:
        """Commits one batch, a transaction for each view. True if a topic was deleted."""
        records: dict[str, list[Any]] = {}
        for message in messages.records:
            if message.topic() in self._assigned:
                records.setdefault(message.topic(), []).append(message)
        ends = self._first_ends(messages.ends)
        for view in records.keys() | ends.keys():
            self._commit(view, records.get(view, []), ends.get(view, {}))
        errors = {message.topic(): message.error() for message in messages.errors}
        gone = [view for view, error in errors.items() if self._is_gone(view, error)]
        return bool(gone)

    def _first_ends(self, ends: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
        """The ends of partitions that were read to their end for the first time: they move the table.

        Records that compaction or an abort has removed from the end will never come, and readers may wait
        for that offset. Later ends bring nothing new.
        """
        first: dict[str, dict[int, int]] = {}
        for (view, partition), end in ends.items():
            if (view, partition) in self._unfinished:
                self._unfinished.discard((view, partition))
                first.setdefault(view, {})[partition] = end
        return first

    def _commit(self, view: str, messages: Iterable[Any], ends: dict[int, int]) -> None:
        changes, offsets = read_changes(messages)
        table = self._tables[view]
        reached = offsets | {p: max(end, offsets.get(p, 0)) for p, end in ends.items()}
        applied = self._patience.until(lambda: table.apply(changes, Position({view: reached})))
        if applied is None:
            return
        self._patience.over()
        self._on_commit(view, applied, table.position())

    def _is_gone(self, view: str, error: Any) -> bool:
        """Acts on an error that the consumer reports for a view; the client itself retries what it can.

        True if the topic was deleted.
        """
        if error.fatal():
            raise MachineError(f"reading the log failed: {error.str()}")
        if error.name() == "_AUTO_OFFSET_RESET" and view in self._assigned:
            self._rebuild(view, self._tables[view].origin, "the log no longer has the offsets of its table")
        elif error.name() in TOPIC_MISSING and view in self._assigned:
            logger.warning("view %s: its topic was deleted; waiting for it", view)
            self._unassign(view)
            return True
        elif view in self._assigned:
            logger.warning("view %s: %s", view, error.str())
        return False

    def _follow(self, view: str, topic: Topic | None) -> None:
        """Reads a topic that was created, has more partitions, or was deleted and created again."""
        table = self._tables[view]
        if topic is None:
            return
        if topic.id and table.origin and topic.id != table.origin:
            self._rebuild(view, topic.id, "its topic was deleted and created again")
        elif topic.id and not table.origin:
            table.adopt(topic.id)
        self._assign(view, range(self._assigned.get(view, 0), topic.partitions))

    def _rebuild(self, view: str, origin: str, why: str) -> None:
        logger.warning("view %s: %s; rebuilding it from the start of the log", view, why)
        partitions = self._assigned.get(view, 0)
        self._unassign(view)
        table = self._tables[view]
        table.reset(origin)
        self._on_commit(view, [], table.position())
        self._assign(view, range(partitions))

    def _unassign(self, view: str) -> None:
        partitions = self._assigned.pop(view, 0)
        places = [TopicPartition(view, p) for p in range(partitions)]
        self._unfinished -= {(view, p) for p in range(partitions)}
        if places:
            self._reader.client.incremental_unassign(places)

    def _assign(self, view: str, partitions: range) -> None:
        if not partitions:
            return
        self._assigned[view] = partitions.stop
        self._unfinished |= {(view, p) for p in partitions}
        offsets = self._tables[view].position().of(view)
        places = [TopicPartition(view, p, offsets.get(p, OFFSET_BEGINNING)) for p in partitions]
        self._reader.client.incremental_assign(places)
