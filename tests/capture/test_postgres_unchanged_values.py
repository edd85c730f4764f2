"""A large value that an update does not touch is not in PostgreSQL's log; the record of the update has it all the same, as of its time."""

import base64
import contextlib
import json
import os
import random
import signal
import sqlite3
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from confluent_kafka import TopicPartition
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

import headwater as hw
from headwater.capture.loop.control import send
from headwater.capture.loop.feed import Feed
from headwater.capture.loop.newest_rows import FILE
from headwater.capture.messages import Command
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.client.client import Client, admin, producer
from headwater.sink.loop.sinks import Sinks
from support.captured import CaptureProcess, Event, by_key, committed, events, execute, running, streaming
from support.databases import RedisProcess
from support.servers import both_logs, wait_until

SEED = int(os.environ.get("CRASH_SEED", "0"))
SEEDS = int(os.environ.get("CRASH_ROUNDS", "2"))
KILLS = 4
LARGE_ROWS = 40_000
"""Of 8 kB each."""
MEMORY_MB = 300
"""Less than the values of all rows take."""
KEYS = range(8)
COLUMNS = ("body", "doc", "raw", "amount", "marks")
TABLE = (
    "CREATE TABLE product (id int PRIMARY KEY, price int, body text, doc jsonb, raw bytea, amount numeric, marks int[])",
    *(f"ALTER TABLE product ALTER {column} SET STORAGE EXTERNAL" for column in COLUMNS),
)
PLACEHOLDER = "__debezium_unavailable_value"


@pytest.fixture
def name() -> str:
    return f"unsent{uuid.uuid4().hex[:8]}"


@pytest.fixture
def shop(url):
    execute(url, *TABLE)
    made = Shop(url)
    yield made
    made.connection.close()


