"""Loop: the one consumer loop that keeps any store in sync with a topic, exactly once in effect.

    group       distributes partitions over processes (`Membership`)
    claim       is taken in the store for every partition that the group assigns; the store returns the
                offset to continue from, and fences the previous holder
    batch       the records that are there, up to the number that the store wants; it takes effect in the
                store together with its offsets, or not at all (`BatchWriter`)
    failures    Superseded: joins the group again. UnavailableError: waits (`Patience`), claims again and
                continues from the store's offsets. Poison: the record becomes a dead letter

The states and what follows them are the table in ``life.py``. If the topic was deleted and created again,
or no longer has what the store needs, the store is reset and filled from the start of the log.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from headwater.access import Log, access
from headwater.client.poll import TOPIC_MISSING
from headwater.client.topic_watch import Topic, TopicWatch
from headwater.clock import Clock, SystemClock
from headwater.errors import MachineError, UnavailableError, one_line
from headwater.sink.dead_letters import DeadLetters
from headwater.sink.log_consumer import Messages
from headwater.sink.loop.batch_writer import BatchWriter
from headwater.sink.loop.counters import Counters
from headwater.sink.loop.life import IN_GROUP, LIFE, SinkEvent, SinkState
from headwater.sink.loop.membership import Membership
from headwater.sink.loop.staleness import LostOffsets, outdated
from headwater.sink.patience import Patience
from headwater.sink.store import (
    SESSION_MS,
    Batch,
    DatedStore,
    DeliveringStore,
    SinkFeed,
    StartRecorder,
    Store,
    Superseded,
    Target,
)

__all__ = ["Loop"]

WAIT_S = 0.5
SEARCH_S = 0.05
COMMIT_S = 1.0
SEEN_S = 60.0
"""How often a store at the end of its partitions gets an empty batch.

