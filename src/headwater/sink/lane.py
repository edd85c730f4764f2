"""Lane: the effects of one partition in this process, between its page of the journal and the threads that carry them."""

import threading
from collections.abc import Iterable

from headwater.errors import HeadwaterError
from headwater.sink.effect import Effect, Entry
from headwater.sink.journal import Mark, Page, Record
from headwater.sink.schedule import Schedule

__all__ = ["Lane"]

UNRECORDED_MAX = 1_000
"""With so many ends that the journal does not have yet, nothing more is carried: all of them would be carried again after a crash."""
PROOF_PART = 0.5
"""Whoever has not written to its page for that part of a session first writes to it: it may have been superseded, and then carries nothing more.

A member's last heartbeat may be a quarter of a session old when it is suspended, so that another has its partitions after three quarters."""


class Lane:
    """Guarded by the outbox's lock, but for the page and the mark: those belong to whoever holds ``writing``."""

    def __init__(self, page: Page, mark: Mark, entries: Iterable[Entry], now: float, session_ms: int) -> None:
        self.page = page
        self.mark = mark
        self.writing = threading.Lock()
        self.entries: dict[str, Entry] = {}
        self.schedule = Schedule()
        self.unrecorded: list[Record] = []
        self.flying = 0
        self.paused = False
        self.lost: HeadwaterError | None = None
        """Why this process can do nothing more for the partition until it has claimed it again."""
        self.proved = now
        """A write to the page that began then was taken: nobody else had the partition. The answer may be read much later,
        by a process that was suspended in between, so when it came proves nothing."""
        self._proof_s = session_ms / 1000 * PROOF_PART
        self.doubtful = False
        self.add(entries)

    @property
    def waiting(self) -> int:
        return len(self.entries)

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.entries[entry.effect.id] = entry
            key = entry.effect.key or entry.effect.id  # what has no key waits for nothing
            self.schedule.add(entry.effect.id, key, entry.due_ms)

    def take(self, now_ms: int, now: float) -> Entry | None:
        """An effect to carry now. Asks for a proof instead, where the last one is too old."""
        due = self.schedule.due_ms()
        if due is None or due > now_ms or self.paused or self.lost or len(self.unrecorded) >= UNRECORDED_MAX:
            return None
        if now > self.proved + self._proof_s:
            self.doubtful = True
            return None
        found = self.schedule.take(now_ms)
        if found is None:
            return None
        self.flying += 1
        return self.entries[found]

    def end(self, effect: Effect, letters: Iterable[Record] = ()) -> None:
        """Forgets an effect that was taken; what stays of it is for the page."""
        self.schedule.finish(effect.id)
        del self.entries[effect.id]
        self.unrecorded += [*letters, self.page.ended(effect.id)]

    def retry(self, entry: Entry) -> None:
        """Puts an effect back that was taken, for a later attempt."""
        self.entries[entry.effect.id] = entry
        self.schedule.retry(entry.effect.id, entry.due_ms)
        self.unrecorded.append(self.page.entry(entry))

    def recorded(self, count: int, begun: float) -> None:
        """The first so many ends are in the journal, by a write that began at that time."""
        del self.unrecorded[:count]
        self.proved = max(self.proved, begun)
        self.doubtful = False

    def lose(self, error: HeadwaterError) -> None:
        """Carries nothing more; what was unfinished is for the next claim."""
        self.lost = error
        self.entries, self.schedule, self.unrecorded = {}, Schedule(), []
        self.doubtful = False
