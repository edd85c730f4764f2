"""The types of PostgreSQL."""

import json
import random
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from capture.kinds import (
    EPOCH,
    TEXTS,
    Kind,
    bits,
    dates,
    decimal,
    digits,
    double,
    flag,
    integers,
    numeric,
    octets,
    plain,
    raw,
    single,
    span,
    whole,
)

CREATE = [
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'very \"happy\"', 'é')",
    "CREATE DOMAIN price AS numeric(12, 2) CHECK (VALUE >= 0)",
    "CREATE TYPE pair AS (a int, b text)",
]
INFINITE = {"infinity": 9223372036825200000, "-infinity": -9223372036832400000}
ERA = re.compile(r"(?P<year>\d+)-(?P<month>\d\d)-(?P<day>\d\d)(?P<rest>.*?)(?P<bc> BC)?")
CYCLE = 400
"""Years after which the calendar repeats itself, in 146,097 days."""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _days(text: str) -> tuple[int, str]:
    """Days since 1970 of a date in any year, and the text after it: moved by whole cycles of the calendar to where Python has one."""
    found = ERA.fullmatch(text)
    assert found is not None
    year = 1 - int(found["year"]) if found["bc"] else int(found["year"])
    cycles = (year - 2000) // CYCLE
    near = date(year - cycles * CYCLE, int(found["month"]), int(found["day"]))
    return (near - EPOCH).days + cycles * 146_097, found["rest"]


def _day(found: Any, text: str) -> bool:
    return bool(found == (text if text in INFINITE else _days(text)[0]))


