"""Every type of MariaDB, out of a snapshot and out of the binlog: the same text, and the right one."""

import json
from base64 import b64decode

import pytest

from support.capturedb import Shop, changes, gtid, records

COLUMNS = {
    "ti tinyint": ("-128", -128),
    "tu tinyint unsigned": ("255", 255),
    "si smallint": ("-32768", -32768),
    "su smallint unsigned": ("65535", 65535),
    "mi mediumint": ("-8388608", -8388608),
    "mu mediumint unsigned": ("16777215", 16777215),
    "ii int": ("-2147483648", -2147483648),
    "iu int unsigned": ("4294967295", 4294967295),
    "bi bigint": ("-9223372036854775808", -9223372036854775808),
    "bu bigint unsigned": ("18446744073709551615", 18446744073709551615),
    "d1 decimal(10,3)": ("-12.5", "zyw="),
    "d2 decimal(65,30)": ("0", "AA=="),
    "d3 decimal(3,0) unsigned": ("999", "A+c="),
    "f1 float": ("1.1", 1.1),
    "f2 float": ("16777217e10", 1.6777218e17),
    "f3 double": ("1.7976931348623157e308", 1.7976931348623157e308),
    "f4 double": ("-0.1", -0.1),
    "da date": ("'2024-02-29'", 19782),
    "d0 date": ("'0001-01-01'", -719162),
    "t0 time": ("'-838:59:59'", -3020399000000),
    "t1 time(1)": ("'-01:02:03.5'", -3723500000),
    "t3 time(3)": ("'23:59:59.123'", 86399123000),
    "t6 time(6)": ("'-00:00:00.000001'", -1),
    "dt datetime": ("'2024-02-29 23:59:59'", 1709251199000),
    "dt3 datetime(3)": ("'2024-02-29 23:59:59.123'", 1709251199123),
    "dt6 datetime(6)": ("'1000-01-01 00:00:00.000001'", -30610223999999999),
    "ts timestamp null": ("'2024-02-29 23:59:59'", "2024-02-29T23:59:59Z"),
    "ts2 timestamp(2) null": ("'2024-02-29 23:59:59.12'", "2024-02-29T23:59:59.12Z"),
    "ts6 timestamp(6) null": ("'2038-01-19 03:14:07.999999'", "2038-01-19T03:14:07.999999Z"),
    "ye year": ("2155", 2155),
    "b1 bit(1)": ("b'1'", True),
    "b9 bit(9)": ("b'100000011'", "AwE="),
    "en enum('a','b''c','ü')": ("'ü'", "ü"),
    "el enum('é','b') charset latin1": ("'é'", "é"),
    "se set('x','y','z')": ("'x,z'", "x,z"),
    "js json": ("'{\"a\": 1}'", '{"a": 1}'),
    "bl blob": ("x'deadbeef'", "3q2+7w=="),
    "mt mediumtext": ("'tab\\there\\nnl \\\\back \"q\" 😀'", 'tab\there\nnl \\back "q" 😀'),
    "lt longtext": ("''", ""),
    "vc varchar(20)": ("'é😀'", "é😀"),
    "vl varchar(20) charset latin1": ("'é€'", "é€"),
    "vu varchar(10) charset utf16": ("'aé'", "aé"),
    "vx varchar(300)": ("repeat('x', 280)", "x" * 280),
    "bn binary(8)": ("x'0102'", "AQIAAAAAAAA="),
    "vb varbinary(20)": ("x'00ff'", "AP8="),
    "ch char(10)": ("'ab  '", "ab"),
    "pt point": ("point(1.5, 2)", {"wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAABA", "srid": None}),
    "uu uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "i6 inet6": ("'::ffff:10.0.0.1'", "::ffff:10.0.0.1"),
    "i4 inet4": ("'10.0.0.1'", "10.0.0.1"),
}


