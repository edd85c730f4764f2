"""Record parser: the columns of a record, from its JSON, and whether it is valid.

A record is valid if it is one JSON object in which every field has its type, to the last digit
(``declare/judge.py``), and no required field is missing or null. In a table a record without value is valid
too: it deletes the row of its key, whose columns are read from the text of the record's key.
"""

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.field_types import field_type
from headwater.declare.lateness import ARRIVAL
from headwater.declare.schema import Column
from headwater.declare.spec import Stream
from headwater.pipeline.tables.changelog import DELETED
from headwater.pipeline.wire import debezium, json_reader, wire
from headwater.pipeline.wire.wire import literal

__all__ = [
    "KEY",
    "OFFSET",
    "PARTITION",
    "TOPIC",
    "VALID",
    "VALUE",
    "WHERE",
    "kept_columns",
    "parse",
    "quoted",
]

TOPIC, PARTITION, OFFSET, KEY, VALUE = "_topic", "_partition", "_offset", "_record", "_value"
WHERE = (TOPIC, PARTITION, OFFSET)
OF_RECORD = {
    TOPIC: "topic",
    PARTITION: "partition",
    OFFSET: "offset",
    KEY: "key",
    VALUE: "value",
    DELETED: "value IS NULL",
    ARRIVAL: "timestamp",
}
"""Our names for the parts of a record: an event may have fields called topic, partition or value."""
PLAIN = {"timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"}
"""How views write times without a zone; they end in a Z too."""
TEXTS = {"TIMESTAMP": "try_cast({0} AS TIMESTAMP)"}
"""Types that are read as text first, and how the value is made from it.

Spark would read a number as seconds, and one record in milliseconds would move event time far into the
future.
"""
CORRUPT = "_corrupt"
VALID = "_valid"


def kept_columns(spec: Stream) -> list[str]:
    """The parts of a record that a stream or a table needs besides its value."""
    if spec.table:
        return [KEY, DELETED, PARTITION, OFFSET, ARRIVAL]
    own = [TOPIC] if spec.pattern is not None else []
    return [*own, ARRIVAL] if spec.time == ARRIVAL else own


def parse(raw: DataFrame, spec: Stream, kept: list[str]) -> DataFrame:
    """The event's columns, and whether the record is valid, for every record.

    ``inline`` keeps Spark from parsing again for each filter on the result.
    """
    fields = spec.columns
    if spec.envelope:
        raw = debezium.opened(raw, spec)
    own = [f"{OF_RECORD[name]} AS {name}" for name in kept]
    texts = TEXTS | ({"DATE": debezium.DATE} if spec.envelope else {})
    row = F.expr(_from_json(fields, texts))
    judged = None if spec.view else field_type(spec.type, lenient=bool(spec.envelope))
    own_reader = json_reader.column(raw.sparkSession, fields, _timed_row(fields, texts), texts, judged)
    unread = texts
    if own_reader is not None:
        row, unread = own_reader, {kind: sql for kind, sql in texts.items() if kind not in TEXTS}
    rows = raw.selectExpr("value", *own).select(*kept, F.inline(F.array(row)))
    typed = rows.selectExpr(*kept, *(_typed(field, unread) for field in fields), CORRUPT)
    present = [check for field in fields for check in _present(quoted(field.name), field)]
    valid = " AND ".join([f"{CORRUPT} IS NULL", *present])
    if spec.table:
        return _keyed(typed, spec, F.expr(valid), texts).drop(CORRUPT)
    names = [quoted(field.name) for field in fields]
    return typed.selectExpr(*kept, *names, f"{valid} AS {VALID}")


def _from_json(fields: tuple[Column, ...], texts: Mapping[str, str]) -> str:
    """SQL for the record's columns; nulls for text that is not an object."""
    text = "CAST(value AS STRING)"
    options = {"columnNameOfCorruptRecord": CORRUPT, **PLAIN}
    pairs = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in options.items())
    whole = f"IF(startswith(ltrim({text}), '{{'), {text}, '-')"
    return f"from_json({whole}, {literal(_parse_schema(fields, texts))}, map({pairs}))"


