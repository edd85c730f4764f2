"""make bench-delivery: rows a second from a topic into SQLite and PostgreSQL, exactly once, against the best plain way from Python.

The plain way reads the same topic with confluent-kafka's ``consume``, decodes, and loads in the same big batches, with no offsets, no claims, no dead letters and no
deletions: ``executemany``, or COPY into a temporary table and one upsert. Ways take turns; the median of the rounds counts. Then a sink is killed (-9) in the midst of
a load: how long until its successor has written the next row.
"""

import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import msgspec
import psycopg
from confluent_kafka import TopicPartition

from databases import PostgresProcess
from headwater.client import Client, consumer, producer
from headwater.sink import Postgres, Sqlite
from headwater.sink.loop import BATCH_RECORDS, QUEUE_KB, SESSION_MS, Loop
from headwater.sink.store import Feed
from results import Figure, save
from servers import BrokerProcess

ROWS = int(os.environ.get("ROWS", "1000000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
GOAL = 0.7
PARTITIONS = 4
COLUMNS = {"id": "STRING", "customer": "BIGINT", "country": "STRING", "total": "DOUBLE", "at": "TIMESTAMP"}
KILLED = """
import sys
from headwater.sink import Postgres, Sqlite, loop
from headwater.sink.store import Feed
bootstrap, topic, sink, where, columns = sys.argv[1:]
feed = Feed(sink, topic, ("id",), dict(each.split("=") for each in columns.split(",")))
target = Postgres(where, table=sink) if where.startswith("postgresql") else Sqlite(where, sink)
loop.Loop(bootstrap, sink, topic, target, lambda: feed).run()
"""


class Row(msgspec.Struct):
    id: str
    customer: int
    country: str
    total: float
    at: str


def fill(bootstrap: str, topic: str) -> None:
    Client(bootstrap).ensure_topics([topic], PARTITIONS, {"cleanup.policy": "compact"})
    out = producer(bootstrap, **{"queue.buffering.max.messages": 1_000_000})
    for n in range(ROWS):
        key = n * 7919 % max(ROWS // 2, 1)  # each key twice, far apart
        value = b'{"id":"order-%d","customer":%d,"country":"DE","total":%d.25,"at":"2026-01-05T09:00:%02d.000001Z","_revision":1}'
        out.produce(topic, value % (key, n % 9973, n % 500, n % 60), b"order-%d" % key)
        if n % 10_000 == 0:
            out.poll(0)
    if out.flush(120):
        raise RuntimeError("records were not acknowledged")


def batches(bootstrap: str, topic: str, upto: int) -> Iterator[list[Any]]:
    """The topic from its start, in batches as big as the loop's."""
    settings: dict[str, Any] = {
        "queued.max.messages.kbytes": QUEUE_KB,
        "queued.min.messages": 10 * BATCH_RECORDS,
    }
    reader = consumer(bootstrap, **settings)
    reader.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    seen = 0
    while seen < upto:
        found = [m for m in reader.consume(BATCH_RECORDS, 0.2) if m.error() is None]
        seen += len(found)
        if found:
            yield found
    reader.close()


def plain_sqlite(bootstrap: str, topic: str, folder: Path) -> None:
    connection = sqlite3.connect(folder / f"{uuid.uuid4().hex}.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE t (id TEXT UNIQUE, customer BIGINT, country TEXT, total DOUBLE, at TEXT)"
    )
    decode, values = msgspec.json.Decoder(Row).decode, msgspec.structs.astuple
    upsert = (
        "INSERT INTO t VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, "
        "country = excluded.country, total = excluded.total, at = excluded.at"
    )
    for found in batches(bootstrap, topic, ROWS):
        connection.execute("BEGIN")
        connection.executemany(upsert, [values(decode(message.value())) for message in found])
        connection.execute("COMMIT")
    connection.close()


def plain_postgres(bootstrap: str, topic: str, url: str) -> None:
    decode, values = msgspec.json.Decoder(Row).decode, msgspec.structs.astuple
    table = f"plain_{uuid.uuid4().hex[:8]}"
    kinds = "id text{}, customer bigint, country text, total double precision, at timestamptz"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} ({kinds.format(' UNIQUE')})")
        connection.execute(f"CREATE TEMPORARY TABLE stage ({kinds.format('')}) ON COMMIT DELETE ROWS")
        for found in batches(bootstrap, topic, ROWS):
            newest = {message.key(): message for message in found}
            with connection.transaction(), connection.cursor() as cursor:
                with cursor.copy("COPY stage FROM STDIN") as copy:
                    for message in newest.values():
                        copy.write_row(values(decode(message.value())))
                cursor.execute(
                    f"INSERT INTO {table} SELECT * FROM stage ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, "
                    "country = excluded.country, total = excluded.total, at = excluded.at"
                )


def ours(bootstrap: str, topic: str, target: Any) -> None:
    name = f"s{uuid.uuid4().hex[:8]}"
    target.table = name
    loop = Loop(bootstrap, name, topic, target, lambda: Feed(name, topic, ("id",), COLUMNS))
    thread = threading.Thread(target=loop.run)
    thread.start()
    while loop.counters.applied < ROWS:
        time.sleep(0.01)
    loop.stop()
    thread.join()


def recovery(bootstrap: str, topic: str, where: str, position: Callable[[str], int]) -> float:
    """Seconds from kill -9 in the midst of the load until a successor has written on, its start included."""
    sink = f"k{uuid.uuid4().hex[:8]}"
    columns = ",".join(f"{name}={kind}" for name, kind in COLUMNS.items())
    command = [sys.executable, "-c", KILLED, bootstrap, topic, sink, where, columns]
    first = subprocess.Popen(command)
    while not position(sink):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    begun, before = time.monotonic(), position(sink)
    if before >= ROWS:
        raise RuntimeError("the sink was done before it could be killed; give more ROWS")
    second = subprocess.Popen(command)
    while position(sink) == before:
        time.sleep(0.01)
    took = time.monotonic() - begun
    second.kill()
    second.wait()
    return took


def seconds(act: Callable[[], None]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def turns(ways: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Rows a second of each way, the median of the rounds."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, act in ways.items():
            took[name].append(seconds(act))
    return {name: ROWS / statistics.median(each) for name, each in took.items()}


def sqlite_position(path: Path, sink: str) -> int:
    try:
        connection = sqlite3.connect(path)
        query = "SELECT coalesce(sum(next_offset), 0) FROM headwater_position WHERE sink = ?"
        return int(connection.execute(query, (sink,)).fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def postgres_position(url: str, sink: str) -> int:
    with psycopg.connect(url) as connection:
        try:
            query = "SELECT coalesce(sum(next_offset), 0) FROM headwater_position WHERE sink = %s"
            return int(connection.execute(query, (sink,)).fetchone()[0])
        except psycopg.errors.UndefinedTable:
            return 0


def main() -> None:
    database = PostgresProcess()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        broker = BrokerProcess(folder / "log")
        broker.start()
        database.start()
        try:
            log, topic = broker.bootstrap, "orders"
            fill(log, topic)
            rates = turns(
                {
                    "plain sqlite": lambda: plain_sqlite(log, topic, folder),
                    "sqlite": lambda: ours(log, topic, Sqlite(folder / f"{uuid.uuid4().hex}.db")),
                    "plain postgres": lambda: plain_postgres(log, topic, database.url),
                    "postgres": lambda: ours(log, topic, Postgres(database.url)),
                }
            )
            path = folder / "killed.db"
            back = {
                "SQLite": recovery(log, topic, str(path), lambda sink: sqlite_position(path, sink)),
                "PostgreSQL": recovery(
                    log, topic, database.url, lambda sink: postgres_position(database.url, sink)
                ),
            }
        finally:
            broker.end(signal.SIGTERM)
            database.end()
    figures = [
        Figure(
            "rows from a topic into SQLite",
            rates["sqlite"],
            rates["plain sqlite"],
            "executemany",
            "rows/s",
            GOAL,
        ),
        Figure(
            "rows from a topic into PostgreSQL",
            rates["postgres"],
            rates["plain postgres"],
            "COPY, upsert",
            "rows/s",
            GOAL,
        ),
        *(
            Figure(
                f"next row in {name} after kill -9",
                took,
                SESSION_MS / 1000,
                "session time-out",
                "s",
                None,
                higher_is_better=False,
            )
            for name, took in back.items()
        ),
    ]
    if os.environ.get("DRY"):
        for figure in figures:
            print(figure)
    else:
        save("delivery", figures)


if __name__ == "__main__":
    main()
