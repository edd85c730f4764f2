"""What MariaDB's own types and settings do to values: the snapshot, the stream and the server itself say the same."""

import json
from itertools import zip_longest
from typing import Any

import pytest

from support.capturedb import Shop, applied, records

NEIGHBOURS = {
    "tinyint": "1",
    "year": "2026",
    "bit(3)": "5",
    "decimal(5,1)": "-1",
    "float": "-1.5",
    "double": "2.5",
    "enum('a')": "'a'",
    "set('a')": "'a'",
    "date": "'2020-01-01'",
    "time": "'10:00:00'",
    "datetime": "'2020-01-01 10:00:00'",
    "timestamp null": "'2020-01-01 10:00:00'",
    "char(3)": "'a'",
    "varchar(300)": "'a'",
    "text": "'a'",
    "blob": "'a'",
    "json": "'{}'",
    "binary(4)": "'a'",
    "point": "point(1, 2)",
    "uuid": "uuid()",
    "inet4": "'10.0.0.1'",
    "inet6": "'::1'",
}


@pytest.fixture
def shop(mariadb, request):
    shop = Shop(mariadb, "v_" + request.node.originalname.removeprefix("test_")[:40])
    yield shop
    shop.connection.close()


def rows(shop: Shop, position: str | None, table: str) -> dict[str, Any]:
    """The rows of a table's topic, by the text of their keys."""
    found = applied(records(shop.read(position, table)))
    return {key.decode(): row for key, row in found[f"lab.{shop.name}.{table}"].items()}


def test_the_sign_of_a_number_is_its_own_whatever_the_columns_around_it_are(shop):
    columns = [f"c{i} {kind}, s{i} int, u{i} int unsigned" for i, kind in enumerate(NEIGHBOURS)]
    shop.run(f"CREATE TABLE t(id int PRIMARY KEY, {', '.join(columns)})")
    start = shop.position()
    shop.run(f"INSERT INTO t VALUES (1, {', '.join(f'{v}, -5, 4000000000' for v in NEIGHBOURS.values())})")

    streamed = rows(shop, start, "t")
    row = streamed['{"id":1}']
    assert {row[f"s{i}"] for i in range(len(NEIGHBOURS))} == {-5}
    assert {row[f"u{i}"] for i in range(len(NEIGHBOURS))} == {4000000000}
    assert rows(shop, None, "t") == streamed


def test_zerofill_is_a_way_to_show_numbers_not_a_part_of_them(shop):
    shop.run(
        "CREATE TABLE t(id int(5) zerofill, b bigint zerofill, f float zerofill, d decimal(8,2) zerofill, y year, "
        "e enum('zerofill', 'unsigned'), PRIMARY KEY (id, b))"
    )
    start = shop.position()
    shop.run(
        "INSERT INTO t VALUES (42, 18446744073709551615, 1.5, 7.25, 2026, 'zerofill'), (0, 0, 0, 0, 0, NULL)"
    )

    found = rows(shop, None, "t")
    assert found == rows(shop, start, "t")
    assert found['{"id":42,"b":18446744073709551615}']["f"] == 1.5
    assert set(found) == {'{"id":42,"b":18446744073709551615}', '{"id":0,"b":0}'}


SETTINGS = {
    "sql_mode": "PAD_CHAR_TO_FULL_LENGTH,ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,IGNORE_SPACE",
    "sql_select_limit": 2,
    "max_statement_time": 0.000001,
    "time_zone": "+05:00",
    "lc_time_names": "de_DE",
    "div_precision_increment": 0,
    "group_concat_max_len": 4,
    "sql_big_selects": 0,
    "max_join_size": 1,
}


@pytest.fixture(params=SETTINGS)
def setting(shop, request):
    """A setting of the server, as each new session has it."""
    name = request.param
    ((before,),) = shop.run(f"SELECT @@GLOBAL.{name}")
    with shop.connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL {name} = %s", (SETTINGS[name],))
        yield name
        cursor.execute(f"SET GLOBAL {name} = %s", (before,))


def test_settings_for_new_sessions_change_neither_the_values_nor_the_number_of_rows(shop, setting):
    shop.run(
        "CREATE TABLE t(k char(5), l char(5) charset latin1, b binary(5), v varchar(9), w datetime, s timestamp NULL, "
        "d double, PRIMARY KEY (k, v))"
    )
    start = shop.position()
    one = "'ab ', 'a\\\\b\"', '2020-06-01 12:00:00', '2020-06-01 12:00:00', 0.1"
    shop.run(*(f"INSERT INTO t VALUES ('x{n}', 'é', {one})" for n in range(5)))

    streamed, found = rows(shop, start, "t"), rows(shop, None, "t")
    assert (setting, found) == (setting, streamed)
    assert len(found) == 5
    assert {row["k"] for row in found.values()} == {f"x{n}" for n in range(5)}


