"""PartitionQueue: the effects of one partition between the journal and the threads that deliver them."""

import threading
from collections.abc import Iterable

from headwater.errors import HeadwaterError
from headwater.sink.effects.effect import JournalEntry
from headwater.sink.effects.journal import JournalPartition, JournalRecord, SourceMark
from headwater.sink.effects.life import EFFECT_LIFE, DeliveryEvent, EffectState
from headwater.sink.effects.schedule import Schedule

__all__ = ["PartitionQueue"]

UNRECORDED_MAX = 1_000
"""With so many outcomes that are not in the journal yet, nothing more is delivered.

After a crash all of them would be delivered again."""
PROOF_PART = 0.5
"""The part of a session after which the last write to the journal proves nothing any more.

Before the next effect the process then writes again: it may have been superseded, and the write fails. A
member's last heartbeat may be a quarter of a session old when it is suspended, so that its successor has
its partitions after three quarters."""


class PartitionQueue:
    """Guarded by the courier's lock, except for the partition and its mark: ``writing`` guards these."""

    def __init__(
        self,
        partition: JournalPartition,
        mark: SourceMark,
        entries: Iterable[JournalEntry],
        now: float,
        session_ms: int,
    ) -> None:
        self.partition = partition
        self.mark = mark
        self.writing = threading.Lock()
        self.entries: dict[str, JournalEntry] = {}
        self._states: dict[str, EffectState] = {}
        self.schedule = Schedule()
        self.unrecorded: list[JournalRecord] = []
        self.in_flight = 0
        self.paused = False
        self.lost: HeadwaterError | None = None
        """Why this process cannot deliver for the partition until it has claimed it again."""
        self.proved = now
        """The start of the last write that the journal has accepted: then no other process had the partition.

        The end of the write proves nothing: a process that was suspended in between may read the answer
        much later."""
        self._proof_s = session_ms / 1000 * PROOF_PART
        self.doubtful = False
        self.add(entries)

    @property
    def waiting(self) -> int:
        return len(self.entries)

    def add(self, entries: Iterable[JournalEntry]) -> None:
        for entry in entries:
            effect = entry.effect
            self.entries[effect.id] = entry
            self._states[effect.id] = EffectState.WAITING
            key = effect.key or effect.id  # an effect without key waits for no other
            self.schedule.add(effect.id, key, entry.due_ms)

    def take(self, now_ms: int, now: float) -> JournalEntry | None:
        """An effect to deliver now. If the last proof is too old, it asks for another one instead."""
        due = self.schedule.due_ms()
        if due is None or due > now_ms or self.paused or self.lost or len(self.unrecorded) >= UNRECORDED_MAX:
            return None
        if now > self.proved + self._proof_s:
            self.doubtful = True
            return None
        effect_id = self.schedule.take(now_ms)
        if effect_id is None:
            return None
        self._move(effect_id, DeliveryEvent.DUE)
        self.in_flight += 1
        return self.entries[effect_id]

    def settle(
        self, entry: JournalEntry, event: DeliveryEvent, letters: Iterable[JournalRecord] = ()
    ) -> None:
        """Records the end of an attempt: the effect has ended, or waits for the next attempt of ``entry``."""
        effect_id = entry.effect.id
        if self._move(effect_id, event) is EffectState.WAITING:
            self.entries[effect_id] = entry
            self.schedule.retry(effect_id, entry.due_ms)
            self.unrecorded.append(self.partition.entry(entry))
        else:
            self.schedule.finish(effect_id)
            del self.entries[effect_id], self._states[effect_id]
            self.unrecorded += [*letters, self.partition.ended(effect_id)]

    def recorded(self, count: int, begun: float) -> None:
        """The first ``count`` outcomes are in the journal, by a write that began at that time."""
        del self.unrecorded[:count]
        self.proved = max(self.proved, begun)
        self.doubtful = False

    def lose(self, error: HeadwaterError) -> None:
        """Delivers nothing more; unfinished effects are for the next claim."""
        self.lost = error
        self.entries, self._states, self.schedule, self.unrecorded = {}, {}, Schedule(), []
        self.doubtful = False

    def _move(self, effect_id: str, event: DeliveryEvent) -> EffectState:
        state = self._states[effect_id] = EFFECT_LIFE[self._states[effect_id]][event]
        return state
