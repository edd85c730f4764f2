"""Every database by the one loop: its rows and changes come into the log once, also over a restart."""

import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.capture import MariaDB, Polling, Postgres, Sqlite, state
from headwater.capture.database import Database
from headwater.capture.loop.feed import Feed
from headwater.capture.loop.lifecycle import restart
from headwater.errors import MachineError
from support.captured import by_key, committed, events, execute, running
from support.captured import database as new_database
from support.capturedb import Shop
from support.servers import both_logs, wait_until

Run = Callable[[str], Any]


def of_mariadb(server, folder: Path) -> tuple[Database, str, Run]:
    del folder
    shop = Shop(server, f"feed_{uuid.uuid4().hex[:8]}")
    return MariaDB(server.url, [f"{shop.name}.item"]), f"{shop.name}.item", shop.run


def of_postgres(server, folder: Path) -> tuple[Database, str, Run]:
    del folder
    url = new_database(server.url)
    return Postgres(url, ["item"]), "public.item", lambda statement: execute(url, statement)


def of_sqlite(server, folder: Path) -> tuple[Database, str, Run]:
    del server
    connection = sqlite3.connect(folder / "shop.db", isolation_level=None)
    return Sqlite(folder / "shop.db", ["item"]), "item", connection.execute


def of_polling(server, folder: Path) -> tuple[Database, str, Run]:
    del server
    connection = sqlite3.connect(folder / "shop.db", isolation_level=None)
    return (
        Polling(f"sqlite:{folder / 'shop.db'}", "item", "version", every_s=0.05),
        "item",
        connection.execute,
    )


@pytest.fixture(
    params=[of_postgres, of_mariadb, of_sqlite, of_polling], ids=["postgres", "mariadb", "sqlite", "polling"]
)
def captured(request, tmp_path) -> tuple[Database, str, Run]:
    servers = {of_postgres: "postgres", of_mariadb: "mariadb"}
    server = request.getfixturevalue(servers[request.param]) if request.param in servers else None
    return request.param(server, tmp_path)


def prices(log: str, name: str, of: str) -> dict[int, int]:
    """By the last event of each key: polling cannot tell a new row from one that has changed."""
    found = [event.value["after"] for event in events(log, name) if event.topic == f"{name}.{of}"]
    return {row["id"]: row["price"] for row in found}


@both_logs
def test_rows_and_changes_come_once_also_over_a_restart(captured, bootstrap: str, tmp_path: Path):
    database, of, run = captured
    name, log = f"c{uuid.uuid4().hex[:8]}", bootstrap
    database.check(name)
    run("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER, version INTEGER)")
    run("INSERT INTO item VALUES (1, 10, 1), (2, 20, 2)")

    def shows(expected: dict[int, int]) -> None:
        wait_until(lambda: prices(log, name, of) == expected, what=f"{expected} in {name}")

    with running(Feed(name, database.open(name, tmp_path), log)):
        shows({1: 10, 2: 20})
        run("UPDATE item SET price = 11, version = 3 WHERE id = 1")
        run("INSERT INTO item VALUES (3, 30, 4)")
        shows({1: 11, 2: 20, 3: 30})
    run("UPDATE item SET price = 31, version = 5 WHERE id = 3")
    with running(Feed(name, database.open(name, tmp_path), log)):
        shows({1: 11, 2: 20, 3: 31})
        run("INSERT INTO item VALUES (4, 40, 6)")
        shows({1: 11, 2: 20, 3: 31, 4: 40})
    said = [(event.value["after"]["id"], event.value["after"]["price"]) for event in events(log, name)]
    assert sorted(said) == [(1, 10), (1, 11), (2, 20), (3, 30), (3, 31), (4, 40)]
    database.remove(name)


def known_by_key(log: str, topic: str) -> dict[int, int]:
    """The prices that a reader who passes over truncates ends with."""
    rows = by_key(events(log, topic.partition(".")[0]), topic)
    return {row["id"]: row["price"] for row in rows.values()}


def test_rows_that_a_new_snapshot_does_not_have_are_deleted_one_by_one(captured, broker, tmp_path):
    database, of, run = captured
    if database.kind == "polling":
        pytest.skip("polling does not see deletes")
    name, log = f"c{uuid.uuid4().hex[:8]}", broker.bootstrap
    run("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)")
    run("INSERT INTO item VALUES (1, 10), (2, 20), (3, 30)")
    with running(Feed(name, database.open(name, tmp_path), log)):
        wait_until(lambda: len(known_by_key(log, f"{name}.{of}")) == 3)
    restart(log, name, database.restart_position())
    database.remove(name)
    run("DELETE FROM item WHERE id = 1")
    run("UPDATE item SET price = 21 WHERE id = 2")
    with running(Feed(name, database.open(name, tmp_path), log)):
        wait_until(lambda: known_by_key(log, f"{name}.{of}") == {2: 21, 3: 30})
    assert [event.key for event in events(log, name) if event.value and event.value["op"] == "d"] == [
        {"id": 1}
    ]