class Shop:
    """A table of large values that is written by one connection, which notes each state of each row as it commits."""

    def __init__(self, url: str, seed: int = 0) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.states: list[tuple[int, dict[str, Any]]] = []
        self._noted: list[tuple[int, dict[str, Any]]] = []
        self._random = random.Random(seed)

    def large(self, column: str) -> Any:
        """A value that does not fit a page, written as SQL takes it."""
        rng, size = self._random, self._random.randint(3_000, 9_000)
        match column:
            case "body":
                return "".join(rng.choices("abcdefghij é\n\t\\\"'", k=size))
            case "doc":
                return json.dumps(
                    {"words": ["".join(rng.choices("abcdef", k=40)) for _ in range(size // 40)]}
                )
            case "raw":
                return rng.randbytes(size)
            case "amount":
                return "".join(rng.choices("123456789", k=4 * size)) + ".25"
            case _:
                return [rng.randrange(1 << 31) for _ in range(size // 4)]

    def insert(self, key: int) -> None:
        values = [self.large(column) for column in COLUMNS]
        self.connection.execute("INSERT INTO product VALUES (%s, 0, %s, %s, %s, %s, %s)", [key, *values])
        self.note(key)

    def update(self, key: int, **values: Any) -> None:
        sets = ", ".join(f"{column} = %s" for column in values)
        self.connection.execute(f"UPDATE product SET {sets} WHERE id = %s", [*values.values(), key])
        self.note(values.get("id", key))

    def delete(self, key: int) -> None:
        self.connection.execute("DELETE FROM product WHERE id = %s", [key])

    def note(self, key: int) -> None:
        self._noted += [(key, row) for row in self.rows(key)]
        if self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self.states += self._noted
            self._noted = []

    @contextlib.contextmanager
    def transaction(self, *, rolled_back: bool = False):
        with self.connection.transaction(force_rollback=rolled_back):
            yield
        self.states += [] if rolled_back else self._noted
        self._noted = []

    def rows(self, key: int | None = None) -> list[dict[str, Any]]:
        where = "" if key is None else f" WHERE id = {key}"
        names = ("id", "price", *COLUMNS)
        query = f"SELECT id, price, body, doc::text, raw, amount::text, marks FROM product{where} ORDER BY id"
        return [dict(zip(names, row, strict=True)) for row in self.connection.execute(query)]


def published(after: dict[str, Any]) -> dict[str, Any]:
    """A row of a record as the database shows it."""
    raw = after["raw"]
    return after | {"raw": None if raw is None else base64.b64decode(raw)}


def topic_rows(log: str, name: str) -> list[dict[str, Any]]:
    rows = by_key(events(log, name), f"{name}.public.product")
    return sorted(map(published, rows.values()), key=lambda row: row["id"])


def changes(found: list[Event], name: str) -> list[tuple[int, dict[str, Any]]]:
    """The rows of all changes of the stream, in order."""
    topic = f"{name}.public.product"
    values = [event.value for event in found if event.topic == topic and event.value is not None]
    afters = [value["after"] for value in values if value["op"] in {"c", "u"}]
    return [(after["id"], published(after)) for after in afters]


def capture(url: str, name: str, log: str, folder: Path | None = None, **options: Any) -> Feed:
    source = PostgresSource(name, url, ("product",), decimals="string")
    return Feed(name, source, log, **({} if folder is None else {"folder": folder}), **options)


def has_come(log: str, name: str, shop: Shop) -> None:
    wait_until(
        lambda: committed(log, name) is not None and topic_rows(log, name) == shop.rows(),
        15,
        "the rows of the table in the topic",
    )


def test_a_large_value_that_an_update_does_not_touch_is_in_its_record(url, shop, broker, name):
    shop.insert(1)
    with running(capture(url, name, broker.bootstrap)):
        streaming(url, slot_name(name))
        shop.update(1, price=11)
        shop.insert(2)
        shop.update(2, body="short")
        shop.update(2, price=12, raw=None)
        has_come(broker.bootstrap, name, shop)

    assert changes(events(broker.bootstrap, name), name) == shop.states[1:]


@both_logs
def test_each_record_has_the_value_of_its_time_however_late_it_is_read(url, shop, bootstrap, name, tmp_path):
    shop.insert(1)
    with running(capture(url, name, bootstrap, tmp_path)):
        streaming(url, slot_name(name))
    for price in range(5):
        shop.update(1, price=price)
        shop.update(1, **{COLUMNS[price]: shop.large(COLUMNS[price])})
        shop.update(1, price=-price)
    shop.delete(1)
    shop.insert(1)
    shop.update(1, price=99)
    with running(capture(url, name, bootstrap, tmp_path)):
        has_come(bootstrap, name, shop)

    assert changes(events(bootstrap, name), name) == shop.states[1:]


def test_a_row_keeps_its_large_values_under_another_key(url, shop, broker, name):
    for key in (1, 2):
        shop.insert(key)
    with running(capture(url, name, broker.bootstrap, partitions=3)):
        streaming(url, slot_name(name))
        with shop.transaction():  # two rows change places
            shop.update(1, id=3)
            shop.update(2, id=1, price=5)
            shop.update(3, id=2)
            shop.update(2, price=6)
        shop.update(1, id=7)
        has_come(broker.bootstrap, name, shop)


def test_a_streamed_transaction_with_a_savepoint_keeps_large_values(url, shop, broker, name):
    execute(url, f"ALTER DATABASE {url.rsplit('/', 1)[1]} SET logical_decoding_work_mem = '64kB'")
    for key in range(10):
        shop.insert(key)
    with running(capture(url, name, broker.bootstrap)):
        streaming(url, slot_name(name))
        with shop.transaction():
            for key in range(10):
                shop.update(key, price=1)
                with shop.connection.transaction(force_rollback=True):
                    shop.connection.execute("UPDATE product SET body = repeat('x', 9000), price = 2")
                shop.update(key, body=shop.large("body"))
                shop.update(key, price=3)
        has_come(broker.bootstrap, name, shop)

    assert changes(events(broker.bootstrap, name), name) == shop.states[10:]


@pytest.fixture(
    params=["nothing", "the store of another time", "a damaged store", "a store in use", "the store"]
)
def left(request) -> str:
    """What a restart finds in its folder."""
    return str(request.param)


def test_a_restart_knows_large_values_whatever_is_left_of_its_folder(  # noqa: PLR0917  all of them are fixtures
    url, shop, broker, name, tmp_path, left
):
    for key in (1, 2):
        shop.insert(key)
    with running(capture(url, name, broker.bootstrap, tmp_path)):
        streaming(url, slot_name(name))
        shop.update(1, price=1)
        has_come(broker.bootstrap, name, shop)
    early = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with running(capture(url, name, broker.bootstrap, tmp_path)):
        shop.update(1, doc=shop.large("doc"))
        shop.update(2, body=shop.large("body"))
        has_come(broker.bootstrap, name, shop)
    if left in {"nothing", "the store of another time"}:
        for path in tmp_path.iterdir():
            path.unlink()
    if left == "the store of another time":
        for path, content in early.items():
            path.write_bytes(content)
    if left == "a damaged store":
        (tmp_path / FILE).write_bytes(b"damaged" * 1_000)
    held = sqlite3.connect(tmp_path / FILE if left == "a store in use" else "", isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    shop.update(1, price=2)
    shop.update(2, price=2)
    with contextlib.closing(held), running(capture(url, name, broker.bootstrap, tmp_path)):
        has_come(broker.bootstrap, name, shop)

    assert changes(events(broker.bootstrap, name), name) == shop.states[2:]


def test_memory_stays_flat_through_a_large_transaction_of_such_updates(url, shop, broker, name, tmp_path):
    text = "SELECT string_agg(md5((i * 1000 + j)::text), '') FROM generate_series(1, 250) j"
    execute(url, f"INSERT INTO product SELECT i, 0, ({text}) FROM generate_series(1, {LARGE_ROWS}) i")
    process = CaptureProcess(tmp_path, name, f"Postgres({url!r}, ['product'])", broker.bootstrap)
    process.start()
    try:
        streaming(url, slot_name(name))
        execute(url, "UPDATE product SET price = 1")
        wait_until(lambda: committed(broker.bootstrap, name).rows >= 2 * LARGE_ROWS, 120, "the transaction")
        peak = process.peak_mb
    finally:
        process.end(signal.SIGKILL)
    client = Client(broker.bootstrap)
    messages = client.read([f"{name}.public.product"], ahead_bytes=1 << 20)
    lengths = Counter(len(json.loads(message.value())["after"]["body"]) for message in messages)
    client.close()
    assert lengths == {8_000: 2 * LARGE_ROWS}
    assert peak < MEMORY_MB


def test_a_value_that_the_topic_does_not_have_is_read_from_the_table(url, shop, broker, name, tmp_path):
    """As in a topic that was written before values were completed, or one that does not keep its records."""
    for key in (1, 2):
        shop.insert(key)
    with running(capture(url, name, broker.bootstrap, tmp_path)):
        streaming(url, slot_name(name))
    client, topic = Client(broker.bootstrap), f"{name}.public.product"
    writer = producer(broker.bootstrap)
    for message in list(client.read([topic])):
        event = json.loads(message.value())
        event["after"] |= {"body": PLACEHOLDER, "marks": [PLACEHOLDER]}
        writer.produce(topic, json.dumps(event), message.key())
    writer.flush(10)
    client.close()
    delete_before(broker.bootstrap, topic, 2)
    shop.update(1, price=1)
    with shop.transaction():
        shop.update(2, price=1)
        shop.update(2, body=shop.large("body"))
        shop.update(2, price=2)
    shop.update(1, price=3)
    with running(capture(url, name, broker.bootstrap, tmp_path)):
        has_come(broker.bootstrap, name, shop)


def delete_before(log: str, topic: str, offset: int) -> None:
    """Takes the first records of a topic away, as retention does."""
    asked = admin(log)
    for answer in asked.delete_records([TopicPartition(topic, 0, offset)]).values():
        answer.result(10)


def test_a_column_of_another_type_has_the_value_that_the_table_has(url, shop, broker, name, tmp_path):
    shop.insert(1)
    with running(capture(url, name, broker.bootstrap, tmp_path)):
        streaming(url, slot_name(name))
        shop.update(1, price=1)
        has_come(broker.bootstrap, name, shop)
        execute(url, "ALTER TABLE product ALTER amount TYPE text", "UPDATE product SET price = 2")
        has_come(broker.bootstrap, name, shop)


def test_a_truncated_table_has_none_of_its_values_left(url, shop, broker, name, tmp_path):
    shop.insert(1)
    with running(capture(url, name, broker.bootstrap, tmp_path)):
        streaming(url, slot_name(name))
        shop.update(1, price=1)
        execute(url, "TRUNCATE product")
        shop.insert(1)
        shop.update(1, price=2)
        has_come(broker.bootstrap, name, shop)

    assert changes(events(broker.bootstrap, name), name) == shop.states[1:]


class Product(hw.Row):
    id: int
    price: int
    body: str
    doc: str
    amount: str
    marks: list[int]


@pytest.fixture
def cache(tmp_path):
    process = RedisProcess(tmp_path / "redis")
    process.start()
    yield process
    process.end()


def declared(url: str, name: str, cache: RedisProcess, folder: Path) -> hw.App:
    """The table in stores that know rows by their key, each in its own way."""
    app = hw.App("shop")
    app.capture(name, hw.capture.Postgres(url, ["product"], decimals="string"))
    app.table("product", Product, key="id", topic=f"{name}.public.product", envelope="debezium")
    app.sink("product", hw.sink.Sqlite(folder / "product.db", "product"))
    app.sink("product", hw.sink.Redis(cache.url, prefix="product:"))
    app.sink("product", hw.sink.Delta(folder / "lake"))
    return app


def stored(cache: RedisProcess, folder: Path, topic: str) -> dict[str, list[Any]]:
    """What each store has."""
    with redis.from_url(cache.url) as client:
        keys = [key for key in client.keys("product:*") if key.removeprefix(b"product:").isdigit()]
        cached = [json.loads(value) for value in client.mget(keys)] if keys else []
    found: list[Any] = []
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(folder / "product.db")) as base,
    ):
        query = "SELECT id, price, body, doc, amount, marks FROM product"
        found = [[*row[:5], json.loads(row[5])] for row in base.execute(query)]
    lake: list[Any] = []
    with contextlib.suppress(TableNotFoundError):
        lake = DeltaTable(str(folder / "lake" / topic)).to_pyarrow_table().to_pylist()
    names = ("id", "price", "body", "doc", "amount", "marks")
    return {
        "redis": sorted([row[name] for name in names] for row in cached),
        "sqlite": sorted(found),
        "delta": sorted([row[name] for name in names] for row in lake),
    }


def test_stores_that_follow_the_table_have_its_large_values(url, shop, broker, name, cache, tmp_path):  # noqa: PLR0917
    graph = declared(url, name, cache, tmp_path).graph()
    for key in (1, 2, 3):
        shop.insert(key)
    sinks, stop = Sinks(broker.bootstrap, graph, tmp_path), threading.Event()
    following = threading.Thread(target=sinks.run, args=(stop,))
    following.start()
    try:
        with running(capture(url, name, broker.bootstrap, tmp_path)):
            streaming(url, slot_name(name))
            shop.update(1, price=11)
            shop.update(2, id=4)
            shop.update(3, body=shop.large("body"))
            shop.update(3, price=12)
            truth = [
                [row[column] for column in ("id", "price", "body", "doc", "amount", "marks")]
                for row in shop.rows()
            ]
            topic = f"{name}.public.product"
            wait_until(
                lambda: all(rows == truth for rows in stored(cache, tmp_path, topic).values()),
                20,
                "stores in step",
            )
    finally:
        stop.set()
        following.join(120)


def write(shop: Shop, rng: random.Random, keys: set[int]) -> None:
    """One statement that changes a row, whatever rows there are."""
    key = rng.choice(KEYS)
    if key not in keys:
        shop.insert(key)
        keys.add(key)
        return
    match rng.randrange(10):
        case 0:
            shop.delete(key)
            keys.remove(key)
        case 1 | 2 if len(keys) < len(KEYS):
            other = rng.choice([each for each in KEYS if each not in keys])
            shop.update(key, id=other, price=rng.randrange(100))
            keys.add(other)
            keys.remove(key)
        case 3 | 4:
            column = rng.choice(COLUMNS)
            shop.update(key, **{column: rng.choice([shop.large(column), shop.large(column), None])})
        case _:
            shop.update(key, price=rng.randrange(100))


def work(shop: Shop, rng: random.Random, keys: set[int]) -> None:
    """Transactions of one or several changes, some of them rolled back."""
    for _ in range(rng.randint(5, 25)):
        if rng.random() < 0.5:
            write(shop, rng, keys)
            continue
        rolled_back, before = rng.random() < 0.3, set(keys)
        with shop.transaction(rolled_back=rolled_back):
            for _ in range(rng.randint(1, 6)):
                write(shop, rng, keys)
        if rolled_back:
            keys.clear()
            keys |= before


@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
def test_rows_are_those_of_the_table_after_any_history_and_any_kill(url, shop, broker, name, tmp_path, seed):  # noqa: PLR0917
    """Each state of each row, too: not only where it ends."""
    rng, keys = random.Random(seed), set[int]()
    work(shop, rng, keys)
    declared = f"Postgres({url!r}, ['product'], decimals='string', partitions={rng.choice([1, 3])})"
    process = CaptureProcess(tmp_path, name, declared, broker.bootstrap)
    process.start()
    streaming(url, slot_name(name))
    snapshot = len(shop.states)
    for _ in range(KILLS):
        work(shop, rng, keys)
        if rng.random() < 0.7:
            send(broker.bootstrap, name, Command("snapshot", table="product"))
            work(shop, rng, keys)
        if rng.random() < 0.5:
            has_come(broker.bootstrap, name, shop)
        process.end(rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        work(shop, rng, keys)
        process.start()
    has_come(broker.bootstrap, name, shop)
    process.end(signal.SIGTERM)

    found = changes(events(broker.bootstrap, name), name)
    for key in KEYS:
        states = [row for at, row in shop.states[snapshot:] if at == key]
        assert [row for at, row in found if at == key] == states
