"""A table whose records would get other keys stops alone: the rows under the old ones would stay for ever."""

import uuid

import pytest

from headwater.capture import MariaDB, Postgres
from headwater.capture.loop.control import send
from headwater.capture.loop.feed import Feed
from headwater.capture.messages import Command
from support.captured import by_key, database, drop_slots, events, execute, notices, running
from support.capturedb import Shop
from support.servers import wait_until

POSTGRES = {
    "renamed": ("ALTER TABLE t RENAME id TO no", "(id integer) and is (no integer)"),
    "retyped": ("ALTER TABLE t ALTER id TYPE text", "(id integer) and is (id text)"),
    "another": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (other)",
        "(id integer) and is (other integer)",
    ),
    "more": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id, other)",
        "(id integer) and is (id integer, other integer)",
    ),
    "identity": (
        "CREATE UNIQUE INDEX i ON t (other); ALTER TABLE t REPLICA IDENTITY USING INDEX i",
        "(id integer) and is (other integer)",
    ),
}
MARIADB = {
    "renamed": ("ALTER TABLE t RENAME COLUMN id TO no", "(id int) and is (no int)"),
    "retyped": ("ALTER TABLE t MODIFY id varchar(9)", "(id int) and is (id varchar(36))"),
    "another": ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (other)", "(id int) and is (other int)"),
    "more": (
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, other)",
        "(id int) and is (id int, other int)",
    ),
}
CASES = [("postgres", each) for each in POSTGRES] + [("mariadb", each) for each in MARIADB]
TABLE = "(id int NOT NULL PRIMARY KEY, other int NOT NULL)"


class Lab:
    """Tables t and u of a database, captured."""

    def __init__(self, kind: str, server, log: str) -> None:
        self.name, self.log = f"key{uuid.uuid4().hex[:8]}", log
        if kind == "postgres":
            self.url = database(server.url)
            self.run = lambda *statements: execute(self.url, *statements)
            self._database, self.schema = Postgres(self.url, ["t", "u"]), "public"
        else:
            self.shop = Shop(server, self.name)
            self.run = self.shop.run
            self._database, self.schema = MariaDB(server.url, [f"{self.name}.t", f"{self.name}.u"]), self.name
        self.run(
            f"CREATE TABLE t {TABLE}", f"CREATE TABLE u {TABLE}", "INSERT INTO t VALUES (1, 10), (2, 20)"
        )

    def feed(self) -> Feed:
        return Feed(self.name, self._database.open(self.name, None), self.log)

    def rows(self, table: str) -> dict:
        return by_key(events(self.log, self.name), f"{self.name}.{self.schema}.{table}")

    def stopped(self) -> list[tuple[str, str]]:
        return [
            (each["table"], each["text"])
            for each in notices(self.log, self.name)
            if each["what"] == "table stopped"
        ]


@pytest.fixture
def lab(request, broker):
    kind = request.param
    made = Lab(kind, request.getfixturevalue(kind), broker.bootstrap)
    yield made
    if kind == "postgres":
        drop_slots(made.url)


@pytest.mark.parametrize(("lab", "case"), CASES, indirect=["lab"], ids=["-".join(each) for each in CASES])
def test_a_table_whose_key_is_another_stops_alone_until_it_is_captured_again(lab, case):
    statement, expected = (POSTGRES if lab.schema == "public" else MARIADB)[case]
    with running(lab.feed()):
        wait_until(lambda: len(lab.rows("t")) == 2)
        lab.run(
            "INSERT INTO u VALUES (1, 1)",
            statement,
            "INSERT INTO t VALUES (3, 30)",
            "INSERT INTO u VALUES (2, 2)",
        )
        wait_until(lambda: len(lab.rows("u")) == 2, what="the other table continues")
        wait_until(lab.stopped)
    [(table, text)] = lab.stopped()
    assert table == f"{lab.schema}.t"
    assert expected in text
    assert f"--table {table}` takes a new snapshot of it" in text
    assert lab.schema == "public" or statement in text
    assert list(lab.rows("t")) == ['{"id": 1}', '{"id": 2}']
    with running(lab.feed()):
        send(lab.log, lab.name, Command("snapshot", table=table, incremental=False))
        wait_until(lambda: len(lab.rows("t")) == 3, what="its rows under their new keys")
        lab.run("INSERT INTO t VALUES (4, 40)", "DELETE FROM t WHERE other = 10")
        wait_until(lambda: sorted(row["other"] for row in lab.rows("t").values()) == [20, 30, 40])
    assert len(lab.stopped()) == 1


@pytest.mark.parametrize("lab", ["postgres", "mariadb"], indirect=True)
def test_a_table_continues_under_a_key_whose_values_are_written_alike(lab):
    wider = (
        "ALTER TABLE t ALTER id TYPE bigint"
        if lab.schema == "public"
        else "ALTER TABLE t MODIFY id bigint unsigned"
    )
    with running(lab.feed()):
        wait_until(lambda: len(lab.rows("t")) == 2)
        lab.run(wider, "INSERT INTO t VALUES (3, 30)", "DELETE FROM t WHERE id = 1")
        wait_until(lambda: list(lab.rows("t")) == ['{"id": 2}', '{"id": 3}'])
    assert lab.stopped() == []


@pytest.mark.parametrize("lab", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE t", "CREATE TABLE t (no int PRIMARY KEY)"],
        ["CREATE OR REPLACE TABLE t (no int PRIMARY KEY)"],
        [
            "DROP DATABASE {name}",
            "CREATE DATABASE {name}",
            "USE {name}",
            f"CREATE TABLE u {TABLE}",
            "CREATE TABLE t (no int PRIMARY KEY)",
        ],
    ],
    ids=["dropped", "replaced", "with its database"],
)
def test_a_table_of_mariadb_that_is_made_again_leaves_no_old_rows(lab, statements):
    with running(lab.feed()):
        wait_until(lambda: len(lab.rows("t")) == 2)
        lab.run(*(each.format(name=lab.name) for each in statements), "INSERT INTO t VALUES (2), (3)")
        wait_until(lambda: list(lab.rows("t")) == ['{"no": 2}', '{"no": 3}'])
    lab.run("CREATE OR REPLACE TABLE t (no int PRIMARY KEY)", "INSERT INTO t VALUES (4)")
    with running(lab.feed()):
        wait_until(lambda: list(lab.rows("t")) == ['{"no": 4}'])
    assert lab.stopped() == []


@pytest.mark.parametrize("lab", ["mariadb"], indirect=True)
def test_a_table_of_mariadb_that_loses_a_partition_stops_alone_until_it_is_captured_again(lab):
    lab.run(
        "ALTER TABLE t PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2), PARTITION q VALUES LESS THAN MAXVALUE)"
    )
    with running(lab.feed()):
        wait_until(lambda: len(lab.rows("t")) == 2)
        lab.run(
            "ALTER TABLE t DROP PARTITION p", "INSERT INTO t VALUES (3, 30)", "INSERT INTO u VALUES (1, 1)"
        )
        wait_until(lambda: lab.rows("u"))
        wait_until(lab.stopped)
        [(table, text)] = lab.stopped()
        assert "ALTER TABLE t DROP PARTITION p" in text
        assert f"--table {table}` takes a new snapshot of it" in text
        send(lab.log, lab.name, Command("snapshot", table=table, incremental=False))
        wait_until(lambda: list(lab.rows("t")) == ['{"id": 2}', '{"id": 3}'])
