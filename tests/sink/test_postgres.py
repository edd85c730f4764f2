"""PostgreSQL as the store of a sink."""

import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pytest
from psycopg.types.json import Jsonb

from headwater.change import Change
from headwater.client.client import Client
from headwater.errors import UnavailableError, UsageError
from headwater.sink import Postgres
from headwater.sink.loop.loop import Loop
from headwater.sink.store import Poison, SinkFeed
from headwater.sink.stores import postgres as module
from sink.contract import batch, change, feed
from sink.running import Running
from sink.sqlcontract import SqlContract, row
from support.servers import free_port, wait_until


class PostgresPlace:
    """A schema of its own in the one server."""

    def __init__(self, url: str, **options) -> None:
        self.url = url
        self.schema = f"s{uuid.uuid4().hex[:8]}"
        self.target = Postgres(url, schema=self.schema, **options)
        self.history = Postgres(url, schema=self.schema, history=True)

    def query(self, text: str) -> list:
        with psycopg.connect(self.url, options=f"-c search_path={self.schema} -c TimeZone=UTC") as connection:
            return connection.execute(text).fetchall()

    def save(self) -> dict:
        return {name: self.query(f"SELECT * FROM {name}") for name in ("orders", "headwater_position")}

    def restore(self, saved: dict) -> None:
        with psycopg.connect(self.url, options=f"-c search_path={self.schema}") as connection:
            for name, rows in saved.items():
                connection.execute(f"TRUNCATE {name}")
                for row in rows:
                    values = [Jsonb(value) if isinstance(value, list) else value for value in row]
                    connection.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", values)

    def write_format(self, of: SinkFeed, number: int | None) -> None:  # noqa: ARG002  all sinks share it
        with psycopg.connect(self.url, options=f"-c search_path={self.schema}") as connection:
            if number is None:
                connection.execute("DROP TABLE headwater_format")
            else:
                connection.execute("UPDATE headwater_format SET format = %s", (number,))

    def rows(self, of: SinkFeed) -> dict:
        found = self.query(f'SELECT id, total FROM "{of.topic}"')
        return {key: {"id": key, "total": total} for key, total in found}


@pytest.fixture
def place(postgres):
    return PostgresPlace(postgres.url)


def test_what_postgresql_says_of_a_record_is_in_its_letter_and_not_in_the_log(place, log, caplog):
    topic = log.create(partitions=1)
    of = SinkFeed(f"{topic}.store", topic, ("id",), {"id": "STRING", "born": "DATE"})
    log.put(topic, {"bob": {"id": "bob", "born": "his birthday"}})
    running = Running(Loop(log.log, of.sink, topic, place.target, lambda: of))
    wait_until(lambda: running.loop.counters.dead == 1, 30, "the letter")
    running.stop()

    (letter,) = Client(log.log).read([f"{topic}.dead"])
    assert b"his birthday" in dict(letter.headers())["reason"]
    assert f"goes to {topic}.dead: PostgreSQL (" in caplog.text
    assert "his birthday" not in caplog.text


class TestPostgres(SqlContract):
    """The contracts, in a schema of its own for each test."""

    @pytest.fixture
    def hurried(self, monkeypatch):
        session = module.SESSION.replace(f"lock_timeout={module.LOCK_S}s", "lock_timeout=200ms")
        monkeypatch.setattr(module, "SESSION", session)


def test_every_kind_of_value_is_kept(place):
    kinds = {
        "i": "BIGINT",
        "d": "DOUBLE",
        "s": "STRING",
        "b": "BOOLEAN",
        "t": "TIMESTAMP",
        "y": "DATE",
        "n": "DECIMAL(38,9)",
        "x": "BINARY",
        "j": "STRUCT<`a`: INT>",
        "A b": "ARRAY<STRING>",
    }
    of = SinkFeed("s", "t", ("i",), kinds)
    value = {
        "i": 2**62, "d": 1.5, "s": "a\tb\n\\n 'é", "b": True,
        "t": "2026-01-31T10:00:00.000001Z", "y": "2026-01-31",
        "n": "12345678901234567890.123456789", "x": "AAH/", "j": {"a": [1, "x"]}, "A b": ['q"', "\\"],
        "_revision": 7,
    }  # fmt: skip
    store = place.target.open(of)
    store.claim([0])
    store.apply(
        batch(row(value, 0, str(2**62)), row({"i": 1}, 1, "1"), row({"i": 2, "d": "-Infinity"}, 2, "2"))
    )
    store.close()

    found = place.query("SELECT * FROM t ORDER BY i")
    assert found[0] == (1, *[None] * 9)
    assert found[1][1] == float("-inf")
    assert found[2] == (
        2**62, 1.5, value["s"], True, datetime(2026, 1, 31, 10, 0, 0, 1, UTC), date(2026, 1, 31),
        Decimal(value["n"]), b"\x00\x01\xff", value["j"], value["A b"],
    )  # fmt: skip


