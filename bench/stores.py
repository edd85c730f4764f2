"""make bench-stores: what a keyed state costs when worker processes change shards from batch to batch, in three stores.

Four processes, eight shards, a million keys, batches of 250,000: each worker takes two shards of a batch, others in the next one. It gets the
batch's keys of a shard and puts them back changed. LMDB and SQLite are files that all processes have open; a dict belongs to its process,
which writes what it changed as a delta and first reads the deltas that others have written since. Prints CPU-seconds in the stores and wall
seconds of a batch, the median; the first ``FILL`` batches, which make the keys, do not count.
"""

import multiprocessing
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import lmdb
import msgspec

WORKERS, SHARDS = 4, 8
KEYS, BATCH = 1_000_000, 250_000
FILL = KEYS // BATCH
BATCHES = 5
VALUE = b"v" * 92


class Store(Protocol):
    def get(self, keys: list[bytes]) -> dict[bytes, bytes]: ...

    def put(self, items: list[tuple[bytes, bytes]]) -> None: ...


class InLmdb:
    def __init__(self, folder: Path) -> None:
        self.environment = lmdb.open(
            str(folder), map_size=1 << 36, sync=False, metasync=False, readahead=False
        )

    def get(self, keys: list[bytes]) -> dict[bytes, bytes]:
        with self.environment.begin() as transaction:
            return dict(transaction.cursor().getmulti(keys))

    def put(self, items: list[tuple[bytes, bytes]]) -> None:
        with self.environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(items)


class InSqlite:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.connection = sqlite3.connect(folder / "state.db", isolation_level=None, timeout=60)
        self.connection.executescript(
            "PRAGMA journal_mode=wal; PRAGMA synchronous=off; CREATE TEMP TABLE wanted (key BLOB);"
            "CREATE TABLE IF NOT EXISTS state (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;"
        )

    def get(self, keys: list[bytes]) -> dict[bytes, bytes]:
        run = self.connection
        run.execute("DELETE FROM wanted")
        run.execute("BEGIN")
        run.executemany("INSERT INTO wanted VALUES (?)", zip(keys))
        found = dict(run.execute("SELECT key, value FROM wanted JOIN state USING (key)"))
        run.execute("COMMIT")
        return found

    def put(self, items: list[tuple[bytes, bytes]]) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(
            "INSERT INTO state VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", items
        )
        self.connection.execute("COMMIT")


class InDict:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.reached = folder, 0
        self.values: dict[bytes, bytes] = {}

    def get(self, keys: list[bytes]) -> dict[bytes, bytes]:
        while (delta := self.folder / str(self.reached)).exists():
            self.values.update(msgspec.msgpack.decode(delta.read_bytes(), type=list[tuple[bytes, bytes]]))
            self.reached += 1
        return {key: self.values[key] for key in keys if key in self.values}

    def put(self, items: list[tuple[bytes, bytes]]) -> None:
        (self.folder / str(self.reached)).write_bytes(msgspec.msgpack.encode(items))
        self.values.update(items)
        self.reached += 1


STORES: dict[str, Any] = {"LMDB": InLmdb, "SQLite": InSqlite, "dict with deltas": InDict}


def worker(kind: str, folder: Path, orders: Connection) -> None:
    """Takes a batch's shards from the driver and says what they cost."""
    opened: dict[int, Store] = {}
    while (order := orders.recv()) is not None:
        batch, shards = order
        cpu = 0.0
        for shard in shards:
            if shard not in opened:
                opened[shard] = STORES[kind](folder / str(shard))
            keys = keys_of(batch, shard)
            before = time.process_time()
            found = opened[shard].get(keys)
            opened[shard].put([(key, b"%8d" % (batch + len(found.get(key, b""))) + VALUE) for key in keys])
            cpu += time.process_time() - before
        orders.send((cpu, memory_kb()))


def memory_kb() -> int:
    """This process's memory, with its part of what it shares with others."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def keys_of(batch: int, shard: int) -> list[bytes]:
    """Sorted, as operators ask for them: while the shard is filled one part after the other, then any."""
    count, all_keys = BATCH // SHARDS, KEYS // SHARDS
    chosen: Iterable[int] = range(batch * count, (batch + 1) * count)
    if batch >= FILL:
        chosen = random.Random(batch * SHARDS + shard).sample(range(all_keys), count)
    return sorted(b"key-%02d-%09d" % (shard, number) for number in chosen)


def measure(kind: str, folder: Path) -> tuple[float, float, float]:
    """CPU-seconds and wall seconds of a batch, and the memory of all workers in MB."""
    pipes = [multiprocessing.Pipe() for _ in range(WORKERS)]
    started = [multiprocessing.Process(target=worker, args=(kind, folder, theirs)) for _, theirs in pipes]
    for process in started:
        process.start()
    chance, costs, held_kb = random.Random(1), [], 0
    for batch in range(FILL + BATCHES):
        shards = chance.sample(range(SHARDS), SHARDS)
        began = time.perf_counter()
        for number, (mine, _) in enumerate(pipes):
            mine.send((batch, shards[number::WORKERS]))
        answers = [mine.recv() for mine, _ in pipes]
        if batch >= FILL:
            costs.append((sum(cpu for cpu, _ in answers), time.perf_counter() - began))
        held_kb = sum(held for _, held in answers)
    for (mine, _), process in zip(pipes, started, strict=True):
        mine.send(None)
        process.join()
    cpu, wall = (statistics.median(column) for column in zip(*costs, strict=True))
    return cpu, wall, held_kb / 1024


def main() -> None:
    print(f"{WORKERS} processes, {SHARDS} shards, {KEYS:,} keys, {BATCH:,} a batch, {os.cpu_count()} cores")
    for kind in STORES:
        with tempfile.TemporaryDirectory() as folder:
            cpu, wall, memory = measure(kind, Path(folder))
        print(f"{kind:<20} {cpu:6.2f} CPU-s   {wall:6.2f} s   {memory:7.0f} MB")


if __name__ == "__main__":
    main()
