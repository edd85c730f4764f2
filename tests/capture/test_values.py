"""Values of every type, in keys and in rows, by chance: the database, the snapshot, the stream and the stores say the same.

Each seed makes a table of many types with rows of odd values, and changes them: every row is updated, keys change, rows go and come. Then
rows out of the snapshot and the stream are compared with those of a new snapshot, byte by byte, and with what the database itself shows.
``VALUES_SEED`` and ``VALUES_ROUNDS`` choose other seeds; ``make test-faults KIND=values`` runs many.
"""

import json
import os
import random
import re
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import psycopg
import pytest

import headwater.testing
from capture import mariakinds, pgkinds, sqlitekinds
from capture.kinds import Kind
from headwater.capture.loop.feed import Feed as CaptureFeed
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.source import Part, Record
from headwater.capture.sqlite.source import SqliteSource
from headwater.capture.sqlite.triggers import install, last_number
from headwater.change import Change
from headwater.client.client import Client
from headwater.position import Position
from headwater.sink import Sqlite
from headwater.sink.store import Batch, Poison, SinkFeed
from headwater.view.tables.query import parse
from headwater.view.tables.reader import ViewTable
from headwater.view.tables.writer import SqliteTable
from support.captured import execute, running, streaming
from support.capturedb import Shop, records, until
from support.servers import wait_until

FIRST, ROUNDS = int(os.environ.get("VALUES_SEED", "0")), int(os.environ.get("VALUES_ROUNDS", "1"))
SEEDS = range(FIRST, FIRST + ROUNDS)
COLUMNS = 60
BETWEEN = {"year", "int", "int unsigned", "bigint"}
"""Kinds that each table has: what is read wrong of one column shows in those after it, and in their signs."""
ROWS = 12
HALF = re.compile(r"\\ud[89a-f][0-9a-f]{2}")
"""Written in place of a text that is not one: stores refuse its row."""


class Table(NamedTuple):
    """A table of many types; its rows are known by ``id``, which is the last column of the key."""

    kinds: Sequence[Kind]
    keys: int
    """How many of the kinds are in the key."""

    @property
    def names(self) -> list[str]:
        return [f"c{at}" for at in range(len(self.kinds))]

    def create(self, null: str = "") -> str:
        columns = [
            f"{name} {kind.sql}{' NOT NULL' if at < self.keys else null}"
            for at, (name, kind) in enumerate(zip(self.names, self.kinds, strict=True))
        ]
        key = ", ".join([*self.names[: self.keys], "id"])
        return f"CREATE TABLE t ({', '.join(columns)}, id int, PRIMARY KEY ({key}))"

    def insert(self, number: int, chance: random.Random) -> str:
        values = [self._literal(at, chance) for at in range(len(self.kinds))]
        return f"INTO t VALUES ({', '.join(values)}, {number})"

    def update(self, number: int, chance: random.Random, *, key: bool) -> str:
        first = 0 if key else self.keys
        sets = [f"{self.names[at]} = {self._literal(at, chance)}" for at in range(first, len(self.kinds))]
        return f"t SET {', '.join(sets)} WHERE id = {number}"

    def select(self, text: str) -> str:
        """The query for what the database shows; ``text`` is its SQL for a column as text."""
        shown = [
            text.format(kind.shown.format(name)) for name, kind in zip(self.names, self.kinds, strict=True)
        ]
        return f"SELECT id, {', '.join(shown)} FROM t"

    def _literal(self, at: int, chance: random.Random) -> str:
        if at >= self.keys and chance.random() < 0.1:
            return "NULL"
        return self.kinds[at].literal(chance)

    def changes(self, chance: random.Random) -> list[tuple[str, str]]:
        """Verbs and the rest of statements after the first rows."""
        found = [("UPDATE", self.update(number, chance, key=number % 3 == 0)) for number in range(ROWS)]
        found += [("DELETE", f"FROM t WHERE id = {number}") for number in range(0, ROWS, 4)]
        found += [("INSERT", self.insert(number, chance)) for number in (0, 4, *range(ROWS, ROWS + 6))]
        return found