EMPTYING = {
    "postgres": [
        "BEGIN; INSERT INTO item VALUES (4, 40); TRUNCATE item; INSERT INTO item VALUES (2, 22); COMMIT"
    ],
    "mariadb": ["INSERT INTO item VALUES (4, 40)", "TRUNCATE item", "INSERT INTO item VALUES (2, 22)"],
    "sqlite": [
        "INSERT INTO item VALUES (4, 40)",
        "DROP TABLE item",
        "CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)",
        "INSERT INTO item VALUES (2, 22)",
    ],
}


@both_logs
def test_rows_of_a_table_that_is_emptied_are_deleted_one_by_one(captured, bootstrap, tmp_path):
    database, of, run = captured
    if database.kind == "polling":
        pytest.skip("polling does not see deletes")
    name, log = f"c{uuid.uuid4().hex[:8]}", bootstrap
    run("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)")
    run("INSERT INTO item VALUES (1, 10), (2, 20), (3, 30)")
    with running(Feed(name, database.open(name, tmp_path), log, partitions=3)):
        wait_until(lambda: len(known_by_key(log, f"{name}.{of}")) == 3)
        for statement in EMPTYING[database.kind]:
            run(statement)
        wait_until(lambda: known_by_key(log, f"{name}.{of}") == {2: 22})
    for statement in EMPTYING[database.kind]:
        run(statement)
    run("INSERT INTO item VALUES (5, 50)")
    with running(Feed(name, database.open(name, tmp_path), log, partitions=3)):
        wait_until(lambda: known_by_key(log, f"{name}.{of}") == {2: 22, 5: 50})
    said = [event for event in events(log, name) if event.value is not None]
    gone = sorted(event.key["id"] for event in said if event.value["op"] == "d")
    assert gone.count(1) == gone.count(3) == 1, "what is gone already is not deleted again"
    database.remove(name)


@both_logs
def test_a_table_is_truncated_and_begins_again_where_its_topic_is_compacted(captured, bootstrap, tmp_path):
    """Such a topic takes no record without a key, and a truncate has none."""
    database, of, run = captured
    if database.kind == "polling":
        pytest.skip("polling does not see deletes")
    name, log = f"c{uuid.uuid4().hex[:8]}", bootstrap

    def feed() -> Feed:
        return Feed(name, database.open(name, tmp_path), log, config={"cleanup.policy": "compact"})

    run("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)")
    run("INSERT INTO item VALUES (1, 10), (2, 20), (3, 30)")
    with running(feed()):
        wait_until(lambda: len(known_by_key(log, f"{name}.{of}")) == 3)
        for statement in EMPTYING[database.kind]:
            run(statement)
        wait_until(lambda: known_by_key(log, f"{name}.{of}") == {2: 22})
    restart(log, name, database.restart_position())
    database.remove(name)
    run("DELETE FROM item WHERE id = 2")
    run("INSERT INTO item VALUES (6, 60)")
    with running(feed()):
        wait_until(lambda: known_by_key(log, f"{name}.{of}") == {6: 60})
    database.remove(name)


def test_a_state_that_cannot_be_read_is_the_fault_of_the_machine(monkeypatch):
    """The loop waits for a log that is away; another error would end it."""
    monkeypatch.setattr(state, "READ_S", 0.5)
    with pytest.raises(MachineError):
        state.last_state("127.0.0.1:9", "shop")


def test_rows_of_a_large_transaction_that_a_truncate_takes_back_are_deleted(postgres, broker, tmp_path):
    """They are in the log already, and not committed: only the capture itself can know of them."""
    database, of, run = of_postgres(postgres, tmp_path)
    name, log = f"c{uuid.uuid4().hex[:8]}", broker.bootstrap
    run("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)")
    with running(Feed(name, database.open(name, tmp_path), log)):
        wait_until(lambda: committed(log, name))
        run(
            "BEGIN; INSERT INTO item SELECT i, 0 FROM generate_series(1, 30000) i; TRUNCATE item;"
            " INSERT INTO item VALUES (7, 70); TRUNCATE item; INSERT INTO item VALUES (8, 80); COMMIT"
        )
        wait_until(lambda: known_by_key(log, f"{name}.{of}") == {8: 80})
    database.remove(name)
