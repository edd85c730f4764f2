"""Records and rows as JSON: what our own classes read and write inside Spark is what Spark's functions do, for every text."""

import random
from datetime import date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.declare.field_types import field_type
from headwater.declare.judge import judge_of
from headwater.declare.schema import columns
from headwater.declare.spec import View
from headwater.pipeline.build import record_parser
from headwater.pipeline.wire import json_reader, json_writer, wire

pytestmark = pytest.mark.spark


class Inner(hw.Event):
    a: int
    t: datetime
    s: str | None = None


class Outer(hw.Event):
    n: int
    s: str
    d: float
    b: bool
    at: datetime
    i: Inner | None = None


class Listed(hw.Event):
    many: list[int]


class FreeInner(hw.Event):
    a: int | None = None
    t: datetime | None = None
    s: str | None = None


class Free(hw.Event):
    """All fields of `Outer`, none of them required: what is missing is found later."""

    n: int | None = None
    s: str | None = None
    d: float | None = None
    b: bool | None = None
    at: datetime | None = None
    i: FreeInner | None = None


class Everything(hw.Event):
    """Each type, none of them required."""

    i: int | None = None
    f: float | None = None
    g: hw.AnyFloat | None = None
    s: str | None = None
    b: bool | None = None
    at: datetime | None = None
    day: date | None = None
    p: hw.Decimal(18, 4) | None = None
    q: Decimal | None = None
    raw: bytes | None = None
    many: list[Decimal | None] | None = None
    texts: list[str] | None = None
    times: list[datetime] | None = None


def values() -> list[str]:
    """Records with one value each, at the limits of its type."""
    numbers = [
        "0",
        "-0",
        "1",
        "-1.50",
        "1e2",
        "1e-4",
        "123456789012345.1234",
        "12345678901234.12340",
        "1.00005",
    ]
    numbers += [
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "1e400",
        "0." + "1" * 40,
    ]
    texts = [
        "",
        "a",
        "5",
        "1.5",
        "-12.3450",
        "+1",
        ".5",
        "5.",
        "1e3",
        "NaN",
        "Infinity",
        "-Infinity",
        "x" * 99,
    ]
    texts += ["AP8=", "AP8", "A===", "AAAA", "AP8=AAAA"]
    texts += ["\\ud800", "\\ud83d\\ude00", "\\ude00\\ud83d", "häß 😀"]
    texts += ["2026-01-05", "2026-02-30", "0000-01-01", "0001-01-01", "9999-12-31", "2026-1-5"]
    zones = ["", "Z", "+01:00", "+0100", "-18:00", "+18:01", "+01", "+01:60", " Europe/Berlin", "z"]
    texts += [f"2026-01-05T09:00:00{zone}" for zone in zones]
    moments = [
        "2026-01-05 09:00",
        "2026-01-05T09:00:00.123456789",
        "2026-01-05T24:00:00",
        "2026-01-05T09:00:60",
    ]
    moments += ["9999-12-31T23:59:59", "10000-01-01T00:00:00", "0001-01-01T00:00:00"]
    texts += [f"{moment}{zone}" for moment in moments for zone in ("Z", "+01:00", "-01:00")]
    written = [*numbers, *(f'"{text}"' for text in texts), "null", "true", "{}", "[]", "NaN"]
    scalars = ("i", "f", "g", "s", "b", "at", "day", "p", "q", "raw")
    found = [f'{{"{name}":{value}}}' for name in scalars for value in written]
    found += [f'{{"{name}":[{value}]}}' for name in ("many", "texts", "times") for value in written]
    return [*found, '{"many":[1,null,"2.5"]}', '{"texts":["a",null]}', '{"many":[[1]]}']


VALUES = values()


ORDINARY = [
    '{"n":1,"s":"x","d":1.5,"b":true,"at":"2026-01-05T09:00:00Z"}',
    '{"at":"2026-02-28T23:59:59.123456Z","b":false,"d":-3,"s":"häß 😀","n":-12345678901,"i":{"a":4,"t":"2024-02-29T00:00:00.5Z"}}',
    ' {"n" : 1 ,\n"s":"", "d":0.1,\t"b":true, "at":"2026-01-05T09:00:00Z", "i":null, "more":[1,{"q":"w"},[],{},null,true,-1.5]}',
]
ODD = [
    "",
    " ",
    "null",
    "[]",
    "{}",
    '{"n":1',
    '{"n" 1}',
    '{"n":1,}',
    '{"n":1} more',
    "{'n':1}",
    '\n{"n":1}',
    '{"n":"1"}',
    '{"n":1.0}',
    '{"n":1e2}',
    '{"n":01}',
    '{"n":-}',
    '{"n":1,"n":2}',
    '{"n":1,"n":null}',
    '{"n":999999999999999999}',
    '{"n":9223372036854775807}',
    '{"n":9223372036854775808}',
    '{"s":5}',
    '{"s":{"a":1}}',
    '{"s":"a\\"b\\u00e4"}',
    '{"s":"\x01"}',
    '{"d":-0}',
    '{"d":-0.0}',
    '{"d":1.}',
    '{"d":.5}',
    '{"d":1e400}',
    '{"d":"NaN"}',
    '{"d":123456789012345678}',
    '{"d":12345678901234567890}',
    '{"d":0.1234567890123456789}',
    '{"d":1.' + "1" * 998 + "}",
    '{"d":1.' + "1" * 999 + "}",
    '{"d":1.' + "1" * 1000 + "}",
    '{"x":1.' + "1" * 1200 + ',"n":1}',
    '{"x":[1.' + "1" * 1200 + '],"n":1}',
    '{"b":tru}',
    '{"b":truex}',
    '{"at":"2026-02-30T00:00:00Z"}',
    '{"at":"2026-01-05 09:00:00"}',
    '{"at":"2026-01-05T09:00:00.1234567Z"}',
    '{"at":"2026-01-05T24:00:00Z"}',
    '{"at":"2026-01-05T09:00:00+01:00"}',
    '{"at":1767603600}',
    '{"i":{}}',
    '{"i":[]}',
    '{"i":{"t":"2024-02-30T00:00:00Z"}}',
    '{"i":{"t":1}}',
    '{"x":nul,"n":1}',
    '{"x":' + "[" * 100 + "]" * 100 + ',"n":1}',
]
LETTERS = b'{}[]",:0123456789.eE+-\\ntrufalse T\x00\xc3\xa4\xff\x7f'


