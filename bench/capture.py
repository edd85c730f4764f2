"""make bench-capture: what capturing a PostgreSQL database costs, in CPU-seconds of the capturing process, for streaming and for the snapshot.

Rows of a table of orders (seven columns) are written first; then one capture reads them back as a snapshot, and another one as the stream of
the transactions that wrote them, both with publication to an embedded log that syncs. The parts say what each step costs alone: the
server's messages to rows and JSON, and the records into the log.
"""

import argparse
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from captured import database, execute
from databases import PostgresProcess
from headwater.capture.feed import Feed
from headwater.capture.ledger import State
from headwater.capture.postgres import PostgresSource
from results import Figure, save
from servers import BrokerProcess

DEBEZIUM_STREAM, DEBEZIUM_SNAPSHOT = 61_000, 68_000
"""Row changes for each CPU-second of Debezium 3.5.0's embedded engine, warm and without publication, on a machine like this one."""
PEER = "Debezium 3.5.0, no publication, measured elsewhere"
TABLE = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, status text, total numeric(12,2),
created timestamptz, shipped timestamp, note text)
"""
ROWS = """
INSERT INTO orders SELECT i, i % 10000, (ARRAY['new','paid','sent'])[1 + i % 3], (i % 100000) / 100.0,
timestamptz '2024-01-01' + i * interval '1 second', NULL, 'order number ' || i FROM generate_series({}, {}) i
"""


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(work: Callable[[], None]) -> tuple[float, float]:
    began, used = time.monotonic(), cpu_s()
    work()
    return cpu_s() - used, time.monotonic() - began


def captured(name: str, url: str, log: str, rows: int) -> Callable[[], None]:
    """A capture that ends when so many records are committed."""

    def work() -> None:
        stop = threading.Event()

        def reached(state: State) -> None:
            if state.rows >= rows:
                stop.set()

        Feed(name, PostgresSource(name, url, ("orders",)), log, on_state=reached).run(stop)

    return work


def decoded(name: str, url: str, rows: int, position: str | None = None) -> Callable[[], None]:
    """The source alone: nothing is published."""

    def work() -> None:
        source, found = PostgresSource(name, url, ("orders",)), 0
        for part in source.read(position):
            found += len(part.records)
            if found >= rows:
                break
        source.close()

    return work


def begun(name: str, url: str) -> str | None:
    """A slot whose stream begins now, and the position of that."""
    source = PostgresSource(name, url, ("orders",))
    position = next((part.position for part in source.read(None) if part.position is not None), None)
    source.close()
    return position


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--transaction", type=int, default=1_000, help="rows of a transaction")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    rows, each = arguments.rows, arguments.transaction
    server = PostgresProcess()
    server.start()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        log = BrokerProcess(Path(folder) / "data", "--flush", "commit")
        log.start()
        try:
            url = database(server.url)
            execute(url, TABLE)
            captured("stream", url, log.bootstrap, 0)()
            position = begun("decode", url)
            execute(url, *[ROWS.format(at + 1, at + each) for at in range(0, rows, each)])
            for what, peer, goal, work in (
                ("streaming, published", DEBEZIUM_STREAM, 3.0, captured("stream", url, log.bootstrap, rows)),
                (
                    "streaming, decode and JSON alone",
                    DEBEZIUM_STREAM,
                    None,
                    decoded("decode", url, rows, position),
                ),
                (
                    "snapshot, published",
                    DEBEZIUM_SNAPSHOT,
                    3.0,
                    captured("snapshot", url, log.bootstrap, rows),
                ),
                ("snapshot, COPY and JSON alone", DEBEZIUM_SNAPSHOT, None, decoded("copy", url, rows)),
            ):
                used, wall = measured(work)
                rate = rows / used
                print(f"{what:35} {rate:10,.0f} rows/CPU-s  {rows / wall:10,.0f} rows/s  {used:.2f} CPU-s")
                figures.append(Figure(f"PostgreSQL {what}", rate, peer, PEER, "rows/CPU-s", goal))
        finally:
            log.end()
            server.end()
    if not arguments.no_save:
        save("capture", figures)


if __name__ == "__main__":
    main()
