"""Histories: what happens to tables and streams, batch by batch, drawn from a seed. They are lists, so that they can be cut down."""

import random
from datetime import datetime, timedelta
from typing import Any

import msgspec

import headwater as hw
from pipeline.differential.oracles import Record
from pipeline.differential.values import BEGIN, TABLES, event, row

__all__ = ["history"]

KEYS: dict[str, list[tuple[Any, ...]]] = {
    "users": [(n,) for n in (0, 1, 2, 3, 4, 5, -7, 2**63 - 1)],
    "orders": [(text,) for text in ("o1", "o2", "o3", "[null]", "", '["x"]', "ö", "o 8", 'q"')],
    "lands": [(land, part) for land in ("a", "b", "[null]", "a, b") for part in (0, 1)],
}
MINUTE = timedelta(minutes=1)


class Draw:
    """What may happen next, given what has happened."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.rows: dict[str, dict[tuple[Any, ...], hw.Event]] = {name: {} for name in TABLES}
        self.now = BEGIN
        self.ids = 0

    def changes(self) -> list[Record]:
        """A row that comes, changes, goes, is said once more, or gets another key."""
        choose = self.choose
        table = choose.choice(["users", "orders", "lands"])
        held, key = self.rows[table], choose.choice(KEYS[table])
        kind = choose.choice(["row"] * 6 + ["delete"] * 2 + ["again", "move"])
        if kind == "delete" or (kind != "row" and not held):
            return [self._gone(table, key)]
        if kind == "row":
            return [self._held(table, key, row(table, key, choose))]
        old = choose.choice(list(held))
        if kind == "again" or old == key:
            return [self._held(table, old, held[old])]
        moved = msgspec.structs.replace(held[old], **dict(zip(TABLES[table][1], key, strict=True)))
        return [self._gone(table, old), self._held(table, key, moved)]

    def rate(self) -> Record:
        """A version of a rate that comes, is put right or is taken back."""
        held = list(self.rows["rates"])
        known = held and self.choose.random() < 0.4
        key = self.choose.choice(held) if known else (self.choose.choice(["", "a", "b", "A"]), self._time())
        if self.choose.random() < 0.25:
            return self._gone("rates", key)
        return self._held("rates", key, row("rates", key, self.choose))

    def event(self) -> Record:
        stream = self.choose.choice(["clicks", "clicks", "hits"])
        self.ids += 1
        return Record(stream, (self.ids,), event(stream, self.ids, self._time(), self.choose))

    def _time(self) -> datetime:
        """Whole minutes mostly, so that bounds are met exactly; some a microsecond beside."""
        at = self.now - self.choose.randint(-2, self.choose.choice([3, 10, 30])) * MINUTE
        return at + timedelta(microseconds=self.choose.choice([0] * 8 + [-1, 1]))

    def _held(self, table: str, key: tuple[Any, ...], found: hw.Event) -> Record:
        self.rows[table][key] = found
        return Record(table, key, found)

    def _gone(self, table: str, key: tuple[Any, ...]) -> Record:
        self.rows[table].pop(key, None)
        return Record(table, key, None)


def history(seed: int, batches: int, *, streams: bool) -> list[list[Record]]:
    """The batches of a seed. With ``streams`` most of it happens in streams, and some of that late."""
    draw = Draw(seed)
    found = []
    for number in range(batches):
        draw.now += draw.choose.choice([2, 6, 15, 40]) * MINUTE
        batch: list[Record] = []
        for _ in range(30 if number == 0 else 14):
            if streams:
                batch += [draw.event(), draw.event() if draw.choose.random() < 0.6 else draw.rate()]
            else:
                batch += draw.changes()
                batch += [draw.event()] if draw.choose.random() < 0.3 else []
        found.append(batch)
    return found
