"""Parked keys: those of which a message is a dead letter, so that their later messages become letters too.

They are in the compacted topic ``<group>.parked``: the key, and where its first letter comes from. A record
is written in the same transaction as that letter. A redrive deletes it in the transaction in which it moves
the letters of the key back.

A message of a key is delivered only when the one before it is settled. So a process that reads the topic to
its end after a delivery knows whether the one before it has parked the key, in any process.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from headwater.access import Log
from headwater.client.client import Client
from headwater.decoders import from_json
from headwater.errors import HeadwaterError, UsageError
from headwater.formats import PARKED
from headwater.record import Record
from headwater.worker.outcome import Bury
from headwater.worker.work import Written
from headwater.worker.work_list import Task

__all__ = ["SUFFIX", "Checked", "ParkedKey", "ParkedKeys", "Parking", "parked_key"]

SUFFIX = ".parked"
PAUSE_S = 0.5
"""Before the log is asked again that did not answer."""
TURN_S = 0.01
"""Between two looks at a transaction of the topic that is about to end."""

Checked = Callable[[list[tuple[Task, Bury | None]]], None]
"""Called in the thread of the parking: which messages may begin, and which become letters."""

logger = logging.getLogger(__name__)


class ParkedKey(msgspec.Struct, frozen=True):
    """Why a key is parked: where its first letter comes from, and since when."""

    topic: str
    partition: int
    offset: int
    at: datetime
    format: int = 1

    @property
    def message(self) -> str:
        """The id of the message."""
        return f"{self.topic}-{self.partition}-{self.offset}"


def parked_key(group: str, task: Task, now_ms: int) -> Written:
    """The record that parks the key of a message."""
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    parked = ParkedKey(task.topic, task.place[1], task.record.offset, at)
    return Written(f"{group}{SUFFIX}", Record(task.record.key, msgspec.json.encode(parked)))


class ParkedKeys:
    """The parked keys of a group as far as the topic was read. Belongs to one thread."""

    def __init__(self, log: Log, group: str) -> None:
        self._topic = f"{group}{SUFFIX}"
        self._client = Client(log)
        self._read_upto = 0
        self.keys: dict[bytes, ParkedKey] = {}

    def read(self, stopping: threading.Event) -> None:
        """Reads the topic to its end, and waits for transactions there that are about to end.

        MachineError if the log does not answer, UsageError for a record of a newer version.
        """
        end = self._client.open_ends(self._topic, 1)[0]
        if end < self._read_upto:  # the topic was made again
            self.keys.clear()
            self._read_upto = 0
        if end == self._read_upto:
            return
        while self._client.end_offsets([self._topic]).get((self._topic, 0), 0) < end:
            if stopping.wait(TURN_S):
                return
        since, upto = {self._topic: {0: self._read_upto}}, {self._topic: {0: end}}
        for message in self._client.read([self._topic], upto, since=since):
            self._note(message.key(), message.value())
        self._read_upto = end

    def close(self) -> None:
        self._client.close()

    def _note(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.keys.pop(key, None)
            return
        parked = from_json(value, ParkedKey)
        PARKED.check(parked.format, f"a key in {self._topic}")
        self.keys[key] = parked


class Parking:
    """Says of messages whether their key is parked, in a thread of its own: the log is asked about that."""

    def __init__(self, log: Log, group: str, checked: Checked) -> None:
        self.failure: UsageError | None = None
        """Why it cannot say anything any more."""
        self._keys = ParkedKeys(log, group)
        self._checked = checked
        self._stopping = threading.Event()
        self._tasks: queue.SimpleQueue[list[Task]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"parked {group}", daemon=True)
        self._thread.start()

    def check(self, tasks: Iterable[Task]) -> None:
        """``checked`` gets them soon."""
        self._tasks.put(list(tasks))

    def close(self) -> None:
        """Does not wait for the log."""
        self._stopping.set()
        self._tasks.put([])

    def _run(self) -> None:
        while not self._stopping.is_set():
            tasks = self._tasks.get()
            while not self._tasks.empty():
                tasks += self._tasks.get()
            if tasks and self._read():
                self._checked([(task, self._verdict(task)) for task in tasks])
        self._keys.close()

    def _read(self) -> bool:
        """Whether the keys are known; it tries until they are."""
        while not self._stopping.is_set():
            try:
                self._keys.read(self._stopping)
            except UsageError as error:
                self.failure = error
                self._checked([])
                return False
            except HeadwaterError as error:
                logger.warning("parked keys cannot be read, trying again: %s", error)
                self._stopping.wait(PAUSE_S)
            else:
                return not self._stopping.is_set()
        return False

    def _verdict(self, task: Task) -> Bury | None:
        parked = self._keys.keys.get(task.record.key or b"") if task.record.key is not None else None
        if parked is None:
            return None
        why = f"parked: message {parked.message} of its key is a dead letter"
        return Bury(why, is_parked=True)