UNICODE = {"utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"}
POINTS = [*range(1, 0x3000, 7), 0x4E00, 0xAC00, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]


def character_sets(shop: Shop) -> list[tuple[str, int]]:
    """All that the server knows, with the most bytes of a character."""
    found = shop.run("SELECT character_set_name, maxlen FROM information_schema.character_sets")
    return [(name, int(size)) for name, size in found if name != "binary"]


def codes(name: str, size: int) -> list[str]:
    """Bytes that may be characters of a set, in hexadecimal."""
    if name in UNICODE:
        codec = {"utf16le": "utf-16-le", "utf32": "utf-32-be"}.get(
            name, "utf-8" if "utf8" in name else "utf-16-be"
        )
        most = 0xFFFF if size == 3 or name == "ucs2" else 0x10FFFF
        return [chr(point).encode(codec).hex() for point in POINTS if point <= most]
    found = [f"{byte:02x}" for byte in range(1, 256)]
    if size > 1:
        found += [
            f"{first:02x}{second:02x}" for first in range(0x81, 0xFF) for second in range(0x40, 0xFF, 3)
        ]
    if size > 2:
        found += [
            f"8f{first:02x}{second:02x}" for first in range(0xA1, 0xFF, 5) for second in range(0xA1, 0xFF)
        ]
    return found


def test_every_character_of_every_set_comes_as_the_server_shows_it(shop):
    sets = character_sets(shop)
    names = [name for name, _ in sets]
    lists = [codes(name, size) for name, size in sets]
    columns = ", ".join(f"{name} varchar(9) CHARACTER SET {name}" for name in names)
    shop.run("SET sql_mode = ''", f"CREATE TABLE t(id int PRIMARY KEY, {columns})")
    start = shop.position()
    for at in range(0, max(map(len, lists)), 1000):
        texts = [
            [f"CONVERT(x'{code}' USING {name})" for code in part[at : at + 1000]]
            for name, part in zip(names, lists, strict=True)
        ]
        lines = enumerate(zip_longest(*texts, fillvalue="NULL"))
        shop.run(f"INSERT INTO t VALUES {', '.join(_row(at + n, line) for n, line in lines)}")

    streamed, found = rows(shop, start, "t"), rows(shop, None, "t")
    shown = {
        f'{{"id":{row[0]}}}': dict(zip(("id", *names), row, strict=True))
        for row in shop.run("SELECT * FROM t")
    }
    for name in names:
        expected = {key: row[name] for key, row in shown.items()}
        assert {key: row[name] for key, row in streamed.items()} == expected, name
        assert {key: row[name] for key, row in found.items()} == expected, name


def test_labels_in_any_character_set_are_read(shop):
    shop.run(
        "CREATE TABLE t(id int PRIMARY KEY, a enum('é', 'ÅÄ') CHARACTER SET swe7, b set('한', '글') CHARACTER SET euckr, "
        "c enum('①', '②') CHARACTER SET eucjpms, d set('€', 'š') CHARACTER SET latin1, e enum('x', 'y') CHARACTER SET binary)"
    )
    start = shop.position()
    shop.run("INSERT INTO t VALUES (1, 'ÅÄ', '한,글', '①', '€,š', 'y')")

    row = {"id": 1, "a": "ÅÄ", "b": "한,글", "c": "①", "d": "€,š", "e": "y"}
    assert rows(shop, start, "t") == rows(shop, None, "t") == {'{"id":1}': row}


def test_halves_of_characters_are_written_so_that_a_record_is_json(shop):
    shop.run(
        "CREATE TABLE t(k varchar(9), u varchar(9) CHARACTER SET ucs2, w varchar(9) CHARACTER SET utf32, PRIMARY KEY (k))"
    )
    start = shop.position()
    shop.run(
        "INSERT INTO t VALUES (x'6161EDA0BD', x'D83D', x'0000DE00'), (x'ED959CEDB880', x'D83DDE00', x'0000D55C')"
    )

    streamed, found = shop.read(start, "t"), shop.read(None, "t")
    for each in (streamed, found):
        rows_of = [json.loads(record.value.decode())["after"] for record in records(each)]
        assert rows_of == [
            {"k": "aa\ud83d", "u": "\ud83d", "w": "\ude00"},
            {"k": "한\ude00", "u": "😀", "w": "한"},
        ]
    assert [r.key for r in records(streamed)] == [r.key for r in records(found)]


def _row(number: int, texts: tuple[str, ...]) -> str:
    return f"({number}, {', '.join(texts)})"