A store that was restored from an older copy then refuses it."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Loop:
    """One sink in one process.

    Any number of processes may run the same sink: each has a part of the partitions.

    ``feed`` is called once the topic exists: it may have to wait for the first result of a view, and
    returns None until then. Guarantees: every record of the topic takes effect in the order of its
    partition, and not a second time; a UsageError of the store ends `run`.
    """

    def __init__(
        self,
        log: Log,
        sink: str,
        topic: str,
        target: Target,
        feed: Callable[[], SinkFeed | None],
        *,
        paused: Callable[[], bool] = lambda: False,
        session_ms: int = SESSION_MS,
        clock: Clock | None = None,
    ) -> None:
        self._log = access(log)
        self.sink = sink
        self._topic = self.topic = topic
        self._target = target
        self._ask_feed = feed
        self._paused = paused
        self._session_ms = session_ms
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._chance = random.Random()  # noqa: S311  spreads waits
        self.counters = Counters()
        self._watch = TopicWatch(self._log, [topic], self._clock)
        self._member = self._membership()
        self._commit_due = self._seen_due = self._began = 0.0
        self._filled_from = ""
        """The id of the topic from which this process has filled the store."""
        self._patience = Patience(sink, self._stopping, self._clock)
        self._failure: UnavailableError | None = None
        self._store_open = self._is_member = False
        self.state = SinkState.BEGINNING
        """Any thread may look."""
        self._waits_for = ""

        self._steps: Mapping[SinkState, Callable[[], SinkEvent]] = {
            SinkState.BEGINNING: self._record_beginning,
            SinkState.NO_TOPIC: self._find_topic,
            SinkState.NO_COLUMNS: self._find_columns,
            SinkState.OPENING: self._open,
            SinkState.JOINING: self._join,
            SinkState.RUNNING: self._run_round,
            SinkState.STORE_AWAY: self._wait_for_store,
            SinkState.TOPIC_GONE: self._find_topic,
        }

    def stop(self) -> None:
        """Stops after the current batch. Any thread may call it, and `run` returns soon."""
        self._stopping.set()

    def look(self) -> None:
        """Logs if the store has not answered for long. Called now and then by another thread."""
        self._patience.look()

    @property
    def trouble(self) -> str:
        """Why it waits for its store, or for its topic; empty while these work. Any thread may ask."""
        return self._patience.error or self._waits_for

    @property
    def positions(self) -> Mapping[int, int]:
        """For each partition that this process has claimed, the offset after what the store has."""
        return self._member.offsets

    @property
    def resting(self) -> bool:
        return self._member.resting

    def run(self) -> None:
        """Runs until `stop`; raises errors that waiting cannot cure."""
        self.state = SinkState.BEGINNING
        try:
            while self.state is not SinkState.STOPPED:
                event = self._steps[self.state]()
                following = LIFE[self.state][SinkEvent.STOP if self._stopping.is_set() else event]
                if self.state in IN_GROUP and following not in IN_GROUP:
                    self._leave()
                self.state = following
        finally:
            self._leave()
            if self._store_open:
                self._store.close()

    # ---- before the store is open ----------------------------------------------------------------------

    def _record_beginning(self) -> SinkEvent:
        target = self._target
        if isinstance(target, StartRecorder):
            begin = partial(target.begin, self._log, self.sink, self._topic)
            self._patience.until(lambda: self._ask_store(begin))
            self._patience.over()
        return SinkEvent.RECORDED

    def _find_topic(self) -> SinkEvent:
        is_logged = False
        while not self._stopping.is_set():
            topics = self._watch.look()
            topic = topics.get(self._topic)
            if topic is not None:
                self._found, self._waits_for = topic, ""
                return SinkEvent.TOPIC_FOUND
            if self._topic in topics and not is_logged:
                logger.info("sink %s: waiting for topic %s", self.sink, self._topic)
                is_logged = True
            self._stopping.wait(SEARCH_S)
        return SinkEvent.STOP

    def _find_columns(self) -> SinkEvent:
        is_logged = False
        while not self._stopping.is_set():
            try:
                feed, self._waits_for = self._ask_feed(), ""
            except MachineError as error:
                logger.warning("sink %s: %s", self.sink, error)
                feed, self._waits_for = None, one_line(error)
            if feed is not None:
                self._feed = msgspec.structs.replace(feed, log=self._log, session_ms=self._session_ms)
                self._target.check(self._feed)
                return SinkEvent.COLUMNS_KNOWN
            if not is_logged:
                logger.info("sink %s: waiting for the first result of %s", self.sink, self._topic)
                is_logged = True
            self._stopping.wait(WAIT_S)
        return SinkEvent.STOP

    def _open(self) -> SinkEvent:
        store = self._patience.until(lambda: self._ask_store(partial(self._target.open, self._feed)))
        if store is None:
            return SinkEvent.STOP
        self._store: Store = store
        self._store_open = True
        self._writer = BatchWriter(
            store,
            self._feed,
            letters=DeadLetters(self._log, self.sink, self._topic),
            counters=self.counters,
            patience=self._patience,
            was_suspended=self._was_suspended,
        )
        self._lost = LostOffsets(self._feed, self._watch)
        self._patience.over()
        return SinkEvent.OPENED

    # ---- the group -------------------------------------------------------------------------------------

    def _join(self) -> SinkEvent:
        """Joins the group once the store has rows of this topic only."""
        try:
            self._patience.until(lambda: self._ask_store(partial(self._check_origin, self._found)))
        except Superseded as error:
            self._step_back(error)
            return SinkEvent.SUPERSEDED
        self._member = self._membership()
        self._member.join()
        self._is_member = True
        return SinkEvent.JOINED

    def _leave(self) -> None:
        if self._is_member:
            self._is_member = False
            self._report()
            self._member.leave()

    def _membership(self) -> Membership:
        limit = getattr(self._target, "batch_records", 0)
        return Membership(
            self._log, self.sink, self._topic, self._session_ms, self._release, batch_records=limit
        )

    def _release(self, partitions: list[int]) -> None:
        if isinstance(self._store, DeliveringStore):
            self._store.release(partitions)

    def _step_back(self, error: Superseded) -> None:
        logger.info("sink %s: %s; joining the group again", self.sink, error)
        self._stopping.wait(self._chance.uniform(0, WAIT_S))

    # ---- one round -------------------------------------------------------------------------------------

    def _run_round(self) -> SinkEvent:
        self._began = self._clock.monotonic()
        try:
            return self._round(self._found)
        except Superseded as error:
            self._step_back(error)
            return SinkEvent.SUPERSEDED
        except UnavailableError as error:
            if self._was_suspended():
                self._patience.wait(error)
                return SinkEvent.SUSPENDED
            self._failure = error
            return SinkEvent.UNAVAILABLE

    def _round(self, topic: Topic) -> SinkEvent:
        """Claims what the group has assigned, and applies the records that are there."""
        topics = self._watch.look()
        current = topics.get(self._topic, topic)
        if current is None or current.id != topic.id:
            what = "was deleted" if current is None else "was deleted and created again"
            logger.warning("sink %s: its topic %s %s", self.sink, self._topic, what)
            self._watch.hurry()
            self._waits_for = f"topic {self._topic} was deleted" if current is None else ""
            return SinkEvent.TOPIC_LOST
        if self._topic in topics:
            self._lost.confirm(current)
        if self._member.unclaimed:
            self._claim(set(self._member.unclaimed), topic)
        self._member.rest(resting=self._paused())
        messages = self._member.take()
        if messages is not None:
            self._handle(messages)
            return SinkEvent.ROUND_OVER
        if self._member.is_complete():
            self._patience.over()
        self._tell()
        return SinkEvent.ROUND_OVER

    def _claim(self, partitions: set[int], topic: Topic) -> None:
        """Takes partitions over in the store, and reads from its offsets."""
        numbers = sorted(partitions)
        stored = dict(self._ask_store(partial(self._store.claim, numbers)))
        for partition, why in self._lost.find(stored, topic, self._member.ends).items():
            if not self._feed.append:
                self._ask_store(partial(self._reset, topic, why))
                raise Superseded("the store was emptied")
            # The rows in the store stay right: each is a record of its own. The records between are lost.
            logger.warning(
                "sink %s: %s; records are missing, continuing from the start of the log", self.sink, why
            )
            del stored[partition]
        self._member.claimed(numbers, stored)

    def _handle(self, messages: Messages) -> None:
        for message in messages.errors:
            self._excuse(message.error())
        ends = {
            partition: end
            for (_, partition), end in messages.ends.items()
            if self._member.ended(partition, end)
        }
        if not messages.records and not ends:
            return
        batch = self._writer.write(messages.records, self._member.offsets, ends)
        self._patience.over()
        self._member.applied(batch)
        self.counters.applied += len(batch.changes)
        self._tell()

    def _tell(self) -> None:
        """Commits offsets for tools that measure lag, and now and then sends a store an empty batch."""
        now = self._clock.monotonic()
        if now >= self._commit_due:
            self._commit_due = now + COMMIT_S
            self._report()
            if isinstance(self._store, DeliveringStore):
                self._ask_store(partial(self._store.apply, Batch((), {})))
        held = self._member.offsets
        if now >= self._seen_due and held and self._member.is_complete():
            self._seen_due = now + SEEN_S
            if not isinstance(self._store, DeliveringStore) and not self.resting:
                seen = Batch((), {p: offset for p, offset in held.items() if offset})
                self._ask_store(partial(self._store.apply, seen))

    def _report(self) -> None:
        self.counters.lag = self._member.lag()
        self._member.commit()

    def _ask_store(self, act: Callable[[], T]) -> T:
        """A call to the store, which `look` notices if it does not return."""
        with self._patience.answer():
            return act()

    # ---- failures --------------------------------------------------------------------------------------

    def _excuse(self, error: Any) -> None:
        """Acts on an error of the consumer; the client itself retries what it can."""
        if error.fatal():
            raise MachineError(f"sink {self.sink!r}: reading the log failed", got=error.str())
        if error.name() == "_AUTO_OFFSET_RESET":
            raise Superseded(f"the log no longer has the offsets of topic {self._topic}")
        if error.name() in TOPIC_MISSING:
            self._watch.hurry()
        else:
            logger.warning("sink %s: %s", self.sink, error.str())

    def _check_origin(self, topic: Topic) -> None:
        """Empties the store if its rows are from another topic, or if the log has lost what they need."""
        why = ""
        if isinstance(self._store, DatedStore):
            why = outdated(self._store, self._feed, topic, self._log, self._clock)
        elif self._filled_from not in {"", topic.id}:
            why = f"topic {self._topic} was deleted and created again"
        if why:
            self._reset(topic, why)
        self._filled_from = topic.id

    def _reset(self, topic: Topic, why: str) -> None:
        logger.warning("sink %s: %s; filling the store again from the start of the log", self.sink, why)
        self.counters.resets += 1
        self._store.reset()
        if isinstance(self._store, DatedStore) and topic.id:
            self._store.adopt(topic.id)

    def _was_suspended(self) -> bool:
        """Whether a successor may have our partitions by now: to claim them again would fence it."""
        return self._clock.monotonic() - self._began > self._session_ms / 1000

    def _wait_for_store(self) -> SinkEvent:
        """Waits until the partitions can be claimed again."""
        self._member.hold()

        def claim_again() -> bool:
            held = self._member.stay()
            if held:
                self._claim(held, self._found)
            return True

        try:
            self._patience.until(claim_again, self._failure)
        except Superseded as error:
            logger.info("sink %s: %s; joining the group again", self.sink, error)
            return SinkEvent.SUPERSEDED
        return SinkEvent.CLAIMED
