"""A MariaDB source: transactions whole and in order, through schema changes, restarts and crashes; what cannot be right is refused."""

import json
import random
import threading
import tracemalloc

import pytest

from headwater.capture.mariadb import lag
from headwater.capture.mariadb.source import MariaDBSource
from headwater.errors import CaptureError, UnavailableError, UsageError
from support.capturedb import Shop, applied, changes, gtid, reading, records, until
from support.databases import MariaDBProcess


@pytest.fixture
def shop(mariadb, request):
    shop = Shop(mariadb, "shop_" + request.node.originalname.removeprefix("test_")[:40])
    yield shop
    shop.connection.close()


def test_changes_come_in_debeziums_envelope(shop):
    shop.run("CREATE TABLE t(b int, a int, x text, PRIMARY KEY (b, a))")
    start = shop.position()
    shop.run("INSERT INTO t VALUES (2, 1, 'x')", "UPDATE t SET x = 'y'", "DELETE FROM t")
    parts = shop.read(start)

    old, new = {"b": 2, "a": 1, "x": "x"}, {"b": 2, "a": 1, "x": "y"}
    assert changes(parts) == [
        ("c", None, old),
        ("u", old, new),
        ("d", new, None),
        ("x", {"b": 2, "a": 1}, None),
    ]
    first = records(parts)[0]
    value = json.loads(first.value)
    assert (first.topic, first.key) == (f"lab.{shop.name}.t", b'{"b":2,"a":1}')
    assert list(value) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert value["source"]["gtid"] == f"0-1-{int(start.split('-')[2]) + 1}"
    assert (value["source"]["connector"], value["source"]["db"], value["source"]["table"]) == (
        "mariadb",
        shop.name,
        "t",
    )
    assert value["source"]["ts_ms"] == first.committed_ms


def test_a_changed_key_is_a_delete_and_a_create(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 1)")
    start = shop.position()
    shop.run("UPDATE t SET id = 2")

    assert changes(shop.read(start)) == [
        ("d", {"id": 1, "a": 1}, None),
        ("x", {"id": 1}, None),
        ("c", None, {"id": 2, "a": 1}),
    ]


def test_what_is_rolled_back_is_not_seen(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY)", "CREATE TABLE plain(id int) ENGINE=Aria")
    start = shop.position()
    shop.run("BEGIN", "INSERT INTO t VALUES (1)", "SAVEPOINT s", "INSERT INTO t VALUES (2)", "ROLLBACK TO s")
    shop.run("INSERT INTO t VALUES (3)", "COMMIT", "BEGIN", "INSERT INTO t VALUES (4)", "ROLLBACK")
    # An engine without transactions keeps what was written, and makes the server log the rollbacks themselves.
    shop.run(
        "BEGIN",
        "INSERT INTO t VALUES (5)",
        "SAVEPOINT s",
        "INSERT INTO plain VALUES (6)",
        "INSERT INTO t VALUES (7)",
    )
    shop.run("ROLLBACK TO s", "INSERT INTO t VALUES (8)", "COMMIT")
    shop.run("BEGIN", "INSERT INTO t VALUES (9)", "INSERT INTO plain VALUES (10)", "ROLLBACK")
    found = changes(shop.read(start))

    assert sorted(after["id"] for _, _, after in found) == [1, 3, 5, 6, 8, 10]


def test_a_table_without_a_key_has_records_without_one(shop):
    shop.run("CREATE TABLE t(a int, b text)")
    start = shop.position()
    shop.run("INSERT INTO t VALUES (1, 'x')", "DELETE FROM t")

    assert [r.key for r in records(shop.read(start))] == [None, None, None]


