"""Courier: the threads that carry what the lanes hold and record how it ended. Some carry, one records; all share one lock."""

import logging
import random
import threading
from collections.abc import Collection, Sequence

import msgspec

from headwater.clock import Clock
from headwater.errors import Away, HeadwaterError
from headwater.sink.effect import Again, Carrier, Dead, Done, Effect, Entry, Gone, Outcome
from headwater.sink.journal import Record
from headwater.sink.lane import Lane
from headwater.sink.letters import EFFECT, ENDING, loggable
from headwater.sink.schedule import pause_ms, probe_ms
from headwater.sink.store import Feed, Full, Superseded

__all__ = ["Courier", "dead_topic"]

DISABLED_AFTER_MS = 5 * 24 * 3_600_000
"""A receiver that has taken nothing for so long is disabled: it gets one effect now and then, until it takes one."""
ASKED_SECONDS_MAX = 86_400.0
"""How long a receiver may put us off with Retry-After."""
REASON_CHARACTERS = 2_000
PAUSE_MS_MAX = round(1000 * ASKED_SECONDS_MAX)
"""Nothing waits longer for its next attempt; what says so was written while the clock was wrong."""
POLL_SECONDS = 0.25
"""How soon it is noticed, while something waits, that a test has moved the time."""
AWAY_SECONDS = 1.0
COMMITS_MAX = 1_000_000
"""The one that records has nothing better to do than to wait for a log that is away."""
WRITING_SECONDS = 5.0
"""How long others wait for it."""
LINGER_SECONDS = 5.0
"""How long a release waits for what is being carried, beyond the carrier's own limit."""

logger = logging.getLogger(__name__)


def dead_topic(feed: Feed) -> str:
    return f"{feed.topic}{ENDING}"


