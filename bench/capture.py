"""make bench-capture: what capturing a database costs beside Debezium's embedded engine, in CPU-seconds of the capturing process.

A table of orders is filled first, in transactions. Then each run reads the same log of the database (PostgreSQL: slots that were made before; MariaDB:
the binlog from before the first row), ours and Debezium's in turns, and takes the table's rows as a snapshot. Ours publishes to an embedded
log that syncs, exactly once, and is counted from its start; Debezium's engine makes JSON and publishes nothing, and is counted when it is warm. A figure
is the median of the runs, rows to JSON alone that of the first. What the log's broker takes for it is a process of its own, and shown as well.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import engine
from headwater.capture.loop.feed import Feed
from headwater.capture.loop.lifecycle import restart
from headwater.capture.mariadb.source import MariaDBSource
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.source import Source
from headwater.capture.state import State
from results import Figure, save
from support.captured import database, execute
from support.databases import MariaDBProcess, PostgresProcess
from support.servers import BrokerProcess

PEER = "Debezium 3.5.0, warm, no publication"
GOALS = {"PostgreSQL": 3.0, "MariaDB": 2.5}
WARM = 0.5
"""After this share of a run's rows Debezium's engine is counted; its process stays for all runs."""


def used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def used_by_s(pid: int) -> float:
    """CPU-seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server(Protocol):
    """A database server with a table that is captured in every run, each time under another name."""

    name: str

    def prepare(self, rows: int, each: int, runs: int) -> None:
        """Makes the table, then what reads its changes later, then the rows, so many in a transaction."""

    def source(self, name: str) -> Source: ...

    def begin(self, name: str, log: str) -> str:
        """Lets a capture that has not run yet begin with the first row's change; the position of that."""

    def peer(self, run: int, *, snapshot: bool) -> dict[str, str]:
        """The settings of Debezium's engine."""

    def forget(self, run: int) -> None:
        """Removes what a run has no more use for."""

    def end(self) -> None: ...


class Postgres:
    name = "PostgreSQL"
    table = """
    CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, status text, total numeric(12,2),
    created timestamptz, shipped timestamp, note text)
    """
    rows = """
    INSERT INTO orders SELECT i, i % 10000, (ARRAY['new','paid','sent'])[1 + i % 3], (i % 100000) / 100.0,
    timestamptz '2024-01-01' + i * interval '1 second', NULL, 'order number ' || i FROM generate_series({}, {}) i
    """

    def __init__(self) -> None:
        self._process = PostgresProcess()
        self._process.start()
        self._url = database(self._process.url)
        self._positions: dict[str, str] = {}

    def prepare(self, rows: int, each: int, runs: int) -> None:
        execute(self._url, self.table)
        for run in range(runs):
            execute(self._url, f"CREATE PUBLICATION peer{run} FOR TABLE orders")
            execute(self._url, f"SELECT pg_create_logical_replication_slot('peer{run}', 'pgoutput')")
            for name in (f"stream{run}", *(("decode",) if run == 0 else ())):
                source = self.source(name)
                found = (part.position for part in source.read(None) if part.position is not None)
                self._positions[name] = next(found)
                source.close()
        execute(self._url, *[self.rows.format(at + 1, at + each) for at in range(0, rows, each)])

    def source(self, name: str) -> Source:
        return PostgresSource(name, self._url, ("orders",))

    def begin(self, name: str, log: str) -> str:
        restart(log, name, self._positions[name])
        return self._positions[name]

    def peer(self, run: int, *, snapshot: bool) -> dict[str, str]:
        slot = f"peersnapshot{run}" if snapshot else f"peer{run}"
        return engine.postgres(self._url, slot, "public.orders", snapshot=snapshot)

    def forget(self, run: int) -> None:
        execute(
            self._url,
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE NOT active AND slot_name ~ '^(headwater_.*|peer.*){run}$'",
        )

    def end(self) -> None:
        self._process.end()


class MariaDB:
    name = "MariaDB"
    table = """
    CREATE TABLE orders(id bigint PRIMARY KEY, customer int NOT NULL, status varchar(20) NOT NULL, amount decimal(12,2) NOT NULL,
    note varchar(200), created datetime(6) NOT NULL, paid tinyint NOT NULL, quantity int unsigned NOT NULL)
    """
    rows = """
    INSERT INTO orders SELECT seq, seq % 1000, 'open', seq / 7, concat('note of order ', seq), timestamp('2024-01-01') + interval seq second,
    seq % 2, seq FROM seq_{}_to_{}
    """

    def __init__(self) -> None:
        self._process = MariaDBProcess()
        self._process.start()
        self._position = ""

    def prepare(self, rows: int, each: int, runs: int) -> None:
        del runs
        statements = [self.rows.format(at + 1, at + each) for at in range(0, rows, each)]
        with self._process.connect(autocommit=True) as connection, connection.cursor() as cursor:
            for statement in ("CREATE DATABASE shop", "USE shop", self.table):
                cursor.execute(statement)
            cursor.execute("SELECT @@gtid_binlog_pos")
            (self._position,) = cursor.fetchone()
            for statement in statements:
                cursor.execute(statement)

    def source(self, name: str) -> Source:
        return MariaDBSource(name, self._process.url, ["shop.orders"])

    def begin(self, name: str, log: str) -> str:
        restart(log, name, self._position)
        return self._position

    def peer(self, run: int, *, snapshot: bool) -> dict[str, str]:
        del run
        url = f"mysql://root@127.0.0.1:{self._process.port}"
        return engine.mariadb(url, "shop", "shop.orders", snapshot=snapshot)

    def forget(self, run: int) -> None: ...

    def end(self) -> None:
        self._process.end()


