"""Courier: the threads that deliver the effects of all partitions and record the outcomes.

Some threads deliver, one records; all share one lock.
"""

import logging
import random
import threading
from collections.abc import Collection, Sequence

import msgspec

from headwater.clock import Clock
from headwater.errors import HeadwaterError, UnavailableError
from headwater.sink.dead_letters import EFFECT_HEADER, SUFFIX, loggable
from headwater.sink.effects.effect import (
    Delivered,
    Effect,
    JournalEntry,
    Outcome,
    ReceiverClient,
    Retry,
)
from headwater.sink.effects.journal import JournalRecord
from headwater.sink.effects.life import DeliveryEvent
from headwater.sink.effects.partition_queue import PartitionQueue
from headwater.sink.effects.receiver_health import ReceiverHealth
from headwater.sink.effects.schedule import pause_ms
from headwater.sink.store import Full, SinkFeed, Superseded

__all__ = ["PAUSE_MS_MAX", "WRITING_SECONDS", "Courier", "dead_topic"]

ASKED_SECONDS_MAX = 86_400.0
"""The longest pause that a receiver may ask for with Retry-After."""
REASON_CHARACTERS = 2_000
PAUSE_MS_MAX = round(1000 * ASKED_SECONDS_MAX)
"""The longest wait for an attempt; an entry with a longer one was written while the clock was wrong."""
POLL_SECONDS = 0.25
"""How soon a change of the clock by a test is noticed while something waits."""
AWAY_SECONDS = 1.0
COMMITS_MAX = 1_000_000
"""The recording thread waits for a log that is away: it has nothing else to do."""
WRITING_SECONDS = 5.0
"""How long other threads wait for it."""
LINGER_SECONDS = 5.0
"""How long a release waits for deliveries in progress, beyond the limit of the receiver's client."""

logger = logging.getLogger(__name__)


def dead_topic(feed: SinkFeed) -> str:
    return f"{feed.topic}{SUFFIX}"


