"""EffectStore: the store of every effect.

It writes changes to a journal, and a courier delivers them, now or later.

`apply` returns when a batch is in the journal: from then on the sink delivers it, whatever dies. Every
attempt is recorded before it is made (the entry of the effect, with its failed attempts) and after it (its
end, or its next attempt). An attempt that a crash cuts off between the two is repeated with the same id.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

import msgspec

from headwater.access import Access
from headwater.change import Change
from headwater.clock import Clock, SteadyClock, SystemClock
from headwater.errors import HeadwaterError, UnavailableError, UsageError
from headwater.sink.effects.courier import PAUSE_MS_MAX, WRITING_SECONDS, Courier, dead_topic
from headwater.sink.effects.effect import (
    Effect,
    JournalEntry,
    Mode,
    ReceiverClient,
    Start,
    make_effect,
)
from headwater.sink.effects.journal import (
    Journal,
    JournalPartition,
    JournalRecord,
    SourceMark,
    StartOffsets,
)
from headwater.sink.effects.partition_queue import PartitionQueue
from headwater.sink.store import Batch, Poison, SinkFeed, Superseded

__all__ = ["EffectStore", "EffectTarget"]

WAITING_MAX = 1_000
"""A partition with so many unfinished effects takes no further batch: `apply` waits, and then the loop."""
ROOM_SECONDS = 2.0
"""How long `apply` waits for room before it raises Full; well below the session of the group."""
RECORD_BYTES_MAX = 950_000
"""Below the largest record of a log, with room for the reason of a failure."""

logger = logging.getLogger(__name__)


class EffectTarget:
    """What the declarations of all effects have in common."""

    def begin(self, log: Access, sink: str, topic: str) -> None:
        """Records where the topic ends if the sink has never run: older records were there before it."""
        self._record(log, sink, topic, None)

    def find_start(self, log: Access, sink: str, topic: str) -> Callable[[], None]:
        """Looks where the topic ends now; what it returns records that."""
        with closing(Journal(log, sink, topic)) as journal:
            return partial(self._record, log, sink, topic, journal.ends_now())

    def _record(self, log: Access, sink: str, topic: str, ends: StartOffsets | None) -> None:
        with closing(Journal(log, sink, topic)) as journal:
            try:
                journal.start_offsets(ends)
            except Superseded as error:  # another process records it now
                raise UnavailableError(f"sink {sink!r} is being begun by another process") from error


class EffectStore:
    """The effects of one sink. One thread calls it.

    Promises: each change that was taken is delivered until the receiver accepts or rejects it, or its
    attempts are used up; those of a key one after the other; always with the same id; no change is taken
    twice. It does not promise that the receiver gets a change once: that needs the receiver's help.
    """

    def __init__(
        self,
        feed: SinkFeed,
        client: ReceiverClient,
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
                f"sink {feed.sink!r} has no log for its journal", hint="open it with SinkFeed(log=…)"
            )
        self._feed = feed
        self._client = client
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
        self._courier = Courier(feed, client, concurrency, self._clock)

    @property
    def disabled(self) -> str:
        """Why the receiver is disabled; empty while it is active."""
        return self._courier.disabled

    def waiting(self) -> int:
        """The number of effects that have not ended, or whose outcome is not in the journal yet."""
        return self._courier.waiting()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        self._origin = self._journal.origin()
        marks = {number: mark for number in partitions if (mark := self._still_held(number))}
        others = [number for number in partitions if number not in marks]
        self.release(others)
        begun = self._clock.monotonic()
        for number, (partition, stored, entries) in self._journal.claim(sorted(others)).items():
            mark = self._first_mark(number) if stored is None else stored
            if self._is_of_another_topic(mark):
                mark = self._without_offsets(number, mark)
            if mark != stored:  # where it begins is decided once
                partition.write([partition.mark(mark)])
            marks[number] = mark
            latest_ms = self._clock.now_ms() + PAUSE_MS_MAX
            bounded = [
                e if e.due_ms <= latest_ms else msgspec.structs.replace(e, due_ms=latest_ms) for e in entries
            ]
            self._courier.take_up(PartitionQueue(partition, mark, bounded, begun, self._feed.session_ms))
        return {number: mark.taken for number, mark in marks.items() if mark.taken is not None}

    def release(self, partitions: Collection[int]) -> None:
        """Drops partitions before another process claims them.

        Deliveries in progress end and are recorded first, so that none is repeated.
        """
        self._courier.release(partitions)

    def apply(self, batch: Batch) -> None:
        """Full if a partition has too many unfinished effects.

        UnavailableError also if one has lost its journal.

        An empty batch only asks for such a loss.
        """
        self._courier.complain()
        queues = {number: self._courier.queue(number) for number in sorted(batch.upto)}
        self._courier.wait_for_room(list(queues.values()), self._waiting_max, self._room_s)
        with self._writing(list(queues.values())):
            intakes = [self._intake(queue, batch.upto[n], batch.changes) for n, queue in queues.items()]
            self._write(intakes)

    def reset(self) -> None:
        """Forgets the offsets.

        Effects that were taken are still delivered; repeated changes are not delivered live.
        """
        self._origin = self._journal.origin()
        for number, queue in self._courier.queues().items():
            with self._writing([queue]):
                mark = self._without_offsets(number, queue.mark)
                self._write([_Intake(queue, [queue.partition.mark(mark)], [], mark)])

    def close(self) -> None:
        """Stops delivering; unfinished effects are in the journal, for the next claim."""
        self._courier.close()
        self._journal.close()

    # ---- claims ----------------------------------------------------------------------------------------

    def _first_mark(self, number: int) -> SourceMark:
        """The mark of a partition of which nothing was ever taken."""
        start = self._journal.start_offsets()
        is_other_topic = start.origin and self._origin and start.origin != self._origin
        born = 0 if is_other_topic else start.ends.get(number, 0)
        mark = SourceMark(origin=self._origin, born=born)
        if self._start == "beginning" or not born:
            return mark
        logger.info(
            "sink %s: begins at offset %d of partition %d; earlier records are not delivered",
            self._feed.sink,
            born,
            number,
        )
        return msgspec.structs.replace(mark, taken=born, reached=born)

    def _still_held(self, number: int) -> SourceMark | None:
        """The mark of a partition if it is still ours, as a transaction proves: its queue then continues."""
        queue = self._courier.queues().get(number)
        if queue is None or self._is_of_another_topic(queue.mark):
            return None
        try:
            with self._writing([queue]):
                self._write([_Intake(queue, [queue.partition.mark(queue.mark)], [], queue.mark)])
        except (UnavailableError, Superseded):
            return None
        return queue.mark

    def _is_of_another_topic(self, mark: SourceMark) -> bool:
        return bool(mark.origin and self._origin and mark.origin != self._origin)

    def _without_offsets(self, number: int, mark: SourceMark) -> SourceMark:
        """The mark of a partition that is read from its start.

        If the topic was created again, all of its present records were delivered under their old offsets.
        """
        if not self._is_of_another_topic(mark):
            return msgspec.structs.replace(mark, taken=None, origin=self._origin)
        reached = self._journal.ends().get(number, 0)
        return msgspec.structs.replace(mark, taken=None, reached=reached, born=0, origin=self._origin)

    # ---- batches ---------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, queues: Sequence[PartitionQueue]) -> Iterator[None]:
        """While no other thread writes to these partitions of the journal."""
        with ExitStack() as held:
            for queue in queues:
                if not queue.writing.acquire(timeout=WRITING_SECONDS):
                    raise UnavailableError(f"the log does not take the journal of sink {self._feed.sink!r}")
                held.callback(queue.writing.release)
                if queue.lost is not None:
                    raise queue.lost
            yield

    def _intake(self, queue: PartitionQueue, upto: int, changes: Sequence[Change]) -> "_Intake":
        """What the journal gets of a batch for one partition: new effects, and its new mark."""
        mark, partition = queue.mark, queue.partition
        taken = mark.taken or 0
        records: list[JournalRecord] = []
        entries: list[JournalEntry] = []
        repeated = 0
        now_ms = self._clock.now_ms()
        for change in changes:
            if change.partition != partition.number or change.offset < taken:
                continue
            if self._start == "now" and change.offset < mark.born:
                continue
            effect = self._effect(change, mark)
            if not self._client.wants(effect):
                continue
            if self._mode == "shadow":
                records.append(JournalRecord(self._shadow, effect.key, msgspec.json.encode(effect)))
                _check_size(records[-1], change)
            elif change.offset < mark.reached and self._mode != "replay":
                repeated += 1
            else:
                entries.append(JournalEntry(effect, now_ms))
                records.append(partition.entry(entries[-1]))
                _check_size(records[-1], change)
        if repeated:
            logger.info("sink %s: %d repeated changes are not delivered", self._feed.sink, repeated)
        taken = max(upto, taken)
        moved = msgspec.structs.replace(
            mark, taken=taken, reached=max(taken, mark.reached), origin=self._origin or mark.origin
        )
        return _Intake(queue, [*records, partition.mark(moved)], entries, moved)

    def _effect(self, change: Change, mark: SourceMark) -> Effect:
        if change.version is not None:
            raise UsageError(
                f"sink {self._feed.sink!r}: a real-time view cannot have effects",
                got=f"view {self._feed.topic!r}, which repeats its changes after a crash",
                hint="make it a micro-batch view",
            )
        usual: Mode = "replay" if change.offset < max(mark.reached, mark.born) else "live"
        try:
            return make_effect(self._feed, change, "shadow" if self._mode == "shadow" else usual)
        except (ValueError, msgspec.MsgspecError) as error:
            reason = f"the value is not a JSON object: {error}"
            raise Poison(change.partition, change.offset, reason) from error

    def _write(self, intakes: Sequence["_Intake"]) -> None:
        """One transaction for each partition.

        None is committed before the records of all are in the log: a partition that was lost stops the
        others.
        """
        prepared: list[JournalPartition] = []
        try:
            for intake in intakes:
                intake.queue.partition.prepare(intake.records)
                prepared.append(intake.queue.partition)
            for intake in intakes:
                partition = prepared.pop(0)
                begun = self._clock.monotonic()
                partition.commit()
                intake.queue.mark = intake.mark
                self._courier.add(intake.queue, intake.entries, begun)
        except HeadwaterError as error:
            for partition in prepared:
                partition.abort()
            for intake in intakes:
                if intake.queue.partition.broken:
                    self._courier.lose(intake.queue, error)
            raise


def _check_size(record: JournalRecord, change: Change) -> None:
    size = len(record.value or b"")
    if size > RECORD_BYTES_MAX:
        what = f"an effect of {size:,} bytes is larger than the journal takes, {RECORD_BYTES_MAX:,}"
        raise Poison(change.partition, change.offset, what)


class _Intake(msgspec.Struct):
    """What one partition of the journal gets of a batch."""

    queue: PartitionQueue
    records: list[JournalRecord]
    entries: list[JournalEntry]
    mark: SourceMark
