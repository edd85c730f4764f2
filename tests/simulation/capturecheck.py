"""What readers of a simulated capture's change topics must see, once it has caught up (`Captured`)."""

import asyncio
from collections import defaultdict
from typing import Any

import msgspec

from headwater.capture.state import State
from headwater.record import Record
from simulation.database import RESTART, Change, Database, Row, position
from simulation.ground import HOUR_S, Ground
from simulation.model import Wrong
from simulation.world import Loop

__all__ = ["NAME", "TABLES", "Readers"]

NAME = "shop"
TABLES = ("item", "note")
CAUGHT_UP_S = HOUR_S

Seen = tuple[int, int, str, int]
"""LSN, number in the transaction, op and key of an event."""


class _Source(msgspec.Struct):
    lsn: int
    n: int
    snapshot: bool


class _Event(msgspec.Struct):
    op: str
    source: _Source
    before: Any = None
    after: Row | None = None


class Readers(Ground):
    """A database, and the topics of its capture as committed readers see them."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.database = Database(TABLES)
        self.compacted = False
        self.partitions = 2
        self.pauses = 0
        """How often the capture was asked to pause."""

    def supervise(self) -> None:
        """Sees to it that the capture runs."""
        raise NotImplementedError

    async def look(self) -> None:
        """Once the capture has caught up, every reader sees what it must."""
        await self.caught_up()
        tables: dict[str, dict[int, Row]] = {}
        seen: set[Seen] = set()
        for table in TABLES:
            tables[table] = await self.look_at(table, seen)
        expected = self.database.rows
        if tables != expected:
            shown = {t: (_short(tables[t]), _short(expected[t])) for t in TABLES if tables[t] != expected[t]}
            raise Wrong(f"readers by key have other rows than the tables: {shown}")
        if not self.compacted:
            await self.check_whole(seen)
        await self.check_notices()

    async def check_notices(self) -> None:
        """A command is obeyed once."""
        found = [msgspec.json.decode(row.value) for row in await self.rows(f"{NAME}.notifications", 0)]
        ended = [each["details"]["id"] for each in found if "id" in each.get("details", {})]
        if len(ended) != len(set(ended)):
            raise Wrong(f"a command was obeyed twice: {ended}")
        if sum(each["what"] == "paused" for each in found) > self.pauses:
            raise Wrong(f"paused more often than it was asked to: {self.pauses} times")

    async def caught_up(self) -> None:
        limit = self.loop.time() + CAUGHT_UP_S
        wanted = self.database.lsn
        while True:
            self.supervise()
            state = await self.state()
            now = None if state.position in {None, RESTART} else position(state.position)
            complete = now is not None and not now.again and not now.asked and len(now.tables) == len(TABLES)
            if complete and now.at >= wanted:
                return
            if self.loop.time() > limit:
                raise Wrong(f"the capture has not caught up: {state}, the database is at {wanted}")
            await asyncio.sleep(5)

    async def state(self) -> State:
        found = await self.rows(f"{NAME}.capture", 0)
        return msgspec.json.decode(found[-1].value, type=State) if found else State()

    async def look_at(self, table: str, seen: set[Seen]) -> dict[int, Row]:
        """What a reader by key has of a topic; checks its order and that nothing comes twice."""
        topic = f"{NAME}.{table}"
        rows: dict[int, Row] = {}
        for partition in range(self.partitions if topic in self.broker.catalog.topics else 0):
            order: dict[bytes, tuple[int, int]] = defaultdict(lambda: (0, 0))
            for record in await self.rows(topic, partition):
                self.fold(table, record, rows, order, seen)
        return rows

    def fold(
        self,
        table: str,
        record: Record,
        rows: dict[int, Row],
        order: dict[bytes, tuple[int, int]],
        seen: set[Seen],
    ) -> None:
        where = f"{NAME}.{table} at {record.offset}"
        if record.value is None:
            rows.pop(msgspec.json.decode(record.key)["id"], None)
            return
        event = msgspec.json.decode(record.value, type=_Event)
        place = (event.source.lsn, event.source.n)
        if record.key is None:
            if event.op != "t":
                raise Wrong(f"{where}: a record without a key is not a truncate")
            return
        if place < order[record.key]:
            raise Wrong(f"{where}: {place} of {record.key!r} comes after {order[record.key]}")
        order[record.key] = place
        key = msgspec.json.decode(record.key)["id"]
        self.note(where, event, place, seen, key)
        if event.after is None:
            rows.pop(key, None)
        else:
            rows[key] = event.after

    def note(self, where: str, event: _Event, place: tuple[int, int], seen: set[Seen], key: int) -> None:
        """Each change of the stream comes once; what a truncate or a new snapshot deletes is not one of them."""
        if event.source.snapshot or self.changes(place[0])[place[1]].op == "t":
            return
        what = (*place, event.op, key)
        if what in seen:
            raise Wrong(f"{where}: {what} is there twice")
        seen.add(what)

    def changes(self, lsn: int) -> list[Change]:
        return next(each.changes for each in self.database.log if each.lsn == lsn)

    async def check_whole(self, seen: set[Seen]) -> None:
        """All of a transaction, but for tables whose snapshot was taken after it."""
        snapshots: dict[str, int] = {}
        for table in TABLES:
            for partition in range(self.partitions if f"{NAME}.{table}" in self.broker.catalog.topics else 0):
                for record in await self.rows(f"{NAME}.{table}", partition):
                    if record.value is not None:
                        event = msgspec.json.decode(record.value, type=_Event)
                        if event.source.snapshot:
                            snapshots[table] = max(snapshots.get(table, 0), event.source.lsn)
        tables = position((await self.state()).position).tables
        for transaction in self.database.log:
            for number, change in enumerate(transaction.changes):
                after = max(snapshots.get(change.table, 0), tables.get(change.table, 0))
                wanted = {(transaction.lsn, number, op, key) for op, key in _shown(change)}
                if not wanted <= seen and transaction.lsn > after:
                    raise Wrong(f"{change} of transaction {transaction.lsn} is in no topic")


def _shown(change: Change) -> set[tuple[str, int]]:
    """The events of a change, but for those of a truncate."""
    if change.op == "t":
        return set()
    if change.old_key is not None:
        return {("d", change.old_key), ("c", change.key)}
    return {(change.op, change.key)}


def _short(rows: dict[int, Row]) -> dict[int, str]:
    return {key: f"{row['v']} {row['big'][:12]}" for key, row in sorted(rows.items())}