class Courier:
    """Delivers the effects of all queues, those of a key in order, and records each outcome in the journal.

    Outcomes are recorded in the order in which they came. So after a crash an older change of a key is
    never repeated after a newer one, unless that is repeated too. While the journal has accepted nothing
    for half a session, nothing more is delivered.
    """

    def __init__(self, feed: SinkFeed, client: ReceiverClient, concurrency: int, clock: Clock) -> None:
        self._feed = feed
        self._client = client
        self._clock = clock
        self._chance = random.Random()  # noqa: S311  spreads retries
        self._lock = threading.Condition()
        self._queues: dict[int, PartitionQueue] = {}
        self._turn = 0
        self._health = ReceiverHealth(client.name, clock, self._chance)
        self._closing = False
        self._ended = False
        self._dead = dead_topic(feed)
        deliverers = [
            threading.Thread(target=self._deliver_effects, name=f"{feed.sink} delivers", daemon=True)
            for _ in range(concurrency)
        ]
        recorder = threading.Thread(target=self._record_outcomes, name=f"{feed.sink} records", daemon=True)
        self._threads = [*deliverers, recorder]
        for thread in self._threads:
            thread.start()

    @property
    def disabled(self) -> str:
        """Why the receiver is disabled; empty while it is active."""
        return self._health.reason

    # ---- for the thread that calls the store -----------------------------------------------------------

    def queue(self, partition: int) -> PartitionQueue:
        """The queue of a claimed partition. Raises the error that has ended it."""
        with self._lock:
            queue = self._queues.get(partition)
        if queue is None:
            raise Superseded(f"partition {partition} of sink {self._feed.sink!r} is not claimed")
        if queue.lost is not None:
            raise queue.lost
        return queue

    def queues(self) -> dict[int, PartitionQueue]:
        with self._lock:
            return dict(self._queues)

    def complain(self) -> None:
        """Raises, once, the error that has ended a partition: it needs a new claim."""
        for partition, queue in self.queues().items():
            if queue.lost is not None:
                with self._lock:
                    self._queues.pop(partition, None)
                raise queue.lost

    def take_up(self, queue: PartitionQueue) -> None:
        """Begins to deliver the effects of a claimed partition."""
        with self._lock:
            self._health.resume(queue.mark.failing_since_ms)
            self._queues[queue.partition.number] = queue
            self._lock.notify_all()

    def add(self, queue: PartitionQueue, entries: Sequence[JournalEntry], proved: float) -> None:
        """Delivers further effects, which the journal has accepted in a write that began at ``proved``."""
        with self._lock:
            queue.proved = max(queue.proved, proved)
            if queue.lost is None:
                queue.add(entries)
            self._lock.notify_all()

    def lose(self, queue: PartitionQueue, error: HeadwaterError) -> None:
        with self._lock:
            if queue.lost is None:
                logger.warning("sink %s: %s; it delivers nothing more of it", self._feed.sink, error)
                queue.lose(error)
            self._lock.notify_all()

    def wait_for_room(self, queues: Sequence[PartitionQueue], waiting_max: int, seconds: float) -> None:
        """Waits until each queue has less than ``waiting_max`` unfinished effects; Full after ``seconds``."""
        with self._lock:
            room = self._lock.wait_for(
                lambda: all(queue.waiting < waiting_max or queue.lost for queue in queues), seconds
            )
        if not room:
            slow = "it accepts them too slowly, or not at all"
            raise Full(
                f"{self._client.name}: {max(queue.waiting for queue in queues)} effects of a partition wait",
                expected=f"fewer than {waiting_max}",
                hint=f"it is disabled: {self.disabled}" if self.disabled else slow,
            )

    def waiting(self) -> int:
        """The number of effects that have not ended, or whose outcome is not in the journal yet."""
        with self._lock:
            return sum(queue.waiting + len(queue.unrecorded) for queue in self._queues.values())

    def release(self, partitions: Collection[int]) -> None:
        """Drops partitions, after deliveries in progress have ended and are recorded."""
        with self._lock:
            held = [self._queues[number] for number in partitions if number in self._queues]
            for queue in held:
                queue.paused = True
            self._lock.wait_for(
                lambda: not any(queue.in_flight for queue in held), self._client.patience_s + LINGER_SECONDS
            )
        for queue in held:
            if queue.unrecorded and queue.writing.acquire(timeout=LINGER_SECONDS):
                try:
                    self._write(queue, times=1)
                finally:
                    queue.writing.release()
        with self._lock:
            for partition in partitions:
                self._queues.pop(partition, None)

    def close(self) -> None:
        """Stops delivering, and records the outcomes of deliveries in progress."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        *deliverers, recorder = self._threads
        for thread in deliverers:
            thread.join(self._client.patience_s + LINGER_SECONDS)
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        recorder.join(WRITING_SECONDS)
        with self._lock:
            self._queues.clear()
        self._client.close()

    # ---- the threads that deliver ----------------------------------------------------------------------

    def _deliver_effects(self) -> None:
        while (taken := self._next()) is not None:
            queue, entry = taken
            outcome = self._deliver(entry.effect)
            with self._lock:
                queue.in_flight -= 1
                if queue.lost is None:
                    self._end(queue, entry, outcome)
                self._lock.notify_all()

    def _next(self) -> tuple[PartitionQueue, JournalEntry] | None:
        with self._lock:
            while not self._closing:
                taken = self._pick() if self._health.may_call() else None
                if taken is not None:
                    self._health.called()
                    return taken
                self._lock.wait()
        return None

    def _pick(self) -> tuple[PartitionQueue, JournalEntry] | None:
        """The next effect, from the partitions in turn."""
        queues = list(self._queues.values())
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        for step in range(len(queues)):
            queue = queues[(self._turn + step) % len(queues)]
            was_doubtful = queue.doubtful
            entry = queue.take(now_ms, now)
            if entry is not None:
                self._turn += step + 1
                return queue, entry
            if queue.doubtful and not was_doubtful:
                self._lock.notify_all()
        return None

    def _deliver(self, effect: Effect) -> Outcome:
        try:
            return self._client.deliver(effect)
        except Exception as error:  # noqa: BLE001  the thread continues after any failure of a client
            return Retry(type(error).__name__)

    def _end(self, queue: PartitionQueue, entry: JournalEntry, outcome: Outcome) -> None:
        try:
            self._settle(queue, entry, outcome)
        except Exception as error:  # a thread that ended would stop the sink without a word
            logger.exception("sink %s: the outcome of effect %s is lost", self._feed.sink, entry.effect.id)
            what = f"effect {entry.effect.id} has no outcome"
            queue.lose(UnavailableError(what, got=type(error).__name__))

    def _settle(self, queue: PartitionQueue, entry: JournalEntry, outcome: Outcome) -> None:
        """Moves the effect and the receiver to their next states."""
        reason = "" if isinstance(outcome, Delivered) else _plain(outcome.reason)
        asked_s = min(outcome.after_s, ASKED_SECONDS_MAX) if isinstance(outcome, Retry) else 0.0
        event = self._health.event(entry, outcome)
        letters: list[JournalRecord] = []
        match event:
            case DeliveryEvent.FAILED:
                attempts = entry.attempts + 1
                due_ms = self._clock.now_ms() + pause_ms(attempts, self._chance, asked_s)
                entry = JournalEntry(entry.effect, due_ms, attempts, reason)
            case DeliveryEvent.REJECTED:
                letters = [self._letter(entry.effect, reason)]
            case DeliveryEvent.EXHAUSTED:
                why = f"{entry.attempts + 1} attempts failed, the last with {reason}"
                letters = [self._letter(entry.effect, why)]
        queue.settle(entry, event, letters)
        self._health.move(event, reason, asked_s)

    def _letter(self, effect: Effect, reason: str) -> JournalRecord:
        logger.warning("%s: effect %s is dead: %s", self._client.name, effect.id, loggable(reason))
        headers = {
            "sink": self._feed.sink,
            "reason": reason,
            "topic": self._feed.topic,
            "partition": str(effect.partition),
            "offset": str(effect.offset),
            EFFECT_HEADER: effect.id,
        }
        value = None if effect.deleted else msgspec.json.encode(effect.row)
        return JournalRecord(self._dead, effect.key, value, headers=tuple(headers.items()))

    # ---- the thread that records -----------------------------------------------------------------------

    def _record_outcomes(self) -> None:
        while True:
            with self._lock:
                due = self._to_record()
                if not due and self._ended:
                    return
                if not due:
                    self._lock.notify_all()
                    self._lock.wait(self._until_due())
                    self._lock.notify_all()
            for queue in due:
                with queue.writing:
                    written = self._write(queue, COMMITS_MAX)
                if not written and self._ended:
                    return

    def _to_record(self) -> list[PartitionQueue]:
        return [q for q in self._queues.values() if q.lost is None and (q.unrecorded or q.doubtful)]

    def _until_due(self) -> float | None:
        """Seconds until the next effect is due. One that is due already waits for a delivering thread."""
        times = [due for queue in self._queues.values() if (due := queue.schedule.due_ms()) is not None]
        probe_due_ms = self._health.probe_due_ms
        if not times or (self._health.is_disabled and probe_due_ms is None):
            return None
        if probe_due_ms is not None:
            times = [max(min(times), probe_due_ms)]
        now_ms = self._clock.now_ms()
        return min([POLL_SECONDS, *(max(0.001, (due - now_ms) / 1000) for due in times if due > now_ms)])

    def _write(self, queue: PartitionQueue, times: int) -> bool:
        """Records the outcomes of a queue, or only that the partition is still ours.

        The caller holds ``writing``.
        """
        with self._lock:
            if queue.lost is not None:
                return False
            records = list(queue.unrecorded)
            count, since_ms = len(records), self._health.failing_since_ms
        mark = msgspec.structs.replace(queue.mark, failing_since_ms=since_ms)
        if mark != queue.mark or not records:
            records.append(queue.partition.mark(mark))
        begun = self._clock.monotonic()
        try:
            queue.partition.write(records, times)
        except HeadwaterError as error:
            self._on_unwritten(queue, error)
            return False
        except Exception as error:
            logger.exception("sink %s: the journal cannot be written", self._feed.sink)
            self.lose(queue, UnavailableError("the journal cannot be written", got=type(error).__name__))
            return False
        queue.mark = mark
        with self._lock:
            queue.recorded(count, begun)
            self._lock.notify_all()
        return True

    def _on_unwritten(self, queue: PartitionQueue, error: HeadwaterError) -> None:
        if isinstance(error, Superseded) or queue.partition.broken:
            self.lose(queue, error)
        else:
            logger.warning("sink %s: %s", self._feed.sink, error)
            with self._lock:
                self._lock.wait_for(lambda: self._ended, AWAY_SECONDS)


def _plain(reason: str) -> str:
    """The message of an exception, bounded and as text that can be written."""
    return reason[:REASON_CHARACTERS].encode(errors="replace").decode()