@pytest.mark.parametrize("many", [3, 2500])
def test_text_is_kept_whatever_is_in_it(place, many):
    texts = [
        "",
        "null",
        "\\N",
        "\\.",
        'a "b", c',
        "],\n[",
        "a\n\\.\nb",
        "\\",
        "\\\\n",
        "\b\f\r\t\x01\x1f\x7f",
        "é \u2028 \U0001f600",
        "{}",
    ]
    of = SinkFeed("s", "t", ("i",), {"i": "BIGINT", "s": "STRING", "j": "ARRAY<STRING>"})
    store = place.target.open(of)
    store.claim([0])
    wanted = [
        (n, texts[n % len(texts)], [texts[n % len(texts)], None]) for n in range(many * len(texts) // 3)
    ]
    spaced = [
        Change(str(n), json.dumps({"i": n, "s": s, "j": j}, indent="\t"), 0, n, 0) for n, s, j in wanted
    ]

    store.apply(batch(*spaced))

    assert place.query("SELECT i, s, j FROM t ORDER BY i") == wanted
    store.close()


def test_values_of_another_type_are_cast_as_postgresql_does_it_beside_rows_that_fit(place):
    """A number as text, a decimal as a number, an object in a text column: PostgreSQL casts what it can."""
    kinds = {"100% i": "BIGINT", "d": "DOUBLE", "s": "STRING", "n": "DECIMAL(10,2)", "b": "BOOLEAN"}
    of = SinkFeed("s", "t", ("100% i",), kinds)
    store = place.target.open(of)
    store.claim([0])
    odd = [
        {"100% i": "7"},
        {"100% i": 2, "d": "NaN"},
        {"100% i": 3, "s": {"a": 1}},
        {"100% i": 4, "n": 1.005, "b": "yes"},
    ]
    many = [{"100% i": n, "s": "x"} for n in range(10, 20)]

    store.apply(batch(*(row(each, n, str(each["100% i"])) for n, each in enumerate(odd + many))))
    store.apply(batch(Change("7", None, 0, 50, 0), Change("11", None, 0, 51, 0)))

    found = place.query('SELECT "100% i", d::text, s, n::text, b FROM t ORDER BY 1')
    assert found[:3] == [
        (2, "NaN", None, None, None),
        (3, None, '{"a": 1}', None, None),
        (4, None, None, "1.01", True),
    ]
    assert [each[0] for each in found[3:]] == [10, *range(12, 20)]
    store.close()


def test_rows_with_another_type_in_append_feeds_and_in_histories_keep_their_place(postgres):
    kinds = {"id": "STRING", "n": "BIGINT"}
    append = PostgresPlace(postgres.url)
    store = append.target.open(SinkFeed("s", "t", ("id",), kinds, append=True))
    store.claim([0])
    store.apply(batch(row({"id": "a", "n": "1"}, 4), row({"id": "a", "n": 2}, 5)))
    store.close()
    assert append.query("SELECT * FROM t ORDER BY _offset") == [(0, 4, "a", 1), (0, 5, "a", 2)]

    history = PostgresPlace(postgres.url, history=True)
    store = history.target.open(SinkFeed("s", "t", ("id",), kinds))
    store.claim([0])
    store.apply(batch(row({"id": "a", "n": "1"}, 4, "a"), row({"id": "a", "n": 2}, 5, "a")))
    store.close()
    found = history.query("SELECT n, valid_from < valid_to, valid_to IS NULL FROM t ORDER BY n")
    assert found == [(1, True, False), (2, None, True)]


@pytest.mark.parametrize("bad", [{"i": "x"}, {"i": 2**63}, {"i": 1.5}, {"i": 9, "s": "\u0000"}])
def test_the_one_record_of_many_that_does_not_fit_is_found(place, bad):
    of = SinkFeed("s", "t", ("i",), {"i": "BIGINT", "s": "STRING"})
    store = place.target.open(of)
    store.claim([0])
    many = [row({"i": n, "s": "a"}, n, str(n)) for n in range(100)]
    many[37] = row(bad, 37, "9999")

    with pytest.raises(Poison) as found:
        store.apply(batch(*many))

    assert (found.value.partition, found.value.offset) == (0, 37)
    assert place.query("SELECT * FROM t") == []
    assert dict(store.claim([0])) == {}
    store.apply(batch(*(c for c in many if c.offset != 37)))
    assert place.query("SELECT count(*) FROM t") == [(99,)]
    store.close()


def test_a_server_that_is_away_and_one_that_refuses_are_distinguished(postgres, place):
    with pytest.raises(UnavailableError):
        Postgres(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres").open(feed())
    with pytest.raises(UsageError, match="no_such"):
        Postgres(postgres.url.removesuffix("postgres") + "no_such").open(feed())


def test_a_lost_connection_is_made_again_by_the_next_claim(place):
    store = place.target.open(feed())
    store.claim([0])
    place.query(f"SELECT pg_terminate_backend({store._connection.info.backend_pid})")

    with pytest.raises(UnavailableError):
        store.apply(batch(change("a", 1, 0)))
    store.claim([0])
    store.apply(batch(change("a", 1, 0)))

    assert place.rows(feed())["a"]["total"] == 1
    store.close()
