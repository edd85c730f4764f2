"""Loop: the one consumer loop that keeps any store in step with a topic, exactly once in effect.

    group       spreads partitions over processes (`Membership`)
    claim       taken in the store for every partition that is assigned; says where to go on, and shuts out the holder before
    batch       what is there, up to as many records as the store wants; it takes effect in the store together with its offsets, or not at all
    trouble     Superseded: joins anew. Away: waits (`Patience`), claims again, goes on from what the store says. Poison: dead letter, and on
                without it.

The topic was deleted and made again, or has forgotten what the store needs: the store is reset and filled from the log's start.
"""

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headwater.access import Log, access
from headwater.change import Change
from headwater.clock import Clock, SystemClock
from headwater.errors import Away, MachineError, UsageError
from headwater.sink.count import Counters
from headwater.sink.envelope import opener
from headwater.sink.letters import DeadLetters
from headwater.sink.membership import Membership
from headwater.sink.message import sort
from headwater.sink.origin import outdated
from headwater.sink.patience import Patience
from headwater.sink.store import (
    SESSION_MS,
    Batch,
    Beginning,
    Carrying,
    Dated,
    Feed,
    Poison,
    Store,
    Superseded,
    Target,
)
from headwater.sink.topics import Topic, TopicWatch

__all__ = ["Loop"]

WAIT_S = 0.5
ATTEMPTS = 3
COMMIT_S = 1.0
SEEN_S = 60.0
"""How often a store at the end of its partitions is told that it still is there; one that was restored from an older copy meanwhile says so."""
GONE = ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION")

logger = logging.getLogger(__name__)


