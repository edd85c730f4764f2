"""Which row a change of PostgreSQL is about: replica identities that say nothing, partitions, and columns of other types."""

import json
import uuid

import msgspec
import psycopg
import pytest

from headwater.capture.loop.feed import Feed
from headwater.capture.postgres.slot import slot_name
from headwater.capture.postgres.source import PostgresSource
from headwater.capture.state import schemas
from headwater.client.client import Client
from support.captured import by_key, events, execute, notices, running, streaming
from support.servers import wait_until


@pytest.fixture
def name() -> str:
    return f"id{uuid.uuid4().hex[:8]}"


KEYED = ["CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY NOTHING"]


@pytest.mark.parametrize("made", [KEYED, ["CREATE TABLE t (id int)"]], ids=["nothing", "no key"])
def test_a_table_that_can_no_longer_be_updated_is_reported(name, url, broker, caplog, made):
    log, topic = broker.bootstrap, f"{name}.public.t"
    execute(url, *made)

    def said() -> list[tuple[dict | None, str, dict | None]]:
        found = [event for event in events(log, name) if event.topic == topic]
        return [(event.key, event.value["op"], event.value["after"]) for event in found]

    with running(Feed(name, PostgresSource(name, url, ("t",)), log)):
        streaming(url, slot_name(name))
        execute(url, "INSERT INTO t VALUES (1)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="replica identity"):
            execute(url, "UPDATE t SET id = 2")
        execute(url, "ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET id = 1")
        wait_until(lambda: len(said()) == 2)
    key = {"id": 1} if made is KEYED else None
    assert said() == [(key, "c", {"id": 1}), (key, "u", {"id": 1})]
    [notice] = [each for each in notices(log, name) if each["what"] == "no identity"]
    assert notice["table"] == "public.t"
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in notice["text"]
    assert "refuses to update and delete its rows" in caplog.text
    with running(Feed(name, PostgresSource(name, url, ("t",)), log)):
        streaming(url, slot_name(name))
    assert [each["what"] for each in notices(log, name)].count("no identity") == 1, "once, not at every start"


def test_changes_of_partitions_come_under_the_root_also_from_one_to_another(name, url, broker):
    execute(
        url,
        "CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t VALUES (1, 0), (2, 0), (11, 0)",
    )
    with running(Feed(name, PostgresSource(name, url, ("t",), root=True), broker.bootstrap)):
        streaming(url, slot_name(name))
        execute(
            url,
            "UPDATE t SET n = 1 WHERE id = 1",
            "UPDATE low SET n = 2 WHERE id = 1",
            "UPDATE t SET id = 12 WHERE id = 2",
            "DELETE FROM t WHERE id = 11",
            "CREATE TABLE more PARTITION OF t FOR VALUES FROM (20) TO (30)",
            "INSERT INTO t VALUES (21, 0)",
            "UPDATE t SET n = 3 WHERE id = 21",
        )

        def rows() -> list[tuple[int, int]]:
            found = by_key(events(broker.bootstrap, name), f"{name}.public.t")
            return sorted((row["id"], row["n"]) for row in found.values())

        wait_until(lambda: rows() == [(1, 2), (12, 0), (21, 3)])
    assert {event.topic for event in events(broker.bootstrap, name)} == {f"{name}.public.t"}


class Older(msgspec.Struct):
    """A row as a program knows it that was written before the table changed."""

    id: int
    n: int
    note: str | None = None


def test_a_retyped_column_is_a_version_and_a_reader_with_the_older_schema_continues(name, url, broker):
    log, topic = broker.bootstrap, f"{name}.public.t"
    execute(
        url, "CREATE TABLE t (id int PRIMARY KEY, n int, note varchar(9))", "INSERT INTO t VALUES (1, 1, 'a')"
    )
    with running(Feed(name, PostgresSource(name, url, ("t",)), log)):
        streaming(url, slot_name(name))
        execute(
            url,
            "ALTER TABLE t ALTER n TYPE bigint, ALTER note TYPE text, ADD more jsonb",
            "INSERT INTO t VALUES (2, 5000000000, 'longer than before', '{}')",
            "ALTER TABLE t DROP note",
            "INSERT INTO t VALUES (3, 3)",
        )
        wait_until(lambda: len(by_key(events(log, name), topic)) == 3)
    client = Client(log)
    versions = [json.loads(each) for each in schemas(client, name)]
    client.close()
    types = [[(column["name"], column["type"]) for column in each["columns"]] for each in versions]
    assert types == [
        [("id", 23), ("n", 23), ("note", 1043)],
        [("id", 23), ("n", 20), ("note", 25), ("more", 3802)],
        [("id", 23), ("n", 20), ("more", 3802)],
    ]
    read = [msgspec.convert(row, Older) for row in by_key(events(log, name), topic).values()]
    assert read == [Older(1, 1, "a"), Older(2, 5_000_000_000, "longer than before"), Older(3, 3)]
