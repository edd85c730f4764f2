"""Spilling: records for which there is no room wait in files, from which they are sent into the log in order.

They are sent by a producer that never gives up, so one process never duplicates a record. After a crash it is
unknown which of the records after the mark have arrived. Each has its identity in a header: the next writer
of the name looks for them in the log after the positions of the mark, and sends only those that are missing.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Producer

from headwater.client.client import Client
from headwater.clock import Clock, SystemClock
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.write.outlet import POLL_S, CallTally, Outlet, ProducerRecord, no_room
from headwater.write.rate_limit import Bucket
from headwater.write.spill_file import HEADER, SpillFile

__all__ = ["Spilling"]

BATCH_RECORDS = 500
"""Records between two marks."""
RECORD_BYTES_MAX = 1_000_000
"""Bytes of key and value; the client library does not send larger records either."""
IDLE_S = 1.0
AGAIN_S = 1.0
"""Before records that the log has refused are sent again."""
SETTLE_S = 2.0
"""After a crash: how long a request of the dead process may take until it shows in the log."""
CLOSE_S = 5.0
"""How long `close` waits for acknowledgements; the next writer looks for records without one."""

logger = logging.getLogger(__name__)


class Spilling:
    """Puts records for which there is no room into a bounded file, and all later ones too until it is empty.

    Any thread may call.
    """

    def __init__(
        self,
        outlet: Outlet,
        spill: SpillFile,
        client: Client,
        make: Callable[[], Producer],
        *,
        in_flight_max: int,
        wait_s: float,
        clock: Clock,
    ) -> None:
        self._outlet = outlet
        self._spill = spill
        self._clock = clock
        self._wait_s = wait_s
        self._began = spill.mark.sent
        self._lock = threading.Lock()
        self._failed_at = -1
        """The number of records sent from the file when direct sending last failed.

        Until more have been sent, the log has not answered, and new records go into the file.
        """
        self._stopping = threading.Event()
        self._filled = threading.Event()
        self._drain = _Drain(spill, client, make, outlet.bucket, in_flight_max)
        self._thread = threading.Thread(target=self._run, name=f"spill {spill.folder.name}", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        return self._spill.waiting

    def state(self) -> tuple[int, int]:
        """How many records wait in the file, and how many this writer has sent from it into the log."""
        sent = self._spill.mark.sent
        return self._spill.end - sent, sent - self._began

    def give(self, record: ProducerRecord, tally: CallTally) -> None:
        with self._lock:
            free = not self._spill.waiting and self._spill.mark.sent != self._failed_at
            if free and self._outlet.send(record, tally.count_sent):
                return
        key = record.key.encode() if isinstance(record.key, str) else record.key
        if len(key or b"") + len(record.value or b"") > RECORD_BYTES_MAX:
            raise UsageError("the record is too large", expected=f"at most {RECORD_BYTES_MAX:,} bytes")
        limit = self._clock.monotonic() + self._wait_s
        while not self._append(record):
            if self._clock.monotonic() >= limit:
                raise no_room(record.topic, self._wait_s)
            self._stopping.wait(POLL_S)
        tally.spilled += 1
        self._filled.set()

    def settle(self, tally: CallTally, limit: float) -> None:
        if tally.spilled:
            self._spill.sync()
        while tally.waiting and self._clock.monotonic() < limit:
            self._outlet.producer.poll(POLL_S)
        if tally.failed:
            self._failed_at = self._spill.mark.sent

    def flush(self, timeout_s: float) -> bool:
        """Waits until the file is empty; returns False if that takes longer."""
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

    def _append(self, record: ProducerRecord) -> bool:
        with self._lock:
            return self._spill.append(record, self._clock.now_ms())

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._filled.clear()
                if not self._spill.waiting:
                    self._filled.wait(IDLE_S)
                elif len(self._outlet.producer):  # these records came before those in the file
                    self._outlet.producer.poll(POLL_S)
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
    """Sends the records of a spill, batch by batch; belongs to one thread."""

    def __init__(
        self,
        spill: SpillFile,
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
        self._outlet: Outlet | None = None
        self._arrived: set[str] = set()
        """Identities of records after the mark that are in the log."""

    def batch(self, stopping: threading.Event) -> None:
        """Sends the next records, and passes over them when all of them are in the log."""
        if self._outlet is None:
            self._look(stopping)
            self._outlet = Outlet(self._make(), self._bucket, self._in_flight_max)
        records = self._spill.first(BATCH_RECORDS)
        self._note_ends({record.topic for record in records})
        missing = [record for record in records if _name(record) not in self._arrived]
        if not self._send(self._outlet, missing, stopping):
            return
        # After a pause, others may have written to the topics: then records are looked for after that.
        self._ends = self._ends if self._spill.waiting > len(records) else {}
        self._spill.pass_over(self._ends)

    def doubt(self) -> None:
        """After a failure: before anything is sent again, looks for what has arrived."""
        self.close()
        self._outlet = None

    def close(self) -> None:
        """Discards what has not been sent."""
        if self._outlet is not None:
            self._outlet.producer.purge()

    def _look(self, stopping: threading.Event) -> None:
        """Finds the records after the mark that are in the log."""
        self._arrived = set()
        if self._ends and not stopping.wait(SETTLE_S):
            for record in self._client.read(self._ends, since=self._ends, uncommitted=True):
                self._arrived |= {value.decode() for name, value in record.headers() or [] if name == HEADER}

    def _note_ends(self, topics: set[str]) -> None:
        """Before records are sent: stores the positions after which to look for them."""
        if topics <= self._ends.keys():
            return
        counts = self._client.partitions()
        for topic in topics - self._ends.keys():
            self._ends[topic] = self._client.open_ends(topic, counts.get(topic, 0))
        self._spill.begin(self._ends)

    def _send(self, outlet: Outlet, records: list[ProducerRecord], stopping: threading.Event) -> bool:
        ended = 0
        faults: list[KafkaError] = []

        def done(error: KafkaError | None, message: Any) -> None:
            nonlocal ended
            ended += 1
            if error is not None:
                faults.append(error)
            elif (message.offset() or 0) >= 0:
                self._ends[message.topic()][message.partition()] = message.offset() + 1

        sent = 0
        while sent < len(records) and not faults and not stopping.is_set():
            if outlet.send(records[sent], done):
                sent += 1
            else:
                outlet.rest()
        clock = SystemClock()
        limit = None
        while ended < sent and not faults and (limit is None or clock.monotonic() < limit):
            outlet.producer.poll(POLL_S)
            if limit is None and stopping.is_set():
                limit = clock.monotonic() + CLOSE_S
        if faults:
            raise MachineError("the log does not take records", got=faults[0].str())
        return ended == len(records)


def _name(record: ProducerRecord) -> str:
    return str(record.headers[0][1]) if record.headers else ""