def chosen(kinds: Sequence[Kind], seed: int) -> Table:
    """A table of some kinds, in any order, with whole numbers between them; all kinds have their turn within a few seeds."""
    chance = random.Random(seed)
    order = [*kinds]
    random.Random(0).shuffle(order)
    first = seed * COLUMNS % len(order)
    some = (order + order)[first : first + COLUMNS]
    keys = chance.sample([kind for kind in some if kind.key], 4)
    rest = [kind for kind in some if kind not in keys] + [kind for kind in kinds if kind.sql in BETWEEN] * 2
    chance.shuffle(rest)
    return Table([*keys, *rest], len(keys))


def left(found: Iterable[Record]) -> dict[bytes, bytes]:
    """Keys and rows that a reader of a topic ends with, as their bytes are."""
    rows: dict[bytes, bytes] = {}
    for record in found:
        assert record.key is not None
        if record.value is None or json.loads(record.value)["op"] == "d":
            rows.pop(record.key, None)
        else:
            after = record.value.partition(b',"after":')[2]
            rows[record.key] = after.rpartition(b',"source":{"version"')[0]
    return rows


def check(table: Table, rows: dict[bytes, bytes], shown: Iterable[Sequence[Any]]) -> None:
    """Each row, and each key, is what the database shows."""
    by_number = {json.loads(row)["id"]: (json.loads(key), json.loads(row)) for key, row in rows.items()}
    there = {int(number): texts for number, *texts in shown}
    assert by_number.keys() == there.keys()
    for number, texts in there.items():
        key, row = by_number[number]
        assert {**row, **key} == row, "the key says what the row says"
        for name, kind, text in zip(table.names, table.kinds, texts, strict=True):
            found = row[name]
            right = found is None if text is None else kind.same(found, str(text))
            assert right, f"{kind.sql}: {found!r} is said of what the database shows as {text!r}"


