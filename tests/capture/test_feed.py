"""Every database by the one loop: its rows and changes come into the log once, also over a restart."""

import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captured import database as new_database
from captured import events, execute, running
from capturedb import Shop
from headwater.capture import MariaDB, Polling, Postgres, Sqlite
from headwater.capture.declared import Database
from headwater.capture.feed import Feed, restart
from servers import both_logs, wait_until

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
    """The rows of a reader who passes over truncates, as views and sinks do."""
    rows: dict[int, int] = {}
    for event in events(log, topic.partition(".")[0]):
        if event.topic == topic and event.key is not None:
            after = None if event.value is None else event.value["after"]
            if after is None:
                rows.pop(event.key["id"], None)
            else:
                rows[after["id"]] = after["price"]
    return rows


def test_rows_that_a_new_snapshot_does_not_have_are_deleted_one_by_one(captured, broker, tmp_path):
    database, of, run = captured
    if database.kind == "polling":
        pytest.skip("polling does not see deletes")
    name, log = f"c{uuid.uuid4().hex[:8]}", broker.bootstrap
    run("CREATE TABLE item (id INTEGER PRIMARY KEY, price INTEGER)")
    run("INSERT INTO item VALUES (1, 10), (2, 20), (3, 30)")
    with running(Feed(name, database.open(name, tmp_path), log)):
        wait_until(lambda: len(known_by_key(log, f"{name}.{of}")) == 3)
    restart(log, name, database.anew())
    database.remove(name)
    run("DELETE FROM item WHERE id = 1")
    run("UPDATE item SET price = 21 WHERE id = 2")
    with running(Feed(name, database.open(name, tmp_path), log)):
        wait_until(lambda: known_by_key(log, f"{name}.{of}") == {2: 21, 3: 30})
    assert [event.key for event in events(log, name) if event.value and event.value["op"] == "d"] == [
        {"id": 1}
    ]