@pytest.fixture(scope="module")
def shop(mariadb):
    shop = Shop(mariadb, "types")
    shop.run(f"CREATE TABLE types(id int PRIMARY KEY, {', '.join(COLUMNS)})")
    shop.start = shop.position()
    given = ", ".join(value for value, _ in COLUMNS.values())
    shop.run(f"INSERT INTO types VALUES (1, {given})", "INSERT INTO types(id) VALUES (2)")
    shop.run(f"INSERT INTO types VALUES (3, {given})", "UPDATE types SET ti = NULL, vc = NULL WHERE id = 3")
    shop.run(
        "SET sql_mode = ''",
        "INSERT INTO types(id, da, dt, ts, ye, en, se, dt6) VALUES (4, '0000-00-00', 0, 0, 0, 'none', '', '2024-02-00')",
    )
    return shop


def test_every_type_has_its_value_in_the_stream(shop):
    rows = {after["id"]: after for op, _, after in changes(shop.read(shop.start)) if op == "c"}

    assert rows[1] == {"id": 1, **{name.split()[0]: value for name, (_, value) in COLUMNS.items()}}
    assert rows[2] == {"id": 2, **dict.fromkeys(name.split()[0] for name in COLUMNS)}


def test_a_snapshot_writes_rows_as_the_stream_does(shop):
    streamed = {r.key: r.value for r in records(shop.read(shop.start)) if r.value}
    found = {r.key: r.value for r in records(shop.read(None))}

    assert len(found) == 4
    for key, value in found.items():
        assert (
            value[: value.index(b',"source"')].split(b'"after":')[1]
            == streamed[key][: streamed[key].index(b',"source"')].split(b'"after":')[1]
        )


def test_a_snapshot_and_the_stream_agree_about_the_schema(shop):
    source = shop.source()
    found = []
    for part in source.read(None):
        found += [r for r in part.records if r.topic == "lab.schema"]
        if part.position:
            break
    for part in source.read(shop.start):
        found += [r for r in part.records if r.topic == "lab.schema"]
        if part.position and gtid(part) == shop.position():
            break
    source.close()

    assert [json.loads(r.value)["version"] for r in found] == [1]
    columns = {c["name"]: c for c in json.loads(found[0].value)["columns"]}
    assert columns["d1"] == {"name": "d1", "type": "decimal", "modifier": "10,3", "nullable": True}
    assert columns["en"]["modifier"] == "'a','b''c','ü'"


def test_zero_dates_are_null_and_an_invalid_enum_is_empty(shop):
    row = next(after for op, _, after in changes(shop.read(None)) if after["id"] == 4)

    assert [row[name] for name in ("da", "dt", "ts", "dt6")] == [None] * 4
    assert (row["ye"], row["en"], row["se"]) == (0, "", "")


def test_decimals_may_be_texts(shop):
    snapshot = shop.read(None, decimals="string")
    stream = shop.read(shop.start, decimals="string")

    for parts in (snapshot, stream):
        row = next(after for op, _, after in changes(parts) if after["id"] == 1)
        assert (row["d1"], row["d2"], row["d3"]) == ("-12.500", "0." + "0" * 30, "999")


def test_decimals_of_every_size_survive(mariadb):
    shop = Shop(mariadb, "decimals")
    sizes = [(1, 0), (1, 1), (9, 0), (9, 9), (10, 5), (18, 9), (19, 9), (28, 1), (65, 0), (38, 38), (65, 38)]
    shop.run(
        f"CREATE TABLE d(id int PRIMARY KEY, {', '.join(f'c{i} decimal({p},{s})' for i, (p, s) in enumerate(sizes))})"
    )
    start = shop.position()
    rows = []
    for n, sign in enumerate((1, -1)):
        rows.append([sign * (int("9876543210" * 7) // 10 ** (70 - p)) for p, _ in sizes])
        texts = [f"{v}e-{s}" if s == 0 else _point(v, s) for v, (_, s) in zip(rows[-1], sizes, strict=True)]
        shop.run(f"INSERT INTO d VALUES ({n}, {', '.join(t.removesuffix('e-0') for t in texts)})")

    for parts in (shop.read(start), shop.read(None)):
        found = [after for _, _, after in changes(parts)]
        for n, expected in enumerate(rows):
            assert [
                int.from_bytes(b64decode(found[n][f"c{i}"]), signed=True) for i in range(len(sizes))
            ] == expected


def _point(value: int, scale: int) -> str:
    digits = f"{abs(value):0{scale + 1}}"
    return f"{'-' if value < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"
