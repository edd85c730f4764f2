"""A store in memory for sinks, as `headwater.sink.store` wants one. It is away, slow, and loses answers as asked.

``Table`` is what is outside: rows, offsets and claims, which change together. A ``MemoryStore`` is one process's connection to it.
"""

import json
import random
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field

from headwater.change import Change
from headwater.errors import UnavailableError
from headwater.sink.claims import NOTHING, Claims, PartitionState, complete_ms
from headwater.sink.store import Batch, Poison, SinkFeed
from simulation.actors import current_hub

__all__ = ["Held", "MemoryTarget", "Table"]


@dataclass
class Held:
    """A partition in the store."""

    claim: int = 0
    offset: int | None = None
    at_ms: int | None = None

    def state(self) -> PartitionState:
        return PartitionState(self.claim, NOTHING if self.offset is None else self.offset)


@dataclass
class Table:
    """One sink's rows. ``rows`` are by key, and of an append feed by partition and offset."""

    rows: dict[object, str] = field(default_factory=dict)
    versions: dict[object, int] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)
    origin: str = ""
    away: bool = False
    losses: float = 0.0
    """The share of answers that do not come: the call may have taken effect."""
    slow_s: tuple[float, ...] = (0.0,)
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def copy(self) -> "Table":
        return Table(dict(self.rows), dict(self.versions), deepcopy(self.held), self.origin)

    def restore(self, saved: "Table") -> None:
        self.rows, self.versions = dict(saved.rows), dict(saved.versions)
        self.held, self.origin = deepcopy(saved.held), saved.origin


class MemoryTarget:
    """Declares the store."""

    kind, typed, columns = "memory", False, None

    def __init__(self, tables: dict[tuple[str, str], Table], *, virtual: bool = True) -> None:
        self._tables, self._virtual = tables, virtual

    def check(self, feed: SinkFeed) -> None:
        """Takes everything."""

    def open(self, feed: SinkFeed) -> "MemoryStore":
        table = self._tables.setdefault((feed.sink, feed.topic), Table())
        return MemoryStore(table, feed, virtual=self._virtual)


class MemoryStore:
    """See `headwater.sink.store.Store` and `DatedStore`."""

    def __init__(self, table: Table, feed: SinkFeed, *, virtual: bool) -> None:
        self._table, self._feed, self._virtual = table, feed, virtual
        self._claims = Claims(feed.sink)
        self._begun: dict[int, int] = {}
        self._trip()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        self._trip()
        states = {}
        with self._alone():
            for number in partitions:
                held = self._table.held.setdefault(number, Held())
                held.claim += 1
                states[number] = held.state()
                self._begun[number] = self._now_ms() if held.offset is None else 0
            offsets = self._claims.take(states)
        self._answer()
        return offsets

    def apply(self, batch: Batch) -> None:
        self._trip()
        with self._alone():
            left = self._take(batch)
        self._answer()
        self._claims.advance(left)

    def _take(self, batch: Batch) -> dict[int, int]:
        """All of it with its offsets; where that leaves the partitions."""
        table = self._table
        for number in batch.upto:
            self._claims.check(number, table.held.get(number, Held()).state())
        fresh = self._claims.new_changes(batch)
        for change in fresh:
            if change.value is not None and json.loads(change.value).get("bad"):
                raise Poison(change.partition, change.offset, "the record does not fit: it is bad")
        times = complete_ms(batch, fresh, self._begun, self._now_ms())
        for change in fresh:
            self._write(change)
        for number, upto in batch.upto.items():
            held = table.held[number]
            held.offset = max(upto, held.offset or 0)
            held.at_ms = max(times[number], held.at_ms or 0)
        return {number: table.held[number].offset for number in batch.upto}

    def _write(self, change: Change) -> None:
        table = self._table
        if self._feed.append:
            table.rows[change.partition, change.offset] = change.value or ""
        elif change.value is None:
            table.rows.pop(change.key, None)
            table.versions.pop(change.key, None)
        elif change.version is None or change.version > table.versions.get(change.key, -1):
            table.rows[change.key] = change.value
            if change.version is not None:
                table.versions[change.key] = change.version

    def reset(self) -> None:
        self._trip()
        table = self._table
        with self._alone():
            table.rows, table.versions, table.origin = {}, {}, ""
            for held in table.held.values():
                held.claim, held.offset, held.at_ms = held.claim + 1, None, None
        self._answer()

    def origin(self) -> str:
        self._trip()
        return self._table.origin

    def adopt(self, origin: str) -> None:
        self._trip()
        self._table.origin = origin
        self._answer()

    def at_ms(self) -> Mapping[int, int]:
        self._trip()
        return {number: held.at_ms for number, held in self._table.held.items() if held.at_ms is not None}

    def close(self) -> None:
        if self._virtual:
            current_hub().check()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One transaction of the store."""
        if not self._table.lock.acquire(timeout=0.2):
            raise UnavailableError("another transaction holds the store")
        try:
            yield
        finally:
            self._table.lock.release()

    def _now_ms(self) -> int:
        return current_hub().clock.now_ms() if self._virtual else 1_769_853_600_000

    def _trip(self) -> None:
        """The way there."""
        if self._virtual:
            current_hub().nap(self._table.chance.choice(self._table.slow_s))
        if self._table.away:
            raise UnavailableError("the store does not answer")

    def _answer(self) -> None:
        """The way back: a caller that dies or loses it here does not know that it took effect."""
        if self._virtual:
            current_hub().nap(self._table.chance.choice(self._table.slow_s))
        if self._table.chance.random() < self._table.losses:
            raise UnavailableError("the store did not answer")