def damaged(chance: random.Random, text: str) -> bytes:
    """A text with a few bytes exchanged, left out or put in."""
    found = bytearray(text.encode())
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(found) + 1)
        kind = chance.random()
        if kind < 0.3:
            found[place : place + 1] = b""
        else:
            found[place : place + (kind < 0.7)] = bytes([chance.choice(LETTERS)])
    return bytes(found)


def check_reading(spark, kind: type[hw.Event], texts: list[bytes]) -> int:
    """Compares our reader with Spark's, and its verdict with the judge in Python; the number that fit."""
    frame = spark.createDataFrame([(text,) for text in texts], "value BINARY")
    fields = columns(kind)
    from_json = record_parser._timed_row(fields, record_parser.TEXTS)
    ours = json_reader.column(spark, fields, from_json, record_parser.TEXTS, field_type(kind))
    read = frame.select("value", ours.alias("ours"))
    both = read.withColumn("theirs", F.expr(f"IF(ours._corrupt IS NULL, {from_json}, NULL)")).cache()
    fit = both.where("ours._corrupt IS NULL")
    assert fit.where("NOT (theirs <=> ours) OR NOT (to_json(theirs) <=> to_json(ours))").collect() == []
    judged = both.selectExpr("value", "ours._corrupt IS NULL AS fits").collect()
    faults = {bytes(row.value): judge_of(kind).fault(bytes(row.value)) for row in judged}
    wrong = [(row.value, faults[row.value]) for row in judged if row.fits != (not faults[row.value])]
    assert wrong[:5] == []
    return fit.count()


def test_every_record_is_read_as_from_json_reads_it_and_judged_as_in_python(spark):
    chance = random.Random(5)
    texts = [text.encode() for text in (*ORDINARY, *ODD)]
    texts += [damaged(chance, chance.choice((*ORDINARY, *ODD))) for _ in range(5_000)]
    fit = check_reading(spark, Free, [text for text in texts if len(text) < 900])
    assert 200 < fit < len(texts) - 500


def test_values_of_every_type_are_judged_as_in_python(spark):
    chance = random.Random(6)
    texts = [text.encode() for text in VALUES]
    texts += [damaged(chance, chance.choice(VALUES)) for _ in range(4_000)]
    assert check_reading(spark, Everything, texts) > len(VALUES) // 5


def test_types_that_are_not_known_are_left_to_from_json(spark):
    assert json_reader.column(spark, columns(Listed), "NULL", record_parser.TEXTS) is None
    assert check_reading(spark, Listed, [b'{"many":[1,2]}', b'{"many":[1,null]}', b'{"many":1}']) == 1


def test_every_row_is_written_as_to_json_writes_it(spark):
    chance = random.Random(7)
    letters = 'a"\\/ \n\t\b\f\r\x01\x1f\x7fä€😀<\u2028'
    doubles = [None, 0.0, -0.0, 1.5, 1e300, 5e-324, float("nan"), float("inf"), float("-inf")]
    longs = [None, 0, -1, 2**63 - 1, -(2**63)]
    year_10000, year_1 = 253_402_300_800_000_000, -62_135_596_800_000_000

    def row() -> tuple:
        return (
            chance.choice([None, "".join(chance.choices(letters, k=chance.randrange(9)))]),
            chance.choice([*doubles, chance.random() * 10 ** chance.randint(-20, 20)]),
            chance.choice([*longs, chance.randrange(10**12)]),
            chance.choice([None, True, False]),
            chance.choice([None, year_10000, year_1 - 1, year_1, chance.randrange(2 * 10**15)]),
            chance.choice([None, chance.randrange(-(2**31), 2**31)]),
        )

    kinds = '`a "b"` STRING, d DOUBLE, l BIGINT, b BOOLEAN, us BIGINT, i INT'
    frame = spark.createDataFrame([row() for _ in range(3_000)], kinds).selectExpr(
        "*",
        "timestamp_micros(us) AS t",
        "CAST(timestamp_micros(us) AS TIMESTAMP_NTZ) AS plain",
        "named_struct('start', timestamp_micros(us), 'end', timestamp_micros(us)) AS window",
        "IF(b, NULL, named_struct('k', l, 'j', named_struct('z', d))) AS inner",
        "CAST(unhex('ff41') AS STRING) AS broken",
        "CAST(i AS DECIMAL(20, 2)) AS cents",
        "l AS _hidden",
        "b AS _gone",
    )
    view = View("rows", ("i",), {})

    ours = json_writer.value(frame, view)
    theirs = wire.expressions(frame.schema, view)[1]
    both = frame.select(F.expr(theirs).alias("theirs"), ours.alias("ours")).cache()

    assert both.where("NOT (theirs <=> ours)").collect() == []
    assert both.where("ours IS NOT NULL").count() > 1_000
    assert both.where("contains(ours, '+1000')").count() == 0
    assert both.where("contains(ours, '9999-12-31T23:59:59.999999Z')").count() > 100
