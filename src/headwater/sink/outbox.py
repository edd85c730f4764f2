"""Outbox: the store of every effect. It takes changes over into a journal, and a courier carries them, now or hours later.

`apply` returns when a batch is in the journal: from then on it is this sink's matter, whatever dies. Every attempt is recorded before it
is made (the entry of the effect, with the attempts that have failed) and after it (its end, or its next attempt). What a crash leaves
between the two is made again, with the same id.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import msgspec

from headwater.access import Access
from headwater.change import Change
from headwater.clock import Clock, SteadyClock, SystemClock
from headwater.errors import Away, HeadwaterError, UsageError
from headwater.sink.courier import PAUSE_MS_MAX, WRITING_SECONDS, Courier, dead_topic
from headwater.sink.effect import Carrier, Effect, Entry, Mode, Start, effect_of
from headwater.sink.journal import Journal, Mark, Record
from headwater.sink.lane import Lane
from headwater.sink.store import Batch, Feed, Poison, Superseded

__all__ = ["Outbox", "Telling"]

WAITING_MAX = 1_000
"""A partition with so many unfinished effects takes no further batch: `apply` waits, and then the loop."""
ROOM_SECONDS = 2.0
"""How long `apply` waits for room before it says so; well below the session of the group that calls it."""
RECORD_BYTES_MAX = 950_000
"""Below what a log takes in one record, with room for the reason of a failure."""

logger = logging.getLogger(__name__)


class Telling:
    """What the declarations of all effects do alike."""

    def begin(self, log: Access, sink: str, topic: str) -> None:
        """Notes where the topic ends, if the sink has never run: what is there already was there before it."""
        journal = Journal(log, sink, topic)
        try:
            journal.birth()
        except Superseded as error:  # another process notes it at this moment
            raise Away(f"sink {sink!r} is being begun by another process") from error
        finally:
            journal.close()


class Outbox:
    """The effects of one sink. One thread calls it.

    Promises: each change that was taken over is carried until the receiver has it, rejects it or the table of pauses is at its end; those
    of a key one after the other; always with the same id; no change is taken over twice. It does not promise that the receiver sees a
    change once: that needs the receiver's help.
    """

    def __init__(
        self,
        feed: Feed,
        carrier: Carrier,
        *,
        mode: Mode = "live",
        start: Start = "now",
        concurrency: int = 1,
        clock: Clock | None = None,
        waiting_max: int = WAITING_MAX,
        room_s: float = ROOM_SECONDS,
    ) -> None:
        if feed.log is None:
            raise UsageError(
                f"sink {feed.sink!r} has no log to keep its effects in", hint="open it with Feed(log=…)"
            )
        self._feed = feed
        self._carrier = carrier
        self._mode = mode
        self._start = start
        self._clock = SteadyClock(clock or SystemClock())
        self._waiting_max = waiting_max
        self._room_s = room_s
        self._shadow = f"{feed.sink}.shadow"
        self._journal = Journal(feed.log, feed.sink, feed.topic)
        self._origin = ""
        try:
            self._journal.ensure([self._shadow if mode == "shadow" else dead_topic(feed)])
        except HeadwaterError:
            self._journal.close()
            raise
        self._courier = Courier(feed, carrier, concurrency, self._clock)

    @property
    def disabled(self) -> str:
        """Why the receiver is not called any more; empty while it is."""
        return self._courier.disabled

    def waiting(self) -> int:
        """How many effects were taken over and have not ended, or whose end is not in the journal yet."""
        return self._courier.waiting()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        self._origin = self._journal.origin()
        found = {partition: mark for partition in partitions if (mark := self._still_held(partition))}
        others = [partition for partition in partitions if partition not in found]
        self.release(others)
        begun = self._clock.monotonic()
        for partition, (page, stored, entries) in self._journal.claim(sorted(others)).items():
            mark = self._first(partition) if stored is None else stored
            if self._made_anew(mark):
                mark = self._forgotten(partition, mark)
            if mark != stored:  # where it begins is decided once
                page.write([page.mark(mark)])
            found[partition] = mark
            latest_ms = self._clock.now_ms() + PAUSE_MS_MAX
            bounded = [
                e if e.due_ms <= latest_ms else msgspec.structs.replace(e, due_ms=latest_ms) for e in entries
            ]
            self._courier.take_up(Lane(page, mark, bounded, begun, self._feed.session_ms))
        return {partition: mark.taken for partition, mark in found.items() if mark.taken is not None}

    def _first(self, partition: int) -> Mark:
        """The mark of a partition of which nothing was ever taken over."""
        birth = self._journal.birth()
        another = birth.origin and self._origin and birth.origin != self._origin
        born = 0 if another else birth.ends.get(partition, 0)
        mark = Mark(origin=self._origin, born=born)
        if self._start == "beginning" or not born:
            return mark
        logger.info(
            "sink %s: begins at offset %d of partition %d; what was there before it is not told",
            self._feed.sink,
            born,
            partition,
        )
        return msgspec.structs.replace(mark, taken=born, reached=born)

    def _still_held(self, partition: int) -> Mark | None:
        """The mark of a partition that is ours, which a transaction proves. Then what it carries need not be stopped and read anew."""
        lane = self._courier.lanes().get(partition)
        if lane is None or self._made_anew(lane.mark):
            return None
        try:
            with self._holding([lane]):
                self._write([_Work(lane, [lane.page.mark(lane.mark)], [], lane.mark)])
        except (Away, Superseded):
            return None
        return lane.mark

    def release(self, partitions: Collection[int]) -> None:
        """Lets go of partitions before another claims them: what is being carried ends and is recorded, so that nothing is told twice."""
        self._courier.release(partitions)

    def apply(self, batch: Batch) -> None:
        """Full where a partition fills up that nobody takes from. Away, too, where one has lost its journal since: an empty batch asks for that alone."""
        self._courier.complain()
        lanes = {partition: self._courier.lane(partition) for partition in sorted(batch.upto)}
        self._courier.wait_for_room(list(lanes.values()), self._waiting_max, self._room_s)
        with self._holding(list(lanes.values())):
            works = [self._taken_over(lane, batch.upto[p], batch.changes) for p, lane in lanes.items()]
            self._write(works)

    def reset(self) -> None:
        """Forgets the offsets. What was taken over is still carried; what then comes again was told before, and is not told live."""
        self._origin = self._journal.origin()
        for partition, lane in self._courier.lanes().items():
            with self._holding([lane]):
                mark = self._forgotten(partition, lane.mark)
                self._write([_Work(lane, [lane.page.mark(mark)], [], mark)])

    def close(self) -> None:
        """Stops carrying; what has not ended is in the journal, for the next claim."""
        self._courier.close()
        self._journal.close()

    @contextmanager
    def _holding(self, lanes: Sequence[Lane]) -> Iterator[None]:
        """With the pages of those lanes to ourselves."""
        with ExitStack() as held:
            for lane in lanes:
                if not lane.writing.acquire(timeout=WRITING_SECONDS):
                    raise Away(f"the log does not take the journal of sink {self._feed.sink!r}")
                held.callback(lane.writing.release)
                if lane.lost is not None:
                    raise lane.lost
            yield

    def _taken_over(self, lane: Lane, upto: int, changes: Sequence[Change]) -> "_Work":
        """What the journal gets of a batch: the effects of one partition that were not taken before, and its new mark."""
        mark, partition = lane.mark, lane.page.partition
        taken = mark.taken or 0
        records: list[Record] = []
        entries: list[Entry] = []
        again = 0
        now_ms = self._clock.now_ms()
        for change in changes:
            if change.partition != partition or change.offset < taken:
                continue
            if self._start == "now" and change.offset < mark.born:
                continue
            effect = self._effect(change, mark)
            if not self._carrier.wants(effect):
                continue
            if self._mode == "shadow":
                records.append(Record(self._shadow, effect.key, msgspec.json.encode(effect)))
                _check_size(records[-1], change)
            elif change.offset < mark.reached and self._mode != "replay":
                again += 1
            else:
                entries.append(Entry(effect, now_ms))
                records.append(lane.page.entry(entries[-1]))
                _check_size(records[-1], change)
        if again:
            logger.info("sink %s: %d changes come again and are not told", self._feed.sink, again)
        taken = max(upto, taken)
        moved = msgspec.structs.replace(
            mark, taken=taken, reached=max(taken, mark.reached), origin=self._origin or mark.origin
        )
        return _Work(lane, [*records, lane.page.mark(moved)], entries, moved)

    def _effect(self, change: Change, mark: Mark) -> Effect:
        if change.version is not None:
            raise UsageError(
                f"sink {self._feed.sink!r} cannot tell of {self._feed.topic!r}: a real-time view repeats its changes after a crash",
                hint="make it a micro-batch view",
            )
        usual: Mode = "replay" if change.offset < max(mark.reached, mark.born) else "live"
        try:
            return effect_of(self._feed, change, "shadow" if self._mode == "shadow" else usual)
        except (ValueError, msgspec.MsgspecError) as error:
            raise Poison(change.partition, change.offset, f"the value is no JSON object: {error}") from error

    def _write(self, works: Sequence["_Work"]) -> None:
        """One transaction for each partition. None is committed before all are in the log: a partition that was lost stops the others."""
        open_: list[Lane] = []
        try:
            for work in works:
                work.lane.page.prepare(work.records)
                open_.append(work.lane)
            for work in works:
                open_.pop(0)
                begun = self._clock.monotonic()
                work.lane.page.commit()
                work.lane.mark = work.mark
                self._courier.add(work.lane, work.entries, begun)
        except HeadwaterError as error:
            for lane in open_:
                lane.page.abort()
            for work in works:
                if work.lane.page.broken:
                    self._courier.lose(work.lane, error)
            raise

    def _made_anew(self, mark: Mark) -> bool:
        return bool(mark.origin and self._origin and mark.origin != self._origin)

    def _forgotten(self, partition: int, mark: Mark) -> Mark:
        """The mark of a partition that begins anew. In a topic that was made anew all that is there now has been told under its old offsets."""
        if not self._made_anew(mark):
            return msgspec.structs.replace(mark, taken=None, origin=self._origin)
        reached = self._journal.ends().get(partition, 0)
        return msgspec.structs.replace(mark, taken=None, reached=reached, born=0, origin=self._origin)


def _check_size(record: Record, change: Change) -> None:
    size = len(record.value or b"")
    if size > RECORD_BYTES_MAX:
        what = f"an effect of {size:,} bytes is larger than the journal takes, {RECORD_BYTES_MAX:,}"
        raise Poison(change.partition, change.offset, what)


class _Work(msgspec.Struct):
    """What one lane writes of a batch."""

    lane: Lane
    records: list[Record]
    entries: list[Entry]
    mark: Mark