def through_stores(folder, rows: dict[bytes, bytes]) -> None:
    """A store and the console's table give back what the records say."""
    folder.mkdir()
    texts = {json.loads(row)["id"]: row.decode() for row in rows.values() if not HALF.search(row.decode())}
    changes = [Change(str(number), text, 0, at, at) for at, (number, text) in enumerate(texts.items())]
    writer = SqliteTable(folder / "t.db")
    writer.apply(changes, Position({"t": {0: len(changes)}}))
    writer.close()
    table = ViewTable(folder / "t.db", ("id",))
    for number, text in texts.items():
        (row,) = table.rows(parse([("id", str(number))])).rows
        assert (row.value, row.columns()) == (text, json.loads(text))

    columns = _columns([json.loads(row) for row in rows.values()])
    store = Sqlite(folder / "store.db").open(SinkFeed("s", "t", ("id",), columns))
    store.claim([0])
    store.apply(Batch(changes, {0: len(changes)}))
    odd = [row.decode() for row in rows.values() if HALF.search(row.decode())]
    for row in odd if "STRING" in columns.values() else ():
        with pytest.raises(Poison, match="surrogate"):
            store.apply(Batch([Change("odd", row, 0, len(changes), 0)], {0: len(changes) + 1}))
    store.close()
    with sqlite3.connect(folder / "store.db") as connection:
        names = ", ".join(f'"{name}"' for name in columns)
        for values in connection.execute(f"SELECT {names} FROM t"):
            found = dict(zip(columns, values, strict=True))
            row = json.loads(texts[found["id"]])
            assert {name: _stored(row[name]) for name in columns} == found


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The types that a user would give the columns of rows, where a store of SQL has one."""
    found = {}
    for name in rows[0]:
        values = [row[name] for row in rows if row[name] is not None]
        if all(isinstance(value, bool) for value in values):
            found[name] = "BOOLEAN"
        elif all(
            isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
            for value in values
        ):
            found[name] = "BIGINT"
        elif all(isinstance(value, float) for value in values):
            found[name] = "DOUBLE"
        elif all(isinstance(value, str) for value in values):
            found[name] = "STRING"
    return found


def _stored(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


# ---- MariaDB --------------------------------------------------------------------------------------------


@pytest.fixture
def shop(mariadb, request):
    shop = Shop(mariadb, f"values_{request.node.callspec.params['seed']}")
    ((before,),) = shop.run("SELECT @@GLOBAL.sql_mode")
    yield shop
    shop.run(f"SET GLOBAL sql_mode = '{before}'", f"DROP DATABASE {shop.name}")
    shop.connection.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_mariadb_are_the_same_in_the_server_the_snapshot_the_stream_and_the_stores(
    shop, seed, tmp_path
):
    chance = random.Random(seed)
    sets = shop.run("SELECT character_set_name, maxlen FROM information_schema.character_sets")
    table = chosen(mariakinds.kinds([(name, int(size)) for name, size in sets if name != "binary"]), seed)
    mode = mariakinds.MODES[seed % len(mariakinds.MODES)]
    shop.run(
        "SET time_zone = '+00:00', sql_mode = ''",
        table.create(" NULL") + " ROW_FORMAT=DYNAMIC",
        f"SET sql_mode = '{mode}'",
        f"SET GLOBAL sql_mode = '{mode}'",
    )
    shop.run(*(f"INSERT IGNORE {table.insert(number, chance)}" for number in range(ROWS)))
    before = shop.read(None, "t")
    position = [part.position for part in before if part.position][-1]
    shop.run(*(f"{verb} IGNORE {rest}" for verb, rest in table.changes(chance)))

    rows = left(records([*before, *shop.read(position, "t")]))
    assert rows == left(records(shop.read(None, "t")))
    shop.run("SET sql_mode = ''")
    check(table, rows, shop.run(table.select("CAST({0} AS CHAR CHARACTER SET utf8mb4)")))
    through_stores(tmp_path / "stores", rows)


# ---- PostgreSQL -----------------------------------------------------------------------------------------


@pytest.fixture
def log():
    with headwater.testing.broker(flush="os") as broker:
        yield broker.bootstrap


def topic_records(log: str, topic: str) -> list[Record]:
    client = Client(log)
    try:
        if topic not in client.partitions():
            return []
        return [Record(topic, m.key(), m.value(), 0) for m in client.read([topic])]
    finally:
        client.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_postgresql_are_the_same_in_the_server_the_snapshot_the_stream_and_the_stores(
    url, log, seed, tmp_path
):
    chance = random.Random(seed)
    table = chosen(pgkinds.kinds(), seed)
    execute(url, *pgkinds.CREATE, table.create(), "CREATE TABLE done (n int PRIMARY KEY)")
    execute(url, *(f"INSERT {table.insert(number, chance)}" for number in range(ROWS)))

    def captured(name: str, *statements: str) -> dict[bytes, bytes]:
        """The rows of a capture that begins now, after some statements."""
        with running(CaptureFeed(name, PostgresSource(name, url, ("t", "done")), log)):
            streaming(url, slot_name(name))
            execute(url, *statements, "INSERT INTO done SELECT count(*) FROM done")
            wait_until(lambda: finished(name), 30, "the last change")
        return left(topic_records(log, f"{name}.public.t"))

    def finished(name: str) -> bool:
        with psycopg.connect(url) as connection:
            ((rows,),) = connection.execute("SELECT count(*) FROM done").fetchall()
        return len(left(topic_records(log, f"{name}.public.done"))) == rows

    rows = captured("one", *(f"{verb} {rest}" for verb, rest in table.changes(chance)))
    assert rows == captured("two")
    with psycopg.connect(url) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET DateStyle = 'ISO'")
        check(table, rows, connection.execute(table.select("({0})::text")).fetchall())
    through_stores(tmp_path / "stores", rows)


# ---- SQLite ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_values_of_sqlite_are_the_same_in_the_file_the_snapshot_the_stream_and_the_stores(seed, tmp_path):
    chance, path = random.Random(seed), tmp_path / "shop.db"
    table = chosen(sqlitekinds.kinds(), seed)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        run = connection.execute
        run(table.create() + (" WITHOUT ROWID" if seed % 2 else ""))
        install(connection, ["t"])
        for number in range(ROWS):
            run(f"INSERT {table.insert(number, chance)}")

        def read(position: str | None) -> list[Part]:
            source = SqliteSource("lab", path, ["t"])
            try:
                return until(source.read(position), str(last_number(connection)))
            finally:
                source.close()

        before = read(None)
        position = [part.position for part in before if part.position][-1]
        for verb, rest in table.changes(chance):
            run(f"{verb} {rest}")
        rows = left(records([*before, *read(position)]))
        assert rows == left(records(read(None)))
        check(table, rows, run(table.select("{0}")).fetchall())
    through_stores(tmp_path / "stores", rows)
