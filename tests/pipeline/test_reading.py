"""Records and rows as JSON: what our own classes read and write inside Spark is what Spark's functions do, for every text."""

import random
from datetime import datetime

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.graph import View
from headwater.pipeline import reading, source, wire, writing
from headwater.schema import columns

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


def test_every_record_is_read_as_from_json_reads_it(spark):
    chance = random.Random(5)
    texts: list[bytes | None] = [text.encode() for text in (*ORDINARY, *ODD)]
    texts += [damaged(chance, chance.choice((*ORDINARY, *ODD))) for _ in range(5_000)]
    frame = spark.createDataFrame([(text,) for text in [*texts, None]], "value BINARY")
    from_json = source._timed_row(columns(Outer), source.TEXTS)
    ours = reading.column(spark, columns(Outer), from_json, source.TEXTS)

    both = frame.select("value", F.expr(from_json).alias("theirs"), ours.alias("ours")).cache()

    assert both.where("NOT (theirs <=> ours) OR NOT (to_json(theirs) <=> to_json(ours))").collect() == []
    assert both.where("ours._corrupt IS NULL").count() > len(ORDINARY)
    assert both.where("ours._corrupt IS NOT NULL").count() > len(ODD) // 2


def test_types_that_are_not_known_are_left_to_from_json(spark):
    assert reading.column(spark, columns(Listed), "NULL", source.TEXTS) is None


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

    ours = writing.value(frame, view)
    theirs = wire.expressions(frame.schema, view)[1]
    both = frame.select(F.expr(theirs).alias("theirs"), ours.alias("ours")).cache()

    assert both.where("NOT (theirs <=> ours)").collect() == []
    assert both.where("ours IS NOT NULL").count() > 1_000
