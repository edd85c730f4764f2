"""What capturing a MariaDB database costs, in CPU-seconds of the capturing process: the stream and the snapshot, rows to JSON, without publication.

A table of orders (eight columns) is filled and updated first; a figure is the number of records for each CPU-second that reading them took.
"""

import argparse
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from databases import MariaDBProcess
from headwater.capture.mariadb import MariaDBSource

DEBEZIUM = "55,000 to 62,000"
"""Row changes for each CPU-second of Debezium 3.5.0's embedded engine, warm, measured elsewhere."""
TABLE = """
CREATE TABLE orders(id bigint PRIMARY KEY, customer int NOT NULL, status varchar(20) NOT NULL, amount decimal(12,2) NOT NULL,
note varchar(200), created datetime(6) NOT NULL, paid tinyint NOT NULL, quantity int unsigned NOT NULL)
"""
ROWS = """
INSERT INTO orders SELECT seq, seq % 1000, 'open', seq / 7, concat('note of order ', seq), now(6) + interval seq second, seq % 2, seq
FROM seq_1_to_{}
"""


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(what: str, source: MariaDBSource, position: str | None, end: str) -> str:
    """Reads to an end, prints what it took, and gives back the position."""
    count, used, began = 0, cpu_s(), time.monotonic()
    for part in source.read(position):
        count += len(part.records)
        if part.position == end:
            break
    used = cpu_s() - used
    source.close()
    print(
        f"{what:10} {count:>9,} records {count / used:>9,.0f} per CPU-s {count / (time.monotonic() - began):>9,.0f} per s"
    )
    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    server = MariaDBProcess()
    server.start()
    try:
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            positions = []
            for statement in (
                "CREATE DATABASE shop",
                "USE shop",
                TABLE,
                ROWS.format(rows),
                "UPDATE orders SET status = 'paid'",
            ):
                cursor.execute(statement)
                cursor.execute("SELECT @@gtid_binlog_pos")
                positions.append(cursor.fetchone()[0])
        source = MariaDBSource("bench", server.url, ["shop.orders"])
        measured("inserts", source, positions[2], positions[3])
        measured("updates", source, positions[3], positions[4])
        measured("snapshot", source, None, positions[4])
        print(f"Debezium 3.5.0: {DEBEZIUM} per CPU-s, measured elsewhere")
    finally:
        server.end()


if __name__ == "__main__":
    main()