def _timed_row(fields: tuple[Column, ...], texts: Mapping[str, str]) -> str:
    """SQL for the same, with times converted from their texts."""
    parts = [
        f"{literal(field.name)}, {TEXTS.get(field.kind, '{0}').format(f'row.{quoted(field.name)}')}"
        for field in fields
    ]
    struct = f"named_struct({', '.join([*parts, f'{literal(CORRUPT)}, row.{CORRUPT}'])})"
    return f"transform(array({_from_json(fields, texts)}), row -> {struct})[0]"


def _keyed(typed: DataFrame, spec: Stream, valid: SparkColumn, texts: Mapping[str, str]) -> DataFrame:
    """The records of a table; a delete has the columns of its key, and is valid if these could be read.

    Key columns are converted from text as in rows: a delete that reads its key differently deletes nothing.
    """
    text = f"CAST({KEY} AS STRING)"
    if spec.view:  # its topic has keys that Headwater has written, including windows
        there = F.expr(f"{text} IS NOT NULL")
        return typed.withColumn(VALID, F.when(F.col(DELETED), there).otherwise(valid))
    kinds = {column.name: column.kind for column in spec.columns}
    if len(spec.key) == 1:
        whole, parts = F.expr(f"{text} IS NOT NULL"), [_lone(text)]
    else:
        array = f"from_json({text}, 'ARRAY<STRING>')"
        whole = F.expr(f"coalesce(size({array}) = {len(spec.key)}, false)")
        parts = [f"get({array}, {n})" for n in range(len(spec.key))]
    casts = {"BINARY": "try_to_binary({0}, 'base64')", **texts}
    read = {
        name: F.expr(casts.get(kinds[name], f"try_cast({{0}} AS {kinds[name]})").format(part))
        for name, part in zip(spec.key, parts, strict=True)
    }
    fits = (
        F.expr(part).isNull() | value.isNotNull() for part, value in zip(parts, read.values(), strict=True)
    )
    judged = typed.withColumn(
        VALID, F.when(F.col(DELETED), reduce(SparkColumn.__and__, fits, whole)).otherwise(valid)
    )
    keys = {
        name: F.when(F.col(DELETED), value).otherwise(F.col(quoted(name))) for name, value in read.items()
    }
    return judged.select(*[keys[n].alias(n) if n in keys else quoted(n) for n in judged.columns])


def _lone(text: str) -> str:
    """SQL for the only value of a key.

    Text that looks like an array may be one (``declare/schema.py``, key_text).
    """
    array = f"from_json({text}, 'ARRAY<STRING>')"
    is_array = f"{wire.like_array(text)} AND coalesce(size({array}) = 1, false)"
    return f"if({is_array}, get({array}, 0), {text})"


def _parse_schema(fields: tuple[Column, ...], texts: Mapping[str, str]) -> str:
    kinds = [f"{quoted(field.name)} {'STRING' if field.kind in texts else field.kind}" for field in fields]
    return ", ".join([*kinds, f"{CORRUPT} STRING"])


def _typed(field: Column, texts: Mapping[str, str]) -> str:
    column = name = quoted(field.name)
    if field.kind in texts:
        column = texts[field.kind].format(column)
    if field.default is not None:
        default = literal(f'{{"v":{field.default}}}')
        column = f"coalesce({column}, from_json({default}, {literal(f'v {field.kind}')}).v)"
    return f"{column} AS {name}"


def _present(column: str, field: Column) -> list[str]:
    """Conditions that a required field, and the required fields inside it, are present."""
    here = [f"{column} IS NOT NULL"] if field.required else []
    inner = [check for part in field.nested for check in _present(f"{column}.{quoted(part.name)}", part)]
    return [*here, *(inner if field.required else [f"({column} IS NULL OR {check})" for check in inner])]


def quoted(name: str) -> str:
    return f"`{name}`"