def test_an_emptied_table_is_reported_as_empty(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    start = shop.position()
    shop.run("TRUNCATE TABLE t", f"TRUNCATE `{shop.name}`.`t` /* again */")

    assert [op for op, _, _ in changes(shop.read(start))] == ["t", "t"]


def test_only_the_tables_that_were_asked_for_come(shop):
    shop.run("CREATE TABLE a(id int)", "CREATE TABLE ab(id int)", "CREATE TABLE b(id int)")
    start = shop.position()
    shop.run("INSERT INTO a VALUES (1)", "INSERT INTO ab VALUES (2)", "INSERT INTO b VALUES (3)")

    assert [after["id"] for _, _, after in changes(shop.read(start, "a"))] == [1]
    assert [after["id"] for _, _, after in changes(shop.read(start, "a*"))] == [1, 2]
    assert gtid(shop.read(start, "none")[-1]) == shop.position()


def test_a_changed_table_continues_with_a_new_version_of_its_schema(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY, a int)")
    start = shop.position()
    shop.run(
        "INSERT INTO t VALUES (1, 1)",
        "ALTER TABLE t ADD b varchar(9) DEFAULT 'd'",
        "INSERT INTO t(id) VALUES (2)",
    )
    shop.run("ALTER TABLE t DROP a, RENAME COLUMN b TO c", "INSERT INTO t VALUES (3, 'z')")
    parts = shop.read(start)

    assert [after for _, _, after in changes(parts)] == [
        {"id": 1, "a": 1},
        {"id": 2, "a": None, "b": "d"},
        {"id": 3, "c": "z"},
    ]
    schemas = [json.loads(r.value) for r in records(parts, schema=True) if r.topic == "lab.schema"]
    assert [(s["version"], [c["name"] for c in s["columns"]]) for s in schemas] == [
        (1, ["id", "a"]),
        (2, ["id", "a", "b"]),
        (3, ["id", "c"]),
    ]
    assert schemas[1]["statement"] == "ALTER TABLE t ADD b varchar(9) DEFAULT 'd'"


def test_a_schema_version_that_was_published_is_not_published_again(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY)")
    start = shop.position()
    shop.run("INSERT INTO t VALUES (1)")
    (first,) = [r for r in records(shop.read(start), schema=True) if r.topic == "lab.schema"]
    source = shop.source()
    source.recall([first.value])
    with reading(source, start) as parts:
        found = records(until(parts, shop.position()), schema=True)

    assert [r.topic for r in found] == [f"lab.{shop.name}.t"]


def test_a_stream_continues_from_any_position(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY, a int)")
    start = shop.position()
    chance = random.Random(7)
    for _ in range(40):
        shop.run("BEGIN")
        for _ in range(chance.randrange(1, 6)):
            key = chance.randrange(20)
            shop.run(
                chance.choice(
                    (
                        f"INSERT IGNORE INTO t VALUES ({key}, {chance.randrange(99)})",
                        f"UPDATE t SET a = a + 1 WHERE id = {key}",
                        f"UPDATE IGNORE t SET id = {chance.randrange(20)} WHERE id = {key}",
                        f"DELETE FROM t WHERE id = {key}",
                    )
                )
            )
        shop.run(chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))
    end = shop.position()
    whole = [(r.key, r.value and json.loads(r.value)["after"]) for r in records(shop.read(start))]
    for _ in range(3):
        found, position = [], start
        while position != end:
            with reading(shop.source(), position) as parts:
                for part in parts:
                    keep = chance.random() < 0.8
                    if part.position and keep:
                        found += records([part])
                        position = gtid(part)
                    if position == end or (part.position and not keep):
                        break
        assert [(r.key, r.value and json.loads(r.value)["after"]) for r in found] == whole
    first = int(start.split("-")[2])
    for number in chance.sample(range(first, int(end.split("-")[2])), 3):
        rest = [
            (r.key, r.value and json.loads(r.value)["after"]) for r in records(shop.read(f"0-1-{number}"))
        ]
        assert rest == whole[len(whole) - len(rest) :]


def write_both(shop, seed, stop):
    """Changes two tables in each transaction: a reader must never see one without the other."""
    chance = random.Random(seed)
    with shop.server.connect(database=shop.name) as connection, connection.cursor() as cursor:
        while not stop.is_set():
            key, other = chance.randrange(1, 4000), 10_000 * seed + chance.randrange(500)
            for table in "tu":
                cursor.execute(f"UPDATE {table} SET a = a + 1 WHERE id = {key}")
                cursor.execute(f"INSERT INTO {table} VALUES ({other}, 0) ON DUPLICATE KEY UPDATE a = a + 1")
            cursor.execute(f"DELETE FROM t WHERE id = {chance.randrange(1, 4000)}")
            connection.commit()


def assert_each_change_follows_the_one_before(found):
    """No row is created that was there, and what a change says was before is what was there."""
    there = {}
    for topic, key, value, _ in found:
        if value is None or topic == "lab.schema":
            continue
        event = json.loads(value)
        if event["op"] in "ud":
            assert there[topic, key] == event["before"]
        else:
            assert (topic, key) not in there
        there[topic, key] = event["after"]
        if event["after"] is None:
            del there[topic, key]


