"""Stores of files, and view tables, on a full disk: they wait, log it once, and are right in the end."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import headwater as hw
from headwater.sink.loop.loop import Loop
from headwater.sink.store import SinkFeed
from headwater.sink.stores.tantivy import search
from headwater.view.tables.delivery import Delivery
from headwater.view.tables.reader import ViewTable
from sink.running import Running
from support.servers import wait_until
from support.smalldisk import small_disk

COLUMNS = {"id": "STRING", "n": "BIGINT", "text": "STRING"}
DISK_BYTES = 6 << 20
KEYS = 1_000


def in_sqlite(folder: Path, topic: str) -> dict:
    connection = sqlite3.connect(folder / "rows.db")
    try:
        return dict(connection.execute(f'SELECT id, n FROM "{topic}"').fetchall())
    finally:
        connection.close()


def in_parquet(folder: Path, topic: str) -> dict:
    changes = [row for path in (folder / topic).glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    places = {(row["_partition"], row["_offset"]) for row in changes}
    assert len(places) == len(changes), "a change is there twice"
    return {row["id"]: row["n"] for row in sorted(changes, key=lambda row: row["_offset"])}


def in_delta(folder: Path, topic: str) -> dict:
    rows = DeltaTable(folder / topic).to_pyarrow_table().to_pylist()
    return {row["id"]: row["n"] for row in rows}


def in_tantivy(folder: Path, topic: str) -> dict:
    return {row["id"]: row["n"] for row in search(folder / topic, "*", 10 * KEYS)}


STORES: dict[str, tuple[Callable[[Path], object], Callable[[Path, str], dict]]] = {
    "sqlite": (lambda folder: hw.sink.Sqlite(folder / "rows.db"), in_sqlite),
    "parquet": (hw.sink.Parquet, in_parquet),
    "delta": (lambda folder: hw.sink.Delta(str(folder)), in_delta),
    "tantivy": (hw.sink.Tantivy, in_tantivy),
}


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


def put(log, topic, keys, n):
    log.put(
        topic, {f"k{key}": {"id": f"k{key}", "n": n + key, "text": f"{key} " * 40} for key in range(keys)}
    )


@pytest.mark.parametrize("kind", STORES)
def test_a_store_without_room_is_waited_for_and_has_every_row_in_the_end(log, disk, kind, caplog):
    target, rows = STORES[kind]
    folder, topic = disk.folder / "store", log.create(partitions=2)
    folder.mkdir()
    feed = SinkFeed(f"{topic}.out", topic, ("id",), COLUMNS)
    caplog.set_level("INFO", "headwater.sink")
    running = Running(Loop(log.log, feed.sink, topic, target(folder), lambda: feed))
    put(log, topic, 10, 0)
    wait_until(lambda: running.loop.counters.applied == 10, 30, "the first rows")

    disk.fill()
    put(log, topic, KEYS, 10_000)
    wait_until(lambda: running.error or running.loop._patience.waits >= 3, 30, "that there is no room")
    assert running.error is None
    disk.empty()
    wait_until(lambda: running.error or running.loop.counters.applied >= KEYS + 10, 30, "the other rows")
    running.stop()

    assert running.error is None
    assert rows(folder, topic) == {f"k{key}": 10_000 + key for key in range(KEYS)}
    said = [r.getMessage() for r in caplog.records if r.name.endswith("patience")]
    assert len(said) == 2, said
    assert any(words in said[0] for words in ("No space left", "disk is full"))


def test_the_table_of_a_view_without_room_is_waited_for(log, disk, caplog):
    view = log.create(partitions=2)
    caplog.set_level("INFO", "headwater.sink")
    failures: list[Exception] = []
    delivery = Delivery(log.log, [view], disk.folder / "views", lambda *_: None, on_failure=failures.append)
    delivery.start()
    try:
        put(log, view, 10, 0)
        path = disk.folder / "views" / f"{view}.db"
        wait_until(lambda: path.exists() and len(ViewTable(path).rows().rows) == 10, 30, "the first rows")
        disk.fill()
        put(log, view, KEYS, 10_000)
        wait_until(lambda: failures or "has no room" in caplog.text, 30, "that there is no room")
        assert failures == []
        disk.empty()
        wait_until(lambda: len(ViewTable(path).rows().rows) == KEYS, 30, "the other rows")
    finally:
        delivery.stop()

    assert {row.key for row in ViewTable(path).rows().rows} == {f"k{key}" for key in range(KEYS)}
    said = [r.getMessage() for r in caplog.records if r.name.endswith("patience")]
    assert len(said) == 2, said