def _moment(unit: int) -> Callable[[Any, str], bool]:
    def same(found: Any, text: str) -> bool:
        if text in INFINITE:
            return bool(found == INFINITE[text] // unit)
        days, rest = _days(text)
        hours, minutes, seconds = rest.strip().split(":")
        micros = (int(hours) * 3600 + int(minutes) * 60) * 1_000_000 + int(Decimal(seconds) * 1_000_000)
        return bool(found == (days * 86_400_000_000 + micros) // unit)

    return same


def _zoned(places: int) -> Callable[[Any, str], bool]:
    """ISO 8601 in UTC; a year has four digits, or more and a sign."""

    def same(found: Any, text: str) -> bool:
        if text in INFINITE:
            return bool(found == text)
        era = ERA.fullmatch(text)
        assert era is not None
        year = 1 - int(era["year"]) if era["bc"] else int(era["year"])
        shown = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
        clock, _, fraction = era["rest"].strip().removesuffix("+00").partition(".")
        padded = f".{fraction.ljust(places, '0')}" if places else ""
        return bool(found == f"{shown}-{era['month']}-{era['day']}T{clock}{padded}Z")

    return same


def _interval(found: Any, text: str) -> bool:
    """Shown as months, days and seconds, each by itself; a month has Debezium's length."""
    months, days, seconds = text.split("|")
    micros = int(months) * 2_629_800_000_000 + int(days) * 86_400_000_000
    return bool(found == micros + int(Decimal(seconds) * 1_000_000))


def _point(found: Any, text: str) -> bool:
    x, y = text[1:-1].split(",")
    return double(found["x"], x) and double(found["y"], y) and len(b64decode(found["wkb"])) == 21


def _money(found: Any, text: str) -> bool:
    return decimal(2)(found, text)


def _list(same: Callable[[Any, str], bool]) -> Callable[[Any, str], bool]:
    """An array, shown as JSON of the texts of its elements, in one dimension."""

    def alike(found: Any, text: str) -> bool:
        shown = json.loads(text)
        flat = _flat(found)
        return len(flat) == len(shown) and all(
            a is None if b is None else same(a, b) for a, b in zip(flat, shown, strict=True)
        )

    return alike


def _flat(found: list[Any]) -> list[Any]:
    return [inner for each in found for inner in (_flat(each) if isinstance(each, list) else [each])]


ELEMENTS = (
    "CASE WHEN {0} IS NOT NULL THEN (SELECT coalesce(json_agg(e::text), '[]')::text FROM unnest({0}) e) END"
)
SECONDS = (
    "(extract(year FROM {0}) * 12 + extract(month FROM {0}))::bigint || '|' || extract(day FROM {0})::bigint || '|' ||"
    " (extract(hour FROM {0}) * 3600 + extract(minute FROM {0}) * 60 + extract(second FROM {0}))"
)


def _array(element: str, literals: Sequence[str], same: Callable[[Any, str], bool]) -> Kind:
    several = f"ARRAY[{', '.join([*literals, 'NULL'])}]::{element}[]"
    bounded = f"('[3:' || {len(literals) + 2} || ']=' || (ARRAY[{', '.join(literals)}]::{element}[])::text)::{element}[]"
    square = f"ARRAY[[{literals[0]}, {literals[-1]}], [{literals[-1]}, NULL]]::{element}[]"
    return Kind(f"{element}[]", [f"'{{}}'::{element}[]", several, square, bounded], _list(same), ELEMENTS)


def _numbers() -> list[Kind]:
    found = []
    for name, size in (("smallint", 16), ("int", 32), ("bigint", 64)):
        low, high = -(1 << size - 1), (1 << size - 1) - 1
        found.append(Kind(name, [f"({n})" for n in (low, -1, 0, 1, high)], whole, more=integers(0, high)))
    sizes = [(5, 2), (12, 0), (38, 9), (38, 38), (100, 50), (3, 5)]
    nan = "'NaN'"
    found += [
        Kind(f"numeric({p},{s})", ["0", nan, f"-1e-{s}"], decimal(s), more=digits(min(p, 38), s))
        for p, s in sizes
    ]
    doubles = [
        "0",
        "'-0'",
        "0.1",
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "1e22",
        "5e-324",
        "1.7976931348623157e308",
    ]
    odd = ["-0.00012300", "'NaN'", "'Infinity'", "'-Infinity'", f"1e{500}", f"1e-{300}", "100", "0.0"]
    return [
        *found,
        Kind("numeric(10,-3)", ["1234567", "0", "-1500", "9999999499"], decimal(-3)),
        Kind("numeric", odd, numeric, more=digits(60, 20)),
        Kind("price", ["0", "9999999999.99"], decimal(2), more=digits(12, 2, sign="")),
        Kind(
            "money",
            ["'-1234567.89'", "0", "'92233720368547758.07'", "'-92233720368547758.08'"],
            _money,
            "{0}::numeric",
            key=False,
        ),
        Kind(
            "double precision",
            [f"{n}::float8" for n in doubles],
            double,
            more=lambda r: repr(r.uniform(-1, 1) * 10.0 ** r.randint(-300, 300)),
        ),
        Kind(
            "real",
            ["1.1::real", "'NaN'", "'-Infinity'", "16777217", "1e-45", "3.4028235e38"],
            single,
            more=lambda r: f"{r.uniform(-1, 1) * 10.0 ** r.randint(-30, 30):.9e}",
        ),
        Kind("oid", ["0", "4294967295"], whole),
        Kind("boolean", ["true", "false"], flag),
        *(
            Kind(f"bit({n})", [f"B'{'01' * 40}'::bit({n})", f"0::bit({n})", f"(-1)::bit({n})"], bits)
            for n in (1, 2, 8, 9, 64)
        ),
        Kind(
            "bit varying",
            ["B''", "B'1'", "B'000000001'", "B'101'"],
            lambda f, t: bits(f, t) if len(t) != 1 else b64decode(f) == bytes([int(t)]),
        ),
    ]


def _times() -> list[Kind]:
    days = [
        "'4713-01-01 BC'",
        "'0001-12-31 BC'",
        "'0001-01-01'",
        "'1582-10-10'",
        "'1970-01-01'",
        "'9999-12-31'",
        "'5874897-12-31'",
        "'infinity'",
        "'-infinity'",
    ]
    stamps = [
        "'4713-01-01 00:00:00 BC'",
        "'0044-03-15 12:00:00.123456 BC'",
        "'0001-01-01'",
        "'1969-12-31 23:59:59.999999'",
        "'9999-12-31 23:59:59.999999'",
        "'10000-01-01'",
        "'294276-12-31 23:59:59.9'",
        "'infinity'",
        "'-infinity'",
    ]
    spans = ["'00:00'", "'23:59:59.999999'", "'24:00:00'", "'12:34:56.7'"]
    lengths = [
        "'0'",
        "'-1 year -2 mons +3 days -04:05:06.789'",
        "'1 mon -1 day'",
        "'178000 years'",
        "'-00:00:00.000001'",
        "'1000000 hours'",
    ]
    return [
        Kind("date", days, _day, more=dates(1, 9998, "'{0}'::timestamp::date")),
        *(Kind(f"time({n})", spans, span(1000 if n <= 3 else 1)) for n in (0, 2, 3, 4, 6)),
        *(
            Kind(f"timestamp({n})", stamps, _moment(1000 if n <= 3 else 1), more=dates(1, 9998, "'{0}'"))
            for n in (0, 2, 3, 4, 6)
        ),
        *(
            Kind(
                f"timestamptz({n})",
                [f"{s[:-1]} UTC'" if s[1].isdigit() and "BC" not in s else s for s in stamps],
                _zoned(n),
                more=dates(1, 9998, "'{0} UTC'"),
            )
            for n in (0, 1, 3, 6)
        ),
        Kind("interval", lengths, _interval, SECONDS),
        Kind(
            "timetz",
            ["'12:00:00.5+05:30'", "'00:00-15:59'", "'24:00:00+00'"],
            lambda f, _t: isinstance(f, str) and f.endswith("Z"),
        ),
    ]


def _texts() -> list[Kind]:
    texts = [_quoted(text) for text in TEXTS]
    by_chance: Callable[[random.Random], str] = lambda r: _quoted("".join(r.sample(TEXTS, 3)))  # noqa: E731
    ranges = {
        "int4range": ["'empty'", "'[1,5)'", "'(,)'", "'[-2147483648,)'"],
        "numrange": ["'[1.50,2]'", "'(,0)'"],
        "tstzrange": ["'[2020-01-01 UTC,)'", "'(-infinity,infinity)'"],
        "daterange": ["'[2020-01-01,2020-02-01)'"],
        "int4multirange": ["'{}'", "'{[1,3),[5,)}'"],
    }
    shapes = {
        "box": "'(2,2),(1,1)'",
        "line": "'{1,2,3}'",
        "lseg": "'[(0,0),(1,1)]'",
        "path": "'((0,0),(1,1),(2,0))'",
        "polygon": "'((0,0),(1,1),(2,0))'",
        "circle": "'<(0,0),1.5>'",
        "tsvector": "'a fat cat'",
        "tsquery": "'fat & rat'",
        "xml": "'<a b=\"1\">é</a>'",
        "json": '\'{"a": 1,  "a":2}\'',
        "pair": "ROW(1, 'a,\"b')",
        "macaddr": "'08:00:2b:01:02:03'",
        "macaddr8": "'08:00:2b:01:02:03:04:05'",
        "pg_lsn": "'16/B374D848'",
    }
    return [
        *(Kind(sql, texts, plain, more=by_chance) for sql in ("text", "varchar", 'text COLLATE "C"')),
        *(
            Kind(
                sql,
                [f"{text}::{sql}" for text in texts],
                plain,
                "{0} || ''" if sql == "name" else "{0}::text",
            )
            for sql in ("varchar(9)", "name")
        ),
        Kind(
            "char(9)",
            [f"{text}::char(9)" for text in texts],
            lambda f, t: isinstance(f, str) and f.rstrip(" ") == t.rstrip(" "),
        ),
        Kind('"char"', ["'a'", "''", "'\"'", "'\\'"], plain),
        Kind("bytea", ["''", "'\\x00'", "'\\xff5c2722'"], raw, more=octets(40, "'\\x{0}'")),
        Kind("uuid", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "gen_random_uuid()"], plain),
        Kind(
            "inet", ["'::1/64'", "'10.0.0.1'"], plain, "CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END"
        ),
        Kind("cidr", ["'10.0.0.0/8'", "'::/0'"], plain),
        Kind("mood", ["'sad'", "'very \"happy\"'", "'é'"], plain),
        Kind("jsonb", ["'null'", '\'{"b":1.0,"a":"\\u00fc"}\'', "'[]'"], plain),
        *(Kind(sql, literals, plain) for sql, literals in ranges.items()),
        *(
            Kind(sql, [literal], plain, key=sql in {"macaddr", "macaddr8", "pg_lsn"})
            for sql, literal in shapes.items()
        ),
        Kind("point", ["'(1.5,-2)'", "'(0,1e300)'", "'(Infinity,NaN)'"], _point, key=False),
    ]


def _arrays() -> list[Kind]:
    return [
        _array("int", ["1", "-2147483648"], whole),
        _array("text", ["'a,b'", "'NULL'", "'q\"x\\y'", "''", "']={'", "'{}'"], plain),
        _array("bytea", ["'\\x00ff'"], raw),
        _array("numeric(5,2)", ["1.50", "'NaN'"], decimal(2)),
        _array("boolean", ["true", "false"], lambda f, t: f is (t == "true")),
        _array("box", ["'(2,2),(1,1)'", "'(4,4),(3,3)'"], plain)._replace(key=False),
        _array("date", ["'2020-01-01'", "'infinity'"], _day),
        _array("timestamptz", ["'2020-01-01 00:00:00.5 UTC'", "'infinity'"], _zoned(6)),
        _array("double precision", ["0.1", "'NaN'"], double),
        _array("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"], plain),
        _array("mood", ["'sad'", "'very \"happy\"'"], plain),
        _array("jsonb", ["'{\"a\": 1}'", "'null'"], plain),
    ]


def kinds() -> list[Kind]:
    """All of them."""
    return [*_numbers(), *_times(), *_texts(), *_arrays()]