class Courier:
    """Carries the effects of all lanes, those of a key one after the other, and writes each end to its lane's page.

    Ends are recorded in the order in which they came, so that a crash never brings an older change of a key behind a newer one that is
    not carried again too. While the journal has taken nothing for half a session, nothing more is carried.
    """

    def __init__(self, feed: Feed, carrier: Carrier, concurrency: int, clock: Clock) -> None:
        self._feed = feed
        self._carrier = carrier
        self._clock = clock
        self._chance = random.Random()  # noqa: S311  spreads retries
        self._state = threading.Condition()
        self._lanes: dict[int, Lane] = {}
        self._turn = 0
        self._failing_since_ms: int | None = None
        self._met = False
        """Whether the receiver was called in this process: then it is known how it is."""
        self._closing = False
        self._ended = False
        self.disabled = ""
        """Why the receiver is not called any more; empty while it is."""
        self._probe_due_ms: int | None = None
        """When one that is disabled is called again, with one effect; None: never."""
        self._dead = dead_topic(feed)
        works = [
            threading.Thread(target=self._work, name=f"{feed.sink} carries", daemon=True)
            for _ in range(concurrency)
        ]
        self._threads = [
            *works,
            threading.Thread(target=self._record, name=f"{feed.sink} records", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # For the thread that calls the store.

    def lane(self, partition: int) -> Lane:
        """Raises what has ended it."""
        with self._state:
            lane = self._lanes.get(partition)
        if lane is None:
            raise Superseded(f"partition {partition} of sink {self._feed.sink!r} is not claimed")
        if lane.lost is not None:
            raise lane.lost
        return lane

    def lanes(self) -> dict[int, Lane]:
        with self._state:
            return dict(self._lanes)

    def complain(self) -> None:
        """Raises, once, what has ended a partition that is still ours by the group: only a new claim lets it go on."""
        for partition, lane in self.lanes().items():
            if lane.lost is not None:
                with self._state:
                    self._lanes.pop(partition, None)
                raise lane.lost

    def take_up(self, lane: Lane) -> None:
        """Begins to carry what a claim has found."""
        with self._state:
            since = lane.mark.failing_since_ms
            if not self._met and since is not None:
                self._failing_since_ms = min(since, self._failing_since_ms or since, self._clock.now_ms())
            self._lanes[lane.page.partition] = lane
            self._state.notify_all()

    def add(self, lane: Lane, entries: Sequence[Entry], proved: float) -> None:
        """Carries further effects of a lane, which the journal has taken; `proved` is from before it was asked to."""
        with self._state:
            lane.proved = max(lane.proved, proved)
            if lane.lost is None:
                lane.add(entries)
            self._state.notify_all()

    def lose(self, lane: Lane, error: HeadwaterError) -> None:
        with self._state:
            if lane.lost is None:
                logger.warning("sink %s: %s; it carries nothing more of it", self._feed.sink, error)
                lane.lose(error)
            self._state.notify_all()

    def wait_for_room(self, lanes: Sequence[Lane], waiting_max: int, seconds: float) -> None:
        """Until each lane has fewer unfinished effects than that; Full when the time is over."""
        with self._state:
            room = self._state.wait_for(
                lambda: all(lane.waiting < waiting_max or lane.lost for lane in lanes), seconds
            )
        if not room:
            slow = "it takes them too slowly, or not at all"
            raise Full(
                f"{self._carrier.name}: {max(lane.waiting for lane in lanes)} effects of a partition wait for it",
                expected=f"fewer than {waiting_max}",
                hint=f"it is disabled: {self.disabled}" if self.disabled else slow,
            )

    def waiting(self) -> int:
        """How many effects have not ended, or have an end that is not in the journal yet."""
        with self._state:
            return sum(lane.waiting + len(lane.unrecorded) for lane in self._lanes.values())

    def release(self, partitions: Collection[int]) -> None:
        """Lets go of partitions: waits for what is being carried, and records it."""
        with self._state:
            held = [self._lanes[each] for each in partitions if each in self._lanes]
            for lane in held:
                lane.paused = True
            self._state.wait_for(
                lambda: not any(lane.flying for lane in held), self._carrier.patience_s + LINGER_SECONDS
            )
        for lane in held:
            if lane.unrecorded and lane.writing.acquire(timeout=LINGER_SECONDS):
                try:
                    self._write(lane, times=1)
                finally:
                    lane.writing.release()
        with self._state:
            for partition in partitions:
                self._lanes.pop(partition, None)

    def close(self) -> None:
        """Stops carrying, and records what was being carried."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        *works, recorder = self._threads
        for thread in works:
            thread.join(self._carrier.patience_s + LINGER_SECONDS)
        with self._state:
            self._ended = True
            self._state.notify_all()
        recorder.join(WRITING_SECONDS)
        with self._state:
            self._lanes.clear()
        self._carrier.close()

    # The threads that carry.

    def _work(self) -> None:
        while (found := self._next()) is not None:
            lane, entry = found
            outcome = self._carry(entry.effect)
            with self._state:
                lane.flying -= 1
                if lane.lost is None:
                    self._end(lane, entry, outcome)
                self._state.notify_all()

    def _next(self) -> tuple[Lane, Entry] | None:
        with self._state:
            while not self._closing:
                found = self._pick() if self._may_call() else None
                if found is not None:
                    if self.disabled:
                        self._probe_due_ms = self._clock.now_ms() + probe_ms(self._chance)
                    return found
                self._state.wait()
        return None

    def _may_call(self) -> bool:
        due = self._probe_due_ms
        return not self.disabled or (due is not None and due <= self._clock.now_ms())

    def _pick(self) -> tuple[Lane, Entry] | None:
        """The next effect, partitions in turn."""
        lanes = list(self._lanes.values())
        now_ms, now = self._clock.now_ms(), self._clock.monotonic()
        for step in range(len(lanes)):
            lane = lanes[(self._turn + step) % len(lanes)]
            sure = not lane.doubtful
            entry = lane.take(now_ms, now)
            if entry is not None:
                self._turn += step + 1
                return lane, entry
            if sure and lane.doubtful:
                self._state.notify_all()
        return None

    def _carry(self, effect: Effect) -> Outcome:
        try:
            return self._carrier.carry(effect)
        except Exception as error:  # noqa: BLE001  whatever a carrier meets, its thread goes on
            return Again(type(error).__name__)

    def _end(self, lane: Lane, entry: Entry, outcome: Outcome) -> None:
        try:
            self._settle(lane, entry, outcome)
        except Exception as error:  # a thread that ends would let the sink stand still without a word
            logger.exception("sink %s: the end of effect %s is lost", self._feed.sink, entry.effect.id)
            lane.lose(Away(f"effect {entry.effect.id} has no end", got=type(error).__name__))

    def _settle(self, lane: Lane, entry: Entry, outcome: Outcome) -> None:
        effect = entry.effect
        self._met = True
        match outcome:
            case Done():
                self._failing_since_ms = None
                lane.end(effect)
                self._enable()
            case Dead(reason):
                self._bury(lane, effect, _plain(reason))
            case Gone(reason):
                lane.retry(entry)
                self._disable(reason, None)
            case Again(reason, after_s):
                self._put_off(lane, entry, _plain(reason), min(after_s, ASKED_SECONDS_MAX))

    def _put_off(self, lane: Lane, entry: Entry, reason: str, asked_s: float) -> None:
        now_ms, attempts = self._clock.now_ms(), entry.attempts + 1
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms
        pause = pause_ms(attempts, self._chance, asked_s)
        if now_ms - self._failing_since_ms >= DISABLED_AFTER_MS:
            lane.retry(entry)
            due_ms = now_ms + probe_ms(self._chance, asked_s)
            self._disable(f"it has failed for five days, the last time with {reason}", due_ms)
        elif pause is None:
            self._bury(lane, entry.effect, f"{attempts} attempts failed, the last with {reason}")
        else:
            lane.retry(Entry(entry.effect, now_ms + pause, attempts, reason))

    def _bury(self, lane: Lane, effect: Effect, reason: str) -> None:
        logger.warning("%s: effect %s is dead: %s", self._carrier.name, effect.id, loggable(reason))
        headers = {
            "sink": self._feed.sink,
            "reason": reason,
            "topic": self._feed.topic,
            "partition": str(effect.partition),
            "offset": str(effect.offset),
            EFFECT: effect.id,
        }
        value = None if effect.deleted else msgspec.json.encode(effect.row)
        lane.end(effect, [Record(self._dead, effect.key, value, headers=tuple(headers.items()))])

    def _disable(self, reason: str, probe_due_ms: int | None) -> None:
        self._probe_due_ms = probe_due_ms
        if not self.disabled:
            self.disabled = reason
            later = (
                "a restart calls it again" if probe_due_ms is None else "it gets one effect every 10 hours"
            )
            logger.error(
                "%s is disabled: %s; what waits for it is kept, and %s",
                self._carrier.name,
                reason.partition(": ")[0],
                later,
            )

    def _enable(self) -> None:
        if self._probe_due_ms is not None:
            logger.warning("%s takes effects again; what has waited for it is told", self._carrier.name)
            self.disabled, self._probe_due_ms = "", None

    # The thread that records.

    def _record(self) -> None:
        while True:
            with self._state:
                due = self._to_record()
                if not due and self._ended:
                    return
                if not due:
                    self._state.notify_all()
                    self._state.wait(self._until_due())
                    self._state.notify_all()
            for lane in due:
                with lane.writing:
                    written = self._write(lane, COMMITS_MAX)
                if not written and self._ended:
                    return

    def _to_record(self) -> list[Lane]:
        return [
            lane for lane in self._lanes.values() if lane.lost is None and (lane.unrecorded or lane.doubtful)
        ]

    def _until_due(self) -> float | None:
        """Seconds until something falls due. What is due already waits for somebody to carry it."""
        times = [due for lane in self._lanes.values() if (due := lane.schedule.due_ms()) is not None]
        if not times or (self.disabled and self._probe_due_ms is None):
            return None
        if self._probe_due_ms is not None:
            times = [max(min(times), self._probe_due_ms)]
        now_ms = self._clock.now_ms()
        return min([POLL_SECONDS, *(max(0.001, (due - now_ms) / 1000) for due in times if due > now_ms)])

    def _write(self, lane: Lane, times: int) -> bool:
        """Records what has ended in a lane, or only that it is still ours. Whoever calls holds ``writing``."""
        with self._state:
            if lane.lost is not None:
                return False
            records = list(lane.unrecorded)
            ends, since = len(records), self._failing_since_ms
        mark = msgspec.structs.replace(lane.mark, failing_since_ms=since)
        if mark != lane.mark or not records:
            records.append(lane.page.mark(mark))
        begun = self._clock.monotonic()
        try:
            lane.page.write(records, times)
        except HeadwaterError as error:
            self._unwritten(lane, error)
            return False
        except Exception as error:
            logger.exception("sink %s: the journal cannot be written", self._feed.sink)
            self.lose(lane, Away("the journal cannot be written", got=type(error).__name__))
            return False
        lane.mark = mark
        with self._state:
            lane.recorded(ends, begun)
            self._state.notify_all()
        return True

    def _unwritten(self, lane: Lane, error: HeadwaterError) -> None:
        if isinstance(error, Superseded) or lane.page.broken:
            self.lose(lane, error)
        else:
            logger.warning("sink %s: %s", self._feed.sink, error)
            with self._state:
                self._state.wait_for(lambda: self._ended, AWAY_SECONDS)


def _plain(reason: str) -> str:
    """What somebody's exception says, bounded and as text that can be written."""
    return reason[:REASON_CHARACTERS].encode(errors="replace").decode()
