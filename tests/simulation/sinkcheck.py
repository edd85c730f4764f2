"""What the store of a simulated sink must have, once it has caught up (`Sunk`)."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from simulation.ground import HOUR_S, Ground
from simulation.memorystore import Table
from simulation.model import Wrong
from simulation.world import Loop

__all__ = ["SINK", "TOPIC", "Known", "Stored"]

SINK, TOPIC = "store", "rows"
CAUGHT_UP_S = 12 * HOUR_S


@dataclass
class Known:
    """A committed record of the topic as it was when it came; ``bad`` for one that no store takes."""

    key: str | None
    value: str | None
    bad: bool


class Stored(Ground):
    """A topic, the store of its sink, and what the log has had."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.kind = "table"
        self.tables: dict[tuple[str, str], Table] = {}
        self.partitions = 2
        self.known: dict[tuple[int, int], Known] = {}
        self.buried: set[tuple[int, int]] = set()
        """Where records were that may be buried, in this topic or in one that had its name."""

    def supervise(self) -> None:
        """Sees to it that the sink runs."""
        raise NotImplementedError

    @property
    def append(self) -> bool:
        return self.kind == "stream"

    @property
    def table(self) -> Table:
        return self.tables.setdefault((SINK, TOPIC), Table(chance=random.Random(7)))

    async def note(self) -> None:
        """What a committed reader sees now is what the sink must have."""
        for partition in range(self.partitions):
            for row in await self.rows(TOPIC, partition):
                if (partition, row.offset) not in self.known:
                    value = None if row.value is None else row.value.decode()
                    bad = value is not None and ('"bad"' in value or value.startswith("{no"))
                    self.known[partition, row.offset] = Known(row.key.decode(), value, bad)
                    if bad:
                        self.buried.add((partition, row.offset))

    async def look(self) -> None:
        await asyncio.sleep(61)
        await self.note()
        await self.caught_up()
        now = {p: await self.rows(TOPIC, p) for p in range(self.partitions)}
        there = {(p, row.offset) for p, rows in now.items() for row in rows}
        starts = [part.log_start_offset for part in self.parts()]
        if self.append:
            self.check_stream(starts)
        else:
            self.check_table(there)
        await self.check_letters(there)

    def parts(self) -> list[Any]:
        found = self.broker.catalog.topics[TOPIC].partitions
        return [found[number] for number in range(self.partitions)]

    async def caught_up(self) -> None:
        limit = self.loop.time() + CAUGHT_UP_S
        while True:
            self.supervise()
            ends = {number: part.high_watermark for number, part in enumerate(self.parts())}
            held = {number: each.offset for number, each in self.table.held.items()}
            if all(held.get(number) == end for number, end in ends.items() if end):
                return
            if self.loop.time() > limit:
                raise Wrong(f"the sink has not caught up: it is at {held}, the log at {ends}")
            await asyncio.sleep(10)

    def check_stream(self, starts: list[int]) -> None:
        """Each record once; those that the log dropped before they were read may be missing."""
        rows = self.table.rows
        for place in rows:
            if place not in self.known or self.known[place].value != rows[place]:
                raise Wrong(f"the store has {rows[place]!r} of {place}, the log had {self.known.get(place)}")
        for (partition, offset), record in self.known.items():
            expected = not record.bad and offset >= starts[partition]
            if expected and (partition, offset) not in rows:
                raise Wrong(f"the store lacks {record} of {partition} at {offset}")

    def check_table(self, there: set[tuple[int, int]]) -> None:
        newest: dict[str, tuple[tuple[int, int], Known]] = {}
        for place in sorted(self.known):
            newest[self.known[place].key] = (place, self.known[place])
        rows = self.table.rows
        for key, (place, record) in newest.items():
            shown = rows.get(key)
            if record.bad:
                continue  # what was before it may still be there
            if shown != record.value and (shown is not None or place in there):
                raise Wrong(f"key {key} shows {shown!r} in the store, its newest at {place} is {record}")
        if strange := rows.keys() - newest.keys():
            raise Wrong(f"the store has keys that no record has: {sorted(strange)}")

    async def check_letters(self, there: set[tuple[int, int]]) -> None:
        letters = set()
        for row in await self.rows(f"{TOPIC}.dead", 0):
            about = dict(row.headers)
            letters.add((int(about["partition"]), int(about["offset"])))
        if strange := letters - self.buried:
            raise Wrong(f"letters of records that are sound: {sorted(strange)}")
        missing = {place for place, each in self.known.items() if each.bad and place in there} - letters
        if missing:
            raise Wrong(f"no letters of {sorted(missing)}")
