"""Drain: records for which there was no room, from their files into the log, in order.

A record is sent by a producer that never gives up, so within one process none is doubled. After a crash it is not known which of the
records behind the mark had arrived: they carry their name in a header, the next writer of the name looks for these behind the
positions of the mark, and sends only what is not there.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Producer

from headwater.client import Client
from headwater.clock import Clock, SystemClock
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.limit import Bucket
from headwater.outgoing import POLL_S, Line, Record, Sending, no_room
from headwater.spill import HEADER, Spill

__all__ = ["Spilling"]

BATCH_RECORDS = 500
"""Records between two marks."""
RECORD_BYTES_MAX = 1_000_000
"""Key and value; the client library sends no larger ones either."""
IDLE_S = 1.0
AGAIN_S = 1.0
"""Before records are tried again that the log has refused."""
SETTLE_S = 2.0
"""After a crash: how long a request of the dead process may be on its way until it shows in the log."""
CLOSE_S = 5.0
"""How long the end waits for acknowledgements; a record without one is looked for by the next writer."""

logger = logging.getLogger(__name__)


class Spilling:
    """Records for which there is no room go into a bounded file, and all that come behind them too until it is empty. Any thread may call."""

    def __init__(
        self,
        line: Line,
        spill: Spill,
        client: Client,
        make: Callable[[], Producer],
        *,
        in_flight_max: int,
        wait_s: float,
        clock: Clock,
    ) -> None:
        self._line = line
        self._spill = spill
        self._clock = clock
        self._wait_s = wait_s
        self._began = spill.mark.sent
        self._lock = threading.Lock()
        self._failed_at = -1
        """How many records of the file were sent when the direct way failed last: until it is more, the log has not answered, and what comes waits in the file."""
        self._stopping = threading.Event()
        self._filled = threading.Event()
        self._drain = _Drain(spill, client, make, line.bucket, in_flight_max)
        self._thread = threading.Thread(target=self._run, name=f"spill {spill.folder.name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._spill.waiting

    def standing(self) -> tuple[int, int]:
        """Records that wait in the file, and those that this writer has brought from it into the log."""
        sent = self._spill.mark.sent
        return self._spill.end - sent, sent - self._began

    def give(self, record: Record, sending: Sending) -> None:
        with self._lock:
            free = not self._spill.waiting and self._spill.mark.sent != self._failed_at
            if free and self._line.send(record, sending.done):
                return
        key = record.key.encode() if isinstance(record.key, str) else record.key
        if len(key or b"") + len(record.value or b"") > RECORD_BYTES_MAX:
            raise UsageError("the record is too large", expected=f"at most {RECORD_BYTES_MAX:,} bytes")
        limit = self._clock.monotonic() + self._wait_s
        while not self._append(record):
            if self._clock.monotonic() >= limit:
                raise no_room(record.topic, self._wait_s)
            self._stopping.wait(POLL_S)
        sending.spilled += 1
        self._filled.set()

    def settle(self, sending: Sending, limit: float) -> None:
        if sending.spilled:
            self._spill.sync()
        while sending.waiting and self._clock.monotonic() < limit:
            self._line.producer.poll(POLL_S)
        if sending.failed:
            self._failed_at = self._spill.mark.sent

    def flush(self, timeout_s: float) -> bool:
        """Whether the file was empty within the time."""
        limit = self._clock.monotonic() + timeout_s
        while self._spill.waiting:
            if self._clock.monotonic() >= limit:
                return False
            self._stopping.wait(POLL_S)
        return True

    def close(self) -> None:
        self._stopping.set()
        self._filled.set()
        self._thread.join()
        self._spill.close()

    def _append(self, record: Record) -> bool:
        with self._lock:
            return self._spill.append(record, self._clock.now_ms())

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._filled.clear()
                if not self._spill.waiting:
                    self._filled.wait(IDLE_S)
                elif len(self._line.producer):  # what is still on the direct way was given before
                    self._line.producer.poll(POLL_S)
                else:
                    self._drain.batch(self._stopping)
            except Exception as error:
                logger.log(
                    logging.WARNING,
                    "writer %s: %d records wait in its file: %s",
                    self._spill.folder.name,
                    self._spill.waiting,
                    error,
                    exc_info=not isinstance(error, HeadwaterError),
                )
                self._drain.doubt()
                self._stopping.wait(AGAIN_S)
        self._drain.close()


class _Drain:
    """Sends the records of a spill, batch by batch; one thread."""

    def __init__(
        self,
        spill: Spill,
        client: Client,
        make: Callable[[], Producer],
        bucket: Bucket | None,
        in_flight_max: int,
    ) -> None:
        self._spill = spill
        self._client = client
        self._make = make
        self._bucket = bucket
        self._in_flight_max = in_flight_max
        self._ends = {topic: dict(ends) for topic, ends in spill.mark.ends.items()}
        self._line: Line | None = None
        self._there: set[str] = set()
        """Names of records behind the mark that are in the log."""

    def batch(self, stopping: threading.Event) -> None:
        """Sends the next records, and passes over them when they are all in the log."""
        if self._line is None:
            self._look(stopping)
            self._line = Line(self._make(), self._bucket, self._in_flight_max)
        records = self._spill.first(BATCH_RECORDS)
        self._note_ends({record.topic for record in records})
        if not self._send(self._line, [each for each in records if _name(each) not in self._there], stopping):
            return
        # What comes after a pause is looked for behind what others have written meanwhile.
        self._ends = self._ends if self._spill.waiting > len(records) else {}
        self._spill.pass_over(self._ends)

    def doubt(self) -> None:
        """After a failure: what has arrived is looked for before anything is sent again."""
        self.close()
        self._line = None

    def close(self) -> None:
        """Throws away what has not left."""
        if self._line is not None:
            self._line.producer.purge()

    def _look(self, stopping: threading.Event) -> None:
        """Finds the records behind the mark that are in the log."""
        self._there = set()
        if self._ends and not stopping.wait(SETTLE_S):
            for record in self._client.read(self._ends, since=self._ends, uncommitted=True):
                self._there |= {value.decode() for name, value in record.headers() or [] if name == HEADER}

    def _note_ends(self, topics: set[str]) -> None:
        """Before records are sent: behind which positions they are to be looked for."""
        if topics <= self._ends.keys():
            return
        known = self._client.partitions()
        for topic in topics - self._ends.keys():
            self._ends[topic] = self._client.open_ends(topic, known.get(topic, 0))
        self._spill.begin(self._ends)

    def _send(self, line: Line, records: list[Record], stopping: threading.Event) -> bool:
        ended = 0
        faults: list[KafkaError] = []

        def done(error: KafkaError | None, message: Any) -> None:
            nonlocal ended
            ended += 1
            if error is not None:
                faults.append(error)
            elif (message.offset() or 0) >= 0:
                self._ends[message.topic()][message.partition()] = message.offset() + 1

        given = 0
        while given < len(records) and not faults and not stopping.is_set():
            if line.send(records[given], done):
                given += 1
            else:
                line.rest()
        clock = SystemClock()
        limit = None
        while ended < given and not faults and (limit is None or clock.monotonic() < limit):
            line.producer.poll(POLL_S)
            if limit is None and stopping.is_set():
                limit = clock.monotonic() + CLOSE_S
        if faults:
            raise MachineError("the log does not take them", got=faults[0].str())
        return ended == len(records)


def _name(record: Record) -> str:
    return record.headers[0][1] if record.headers else ""