def published(server: Server, name: str, log: str, rows: int) -> None:
    """A capture that ends when so many records are committed."""
    stop = threading.Event()

    def reached(state: State) -> None:
        if state.rows >= rows:
            stop.set()

    Feed(name, server.source(name), log, on_state=reached).run(stop)


def made(server: Server, name: str, position: str | None, rows: int) -> None:
    """The source alone, rows to JSON: nothing is published."""
    source, found = server.source(name), 0
    for part in source.read(position):
        found += len(part.records)
        if found >= rows and part.position is not None:
            break
    source.close()


class Bench:
    """The figures of one server: rows for each CPU-second, by what was done, of every run."""

    def __init__(self, server: Server, broker: BrokerProcess, rows: int) -> None:
        self._server = server
        self._broker = broker
        self._rows = rows
        self._engine = engine.Engine()
        self._rates: defaultdict[str, list[float]] = defaultdict(list)

    def run(self, number: int) -> None:
        server, log, rows = self._server, self._broker.bootstrap, self._rows
        warm = int(rows * WARM)
        server.begin(f"stream{number}", log)
        self._ours("streaming", lambda: published(server, f"stream{number}", log, rows))
        self._peer("streaming", self._engine.run(server.peer(number, snapshot=False), warm, rows))
        if number == 0:
            position = server.begin("decode", log)
            self._ours("streaming, JSON alone", lambda: made(server, "decode", position, rows))
        server.forget(number)
        self._ours("snapshot", lambda: published(server, f"snapshot{number}", log, rows))
        server.forget(number)
        self._peer("snapshot", self._engine.run(server.peer(number, snapshot=True), warm, rows))
        if number == 0:
            self._ours("snapshot, JSON alone", lambda: made(server, f"copy{number}", None, rows))
        server.forget(number)

    def end(self) -> None:
        self._engine.end()

    def figures(self) -> Iterator[Figure]:
        rates = {what: statistics.median(found) for what, found in self._rates.items()}
        for kind in ("streaming", "snapshot"):
            peer, name = rates[f"peer {kind}"], f"{self._server.name} {kind}"
            goal = GOALS[self._server.name]
            yield Figure(f"{name}, published", rates[kind], peer, PEER, "rows/CPU-s", goal)
            for what, of in (
                ("published, the log's broker counted too", f"{kind} with broker"),
                ("rows to JSON alone", f"{kind}, JSON alone"),
            ):
                yield Figure(f"{name}, {what}", rates[of], peer, PEER, "rows/CPU-s", None)

    def _ours(self, what: str, work: Callable[[], None]) -> None:
        used, broker = used_s(), used_by_s(self._broker.pid)
        work()
        used, broker = used_s() - used, used_by_s(self._broker.pid) - broker
        self._note(what, self._rows / used)
        if "alone" not in what:
            self._note(f"{what} with broker", self._rows / (used + broker))

    def _peer(self, what: str, cost: engine.Cost) -> None:
        self._note(f"peer {what}", cost.rate)

    def _note(self, what: str, rate: float) -> None:
        print(f"{self._server.name:10} {what:30} {rate:10,.0f} rows/CPU-s", flush=True)
        self._rates[what].append(rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--transaction", type=int, default=1_000, help="rows of a transaction")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--databases", default="PostgreSQL,MariaDB")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    kinds: dict[str, Callable[[], Any]] = {each.name: each for each in (Postgres, MariaDB)}
    figures: list[Figure] = []
    for kind in arguments.databases.split(","):
        server: Server = kinds[kind]()
        with tempfile.TemporaryDirectory() as folder:
            broker = BrokerProcess(Path(folder) / "data", "--flush", "commit")
            broker.start()
            try:
                server.prepare(arguments.rows, arguments.transaction, arguments.runs)
                bench = Bench(server, broker, arguments.rows)
                for run in range(arguments.runs):
                    bench.run(run)
                bench.end()
                figures += bench.figures()
                if not arguments.no_save:
                    save("capture", figures)
            finally:
                broker.end()
                server.end()


if __name__ == "__main__":
    main()