class Loop:
    """One sink in one process. Any number of processes may run the same sink: each has a part of the partitions.

    ``feed`` is asked for once the topic is there: it may have to wait for the first result of a view, and gives None until then. Guarantees:
    every record of the topic takes effect in the order of its partition, and not a second time; a UsageError of the store ends `run`.
    """

    def __init__(
        self,
        log: Log,
        sink: str,
        topic: str,
        target: Target,
        feed: Callable[[], Feed | None],
        *,
        paused: Callable[[], bool] = lambda: False,
        session_ms: int = SESSION_MS,
        clock: Clock | None = None,
    ) -> None:
        self._log = access(log)
        self.sink = sink
        self._topic = topic
        self._target = target
        self._ask_feed = feed
        self._paused = paused
        self._session_ms = session_ms
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._chance = random.Random()  # noqa: S311  spreads waits
        self.counters = Counters()
        self._letters = DeadLetters(self._log, sink, topic)
        self._watch = TopicWatch(self._log, [topic], self._clock)
        self._member = self._membership()
        self._commit_due = self._seen_due = self._began = 0.0
        self._filled_from = ""
        """The id of the topic that this process has filled the store from."""
        self._patience = Patience(sink, self._stopping, self._clock)
        self._doubted = False
        self._same: str | None = None
        """The id of the topic of which the log was asked again, since it is shorter than the rows of the store, and that it still has."""

    def stop(self) -> None:
        """Ends after the batch in hand; any thread may call it, and `run` returns soon."""
        self._stopping.set()

    def look(self) -> None:
        """Says it when the store has not answered for long; for a thread that looks now and then."""
        self._patience.look()

    @property
    def positions(self) -> Mapping[int, int]:
        """By partition that this process has claimed, the offset behind what the store has."""
        return self._member.next

    @property
    def resting(self) -> bool:
        return self._member.resting

    def run(self) -> None:
        """Runs until `stop`; raises what will not go away by waiting."""
        target = self._target
        if isinstance(target, Beginning):
            self._patience.until(lambda: target.begin(self._log, self.sink, self._topic))
            self._patience.over()
        topic = self._find_topic()
        feed = self._find_feed()
        if topic is None or feed is None:
            return
        self._feed = feed = msgspec.structs.replace(feed, log=self._log, session_ms=self._session_ms)
        self._target.check(feed)
        self._opened = opener(feed) if feed.enveloped else None
        store = self._patience.until(lambda: self._target.open(feed))
        if store is None:
            return
        self._store: Store = store
        self._patience.over()
        try:
            while topic is not None and not self._stopping.is_set():
                topic = self._live(topic) or self._find_topic()
        finally:
            store.close()

    # ---- one membership of the group -------------------------------------------------------------------

    def _live(self, topic: Topic) -> Topic | None:
        """From joining the group until a reason to join it anew: the topic to do it with, None when it is another one."""
        try:
            self._patience.until(lambda: self._root(topic))
        except Superseded as error:
            self._step_back(error)
            return topic
        self._member = self._membership()
        self._member.join()
        try:
            while not self._stopping.is_set():
                self._began = self._clock.monotonic()
                try:
                    if not self._turn(topic):
                        self._watch.hurry()
                        return None
                except Superseded as error:
                    self._step_back(error)
                    return topic
                except Away as error:
                    if self._was_suspended():
                        self._patience.wait(error)
                        return topic
                    if not self._wait_for(error, topic):
                        return topic
            return topic
        finally:
            self._report()
            self._member.leave()

    def _membership(self) -> Membership:
        wanted = getattr(self._target, "batch_records", 0)
        return Membership(
            self._log, self.sink, self._topic, self._session_ms, self._release, batch_records=wanted
        )

    def _release(self, partitions: list[int]) -> None:
        if isinstance(self._store, Carrying):
            self._store.release(partitions)

    def _step_back(self, error: Superseded) -> None:
        logger.info("sink %s: %s; joining anew", self.sink, error)
        self._stopping.wait(self._chance.uniform(0, WAIT_S))

    def _turn(self, topic: Topic) -> bool:
        """One round: what was assigned is claimed, what has come is applied. False when the topic is another one."""
        answer = self._watch.look()
        found = answer.get(self._topic, topic)
        if found is None or found.id != topic.id:
            what = "is gone" if found is None else "was deleted and made again"
            logger.warning("sink %s: its topic %s %s", self.sink, self._topic, what)
            return False
        if self._doubted and self._topic in answer:
            self._same = found.id
        if self._member.fresh:
            self._claim(set(self._member.fresh), topic)
        self._member.rest(resting=self._paused())
        messages = self._member.take()
        if messages:
            return self._handle(messages)
        if self._member.is_complete():
            self._patience.over()
        return self._tell()

    def _claim(self, partitions: set[int], topic: Topic) -> None:
        """Takes partitions over in the store, and reads on from where it stands."""
        chosen = sorted(partitions)
        with self._patience.answer():
            stored = dict(self._store.claim(chosen))
        for partition, why in self._lost(stored, topic).items():
            if not self._feed.append:
                self._reset(topic, why)
                raise Superseded("the store is filled anew")
            # Rows that are there stay right: each is a record of its own. Those in between cannot be had any more.
            logger.warning("sink %s: %s; records are missing, going on from the log's start", self.sink, why)
            del stored[partition]
        self._member.claimed(chosen, stored)

    # ---- one batch -------------------------------------------------------------------------------------

    def _handle(self, messages: Sequence[Any]) -> bool:
        records = [message for message in messages if message.error() is None]
        passed = self._note(messages) if len(records) < len(messages) else {}
        if records or passed:
            self._deliver(records, passed)
        return True

    def _note(self, messages: Sequence[Any]) -> dict[int, int]:
        """What is no record: errors, and ends of partitions. The ends are given back that lie behind what the store has: markers, or what was compacted."""
        passed = {}
        for message in messages:
            error = message.error()
            if error is None:
                continue
            partition, end = message.partition(), message.offset()
            if error.name() != "_PARTITION_EOF":
                self._excuse(error)
            elif self._member.ended(partition, end):
                passed[partition] = end
        return passed

    def _deliver(self, records: Sequence[Any], passed: dict[int, int]) -> None:
        changes, upto, refused = sort(records, keyless=self._feed.append, opened=self._opened)
        held = self._member.next
        if not upto.keys() <= held.keys():  # a partition that was given back meanwhile
            records = [message for message in records if message.partition() in held]
            changes, upto, refused = sort(records, keyless=self._feed.append, opened=self._opened)
        for message, reason in refused:
            if message.offset() >= held[message.partition()]:
                self._bury(message, reason)
        for partition, end in passed.items():
            upto[partition] = max(end, upto.get(partition, 0))
        batch = self._apply(Batch(changes, upto), records)
        self._patience.over()
        self._member.applied(batch)
        self.counters.applied += len(batch.changes)
        self._tell()

    def _apply(self, batch: Batch, records: Sequence[Any]) -> Batch:
        """Applies a batch, without the records that cannot be; what took effect."""
        attempts = 0
        while True:
            try:
                with self._patience.answer():
                    self._store.apply(batch)
            except Poison as error:
                attempts += 1
                if attempts >= ATTEMPTS:
                    batch = self._without(batch, error, records)
                    attempts = 0
                if self._was_suspended():
                    raise Superseded("this process was suspended for longer than its session") from error
                self._store.claim(list(batch.upto))
            else:
                return batch

    def _without(self, batch: Batch, error: Poison, records: Sequence[Any]) -> Batch:
        place = (error.partition, error.offset)
        kept: list[Change] = [c for c in batch.changes if (c.partition, c.offset) != place]
        found = [m for m in records if (m.partition(), m.offset()) == place]
        if not found:
            raise MachineError(
                f"sink {self.sink!r} cannot take a record that is not in its batch", got=f"{place}"
            )
        self._bury(found[0], str(error))
        return msgspec.structs.replace(batch, changes=kept)

    def _bury(self, message: Any, reason: str) -> None:
        self._letters.put(message, reason)
        self.counters.dead += 1

    def _tell(self) -> bool:
        """Commits offsets for those who measure lag, and tells a store that is complete that it is."""
        now = self._clock.monotonic()
        if now >= self._commit_due:
            self._commit_due = now + COMMIT_S
            self._report()
            if isinstance(self._store, Carrying):
                self._store.apply(Batch((), {}))
        held = self._member.next
        if now >= self._seen_due and held and self._member.is_complete():
            self._seen_due = now + SEEN_S
            if not isinstance(self._store, Carrying) and not self.resting:
                self._store.apply(Batch((), {p: offset for p, offset in held.items() if offset}))
        return True

    def _report(self) -> None:
        self.counters.behind = self._member.behind()
        self._member.commit()

    # ---- trouble ---------------------------------------------------------------------------------------

    def _excuse(self, error: Any) -> None:
        """Acts on what the consumer reported; the client itself retries what it can."""
        if error.fatal():
            raise MachineError(f"sink {self.sink!r}: reading the log failed", got=error.str())
        if error.name() == "_AUTO_OFFSET_RESET":
            raise Superseded(f"the log has passed the offsets of topic {self._topic}")
        if error.name() in GONE:
            self._watch.hurry()
        else:
            logger.warning("sink %s: %s", self.sink, error.str())

    def _lost(self, stored: Mapping[int, int], topic: Topic) -> dict[int, str]:
        """The partitions of which the log no longer has the offset that the store goes on from, with words for it.

        UsageError for a stream that is shorter than its rows: what comes until it is longer would be taken for rows that are there, and
        to empty the store would throw away what no log has. The topic may have been made again a moment ago, so the log is asked for it first.
        """
        lost = {}
        for partition, offset in stored.items():
            low, high = self._member.ends(partition)
            if offset > high and self._feed.append:
                if self._same != topic.id:
                    self._doubted = True
                    self._watch.hurry()
                    raise Superseded(f"partition {partition} of {self._topic} is shorter than its rows")
                raise UsageError(
                    f"sink {self.sink!r}: partition {partition} of {self._topic} ends at offset {high}, and the store is at {offset}",
                    hint="the topic is another one, or has lost its end: give the sink another store, or empty this one with its offsets",
                )
            if not low <= offset <= high:
                lost[partition] = f"the log no longer has offset {offset} of {self._topic}-{partition}"
        return lost

    def _root(self, topic: Topic) -> None:
        """Fills the store anew if its rows come from another topic, or the log has forgotten what they need."""
        why = ""
        if isinstance(self._store, Dated):
            why = outdated(self._store, self._feed, topic, self._log, self._clock)
        elif self._filled_from not in {"", topic.id}:
            why = f"topic {self._topic} was deleted and made again"
        if why:
            self._reset(topic, why)
        self._filled_from = topic.id

    def _reset(self, topic: Topic, why: str) -> None:
        logger.warning("sink %s: %s; filling it anew from the log's start", self.sink, why)
        self.counters.resets += 1
        self._store.reset()
        if isinstance(self._store, Dated) and topic.id:
            self._store.adopt(topic.id)

    def _was_suspended(self) -> bool:
        """Whether a successor may have our partitions by now: to claim them again would shut it out."""
        return self._clock.monotonic() - self._began > self._session_ms / 1000

    def _wait_for(self, error: Away, topic: Topic) -> bool:
        """Waits until the store can be claimed again, in the group all the while. False: join anew."""
        self._member.hold()

        def again() -> bool:
            held = self._member.stay()
            if held:
                self._claim(held, topic)
            return True

        try:
            self._patience.until(again, error)
        except Superseded as found:
            logger.info("sink %s: %s; joining anew", self.sink, found)
            return False
        return True

    def _find_topic(self) -> Topic | None:
        """Waits for the topic; None when the end came first."""
        said = False
        while not self._stopping.is_set():
            found = self._watch.look()
            if found.get(self._topic) is not None:
                return found[self._topic]
            if self._topic in found and not said:
                logger.info("sink %s: waiting for topic %s", self.sink, self._topic)
                said = True
            self._stopping.wait(0.05)
        return None

    def _find_feed(self) -> Feed | None:
        said = False
        while not self._stopping.is_set():
            try:
                feed = self._ask_feed()
            except MachineError as error:
                logger.warning("sink %s: %s", self.sink, error)
                feed = None
            if feed is not None:
                return feed
            if not said:
                logger.info("sink %s: waiting for the first result of %s", self.sink, self._topic)
                said = True
            self._stopping.wait(WAIT_S)
        return None