def test_a_snapshot_that_races_with_writes_fits_the_stream(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY, a int) ", "CREATE TABLE u(id int PRIMARY KEY, a int)")
    shop.run(
        "INSERT INTO t SELECT seq, 0 FROM seq_1_to_3000", "INSERT INTO u SELECT seq, 0 FROM seq_1_to_3000"
    )
    stop = threading.Event()
    writers = [threading.Thread(target=write_both, args=(shop, seed, stop)) for seed in (1, 2, 3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(4):
            found = []
            source = shop.source()
            parts = source.read(None)
            for part in parts:
                found += part.records
                if part.position and len(json.loads(part.position)["tables"]) == len("tu"):
                    break
            rows = applied([r for r in found if r.topic != "lab.schema"])
            mine = {
                key
                for table in "tu"
                for key, row in rows[f"lab.{shop.name}.{table}"].items()
                if row["id"] >= 10_000
            }
            assert all(
                rows[f"lab.{shop.name}.t"].get(key) == rows[f"lab.{shop.name}.u"].get(key) for key in mine
            ), "one moment for all tables"
            snapshot = found
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    shop.run("INSERT INTO u VALUES (9999, 0)")  # the snapshot may have seen the end already
    found = snapshot + records(until(parts, shop.position()))
    source.close()

    rows = applied([r for r in found if r.topic != "lab.schema"])
    for table in "tu":
        truth = {
            json.dumps({"id": i}, separators=(",", ":")).encode(): {"id": i, "a": a}
            for i, a in shop.run(f"SELECT * FROM {table}")
        }
        assert rows[f"lab.{shop.name}.{table}"] == truth
    assert_each_change_follows_the_one_before(found)


def test_a_large_transaction_comes_in_parts_and_is_not_kept(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY, a varchar(1000))")
    start = shop.position()
    shop.run("INSERT INTO t SELECT seq, repeat('x', 900) FROM seq_1_to_20000")
    count, sizes, positions = 0, [], []
    tracemalloc.start()
    with reading(shop.source(), start) as parts:
        for part in parts:
            count += sum(r.topic != "lab.schema" for r in part.records)
            positions.append(part.position)
            sizes.append(tracemalloc.get_traced_memory()[0])
            if part.position:
                break
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 20000
    assert len([p for p in positions if p]) == 1
    assert len(sizes) > 3
    assert peak < 20_000_000, "records alone are 26 MB"


def test_a_stream_continues_where_it_was_after_a_kill_of_the_server():
    server = MariaDBProcess()
    server.start()
    try:
        shop = Shop(server, "killed")
        shop.run("CREATE TABLE t(id int PRIMARY KEY)")
        start = shop.position()
        shop.run(*(f"INSERT INTO t VALUES ({n})" for n in range(20)))
        source = shop.source()
        parts = source.read(start)
        found = until(parts, shop.position())
        position = found[-1].position
        server.kill()
        with pytest.raises(UnavailableError):
            for _ in parts:
                pass
        with pytest.raises(UnavailableError):
            next(source.read(position))
        server.start()
        shop.connection = server.connect(autocommit=True, database="killed")
        shop.run(*(f"INSERT INTO t VALUES ({n})" for n in range(20, 30)))
        found += until(source.read(position), shop.position())
        source.close()

        assert [after["id"] for _, _, after in changes(found)] == list(range(30))

        shop.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (30)", "FLUSH BINARY LOGS")
        last = shop.run("SHOW BINARY LOGS")[-1][0]
        shop.run(f"PURGE BINARY LOGS TO '{last}'")
        with pytest.raises(CaptureError, match="take a new snapshot"):
            next(part for part in source.read(start) if part.position)
        source.close()
        for setting, value, usual in (
            ("binlog_format", "MIXED", "ROW"),
            ("binlog_row_image", "MINIMAL", "FULL"),
            ("binlog_row_metadata", "MINIMAL", "FULL"),
        ):
            shop.run(f"SET GLOBAL {setting} = {value}")
            with pytest.raises(
                CaptureError, match=f"got {setting}={value}; expected {setting}={usual}; SET GLOBAL"
            ):
                next(source.read(start))
            shop.run(f"SET GLOBAL {setting} = {usual}")
        server.stop()
        server.start("--skip-log-bin")
        with pytest.raises(CaptureError, match="log_bin=OFF"):
            next(source.read(start))
        source.close()
    finally:
        server.end()


def test_a_position_that_the_server_never_had_is_refused(shop):
    with pytest.raises(CaptureError, match="0-1-99999999"):
        shop.read("0-1-99999999")
    with pytest.raises(CaptureError, match="not a set of transactions"):
        shop.read("somewhere")


def test_rows_that_were_logged_without_all_columns_are_refused(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY, a int)")
    start = shop.position()
    shop.run("SET binlog_row_image = MINIMAL", "INSERT INTO t VALUES (1, 2)", "UPDATE t SET a = 3")

    with pytest.raises(CaptureError, match="binlog_row_image=FULL"):
        shop.read(start)


def test_rows_that_were_logged_as_a_statement_are_refused(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY)", "CREATE TABLE other(id int PRIMARY KEY)")
    start = shop.position()
    shop.run("SET binlog_format = STATEMENT", "INSERT INTO other VALUES (1)")

    assert changes(shop.read(start, "t")) == []
    shop.run("INSERT INTO t VALUES (1)")
    with pytest.raises(CaptureError, match="by a statement"):
        shop.read(start, "t")


def test_prepared_transactions_are_refused_where_they_matter(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY)", "CREATE TABLE other(id int PRIMARY KEY)")
    start = shop.position()
    for table in ("other", "t"):
        shop.run(
            "XA START 'x'", f"INSERT INTO {table} VALUES (1)", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'"
        )

    with pytest.raises(CaptureError, match="XA"):
        shop.read(start, "t")
    assert gtid(shop.read(start, "none")[-1]) == shop.position()


def test_compressed_events_are_read(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY, a text)")
    start = shop.position()
    shop.run("SET GLOBAL log_bin_compress = ON")
    try:
        shop.run(
            "INSERT INTO t SELECT seq, repeat('long', 500) FROM seq_1_to_50",
            f"ALTER TABLE t COMMENT '{'long ' * 100}'",
        )
        shop.run("UPDATE t SET a = 'short'", "DELETE FROM t")
    finally:
        shop.run("SET GLOBAL log_bin_compress = OFF")
    found = changes(shop.read(start))

    assert [op for op, _, _ in found] == ["c"] * 50 + ["u"] * 50 + ["d", "x"] * 50


@pytest.mark.parametrize(
    "granted",
    ["SELECT, REPLICATION CLIENT", "REPLICATION SLAVE, REPLICATION CLIENT"],
    ids=["no stream", "no rows"],
)
def test_missing_rights_are_named(shop, granted):
    shop.run(
        "CREATE TABLE t(id int PRIMARY KEY)", "CREATE OR REPLACE USER poor@'127.0.0.1' IDENTIFIED BY 'x'"
    )
    shop.run(f"GRANT {granted} ON *.* TO poor@'127.0.0.1'")
    source = MariaDBSource("lab", f"mysql://poor:x@127.0.0.1:{shop.server.port}", [f"{shop.name}.t"])

    with pytest.raises(CaptureError, match="SELECT"):
        next(part for part in source.read(None) if not part.records and not part.position)
    source.close()
    shop.run("DROP USER poor@'127.0.0.1'")


def test_a_wrong_declaration_is_refused_at_once():
    for arguments in (("postgresql://h", ["a.b"]), ("mysql://h", []), ("mysql://h", ["orders"])):
        with pytest.raises(UsageError):
            MariaDBSource("lab", *arguments)


def test_a_wrong_password_is_reported(mariadb):
    with pytest.raises(CaptureError, match="password is refused"):
        next(MariaDBSource("lab", f"mysql://capture:wrong@127.0.0.1:{mariadb.port}", ["a.b"]).read(None))


def test_the_newer_of_two_readers_continues(shop):
    shop.run("CREATE TABLE t(id int PRIMARY KEY)")
    start = shop.position()
    first, second = shop.source(), shop.source()
    shop.run("INSERT INTO t VALUES (1)")
    older = first.read(start)
    until(older, shop.position())
    newer = second.read(start)
    until(newer, shop.position())

    with pytest.raises(UnavailableError):
        for _ in older:
            pass
    shop.run("INSERT INTO t VALUES (2)")
    assert [after["id"] for _, _, after in changes(until(newer, shop.position()))] == [2]
    first.close()
    second.close()


def test_what_is_left_of_the_binlog_is_known_in_bytes(shop, monkeypatch):
    monkeypatch.setattr(lag, "QUERY_S", 0.0)
    shop.run("CREATE TABLE t(id int PRIMARY KEY, x longtext)")
    start, source = shop.position(), shop.source()
    for number in range(8):
        shop.run(f"INSERT INTO t VALUES ({number}, repeat('x', 2000000))")
        if number == 3:
            shop.run("FLUSH BINARY LOGS")
    end = shop.position()

    with reading(source, start) as parts:
        lags = [source.lag_bytes for part in until_each(parts, end) if part.records]

    assert len(lags) == 8
    assert lags == sorted(lags, reverse=True)
    assert 10_000_000 < lags[0] < 16_000_000 + 100_000
    assert lags[-1] < 2_000_000


def until_each(parts, position):
    for part in parts:
        yield part
        if part.position and gtid(part) == position:
            return
