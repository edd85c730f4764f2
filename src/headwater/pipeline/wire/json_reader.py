"""JSON reader: JSON records as rows, by our own class inside Spark (``jvm/JsonReader.java``).

Most of the cost of a query is reading JSON. Spark's ``from_json`` makes a parser for each record and keeps
the query from being compiled as one piece. This class reads ordinary records from their bytes, and leaves
all others to ``from_json``, so that the result is always the same. What ``from_json`` takes although a value
would change, such as a decimal with too many digits, ``jvm/JsonCheck.java`` refuses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.field_types import FieldType
from headwater.declare.schema import Column
from headwater.pipeline.spark import catalyst

__all__ = ["column"]

KINDS = {"STRING": 0, "BIGINT": 1, "DOUBLE": 2, "BOOLEAN": 3, "TIMESTAMP": 4}
OBJECT = 5
"""The numbers of types in the Java class."""


def column(
    spark: SparkSession,
    fields: Sequence[Column],
    from_json: str,
    texts: Mapping[str, str],
    judged: FieldType | None = None,
) -> SparkColumn | None:
    """A struct of these fields and one for records that do not fit, from the bytes of ``value``.

    ``from_json``: SQL for the same. Times are times in both; fields of other types in ``texts`` are texts.
    ``judged``: the type by which records are judged (``declare/judge.py``). Without it, None for types that
    only ``from_json`` reads.
    """
    reader_fields = _fields(fields, texts)
    if reader_fields is None and judged is None:
        return None
    kind, slow = catalyst.bound(spark.sql("SELECT CAST(NULL AS BINARY) AS value"), from_json)
    check = None
    if judged is not None:
        check = catalyst.of(spark, "headwater.JsonCheck")(msgspec.json.encode(judged).decode())
    reader = _reader(spark, reader_fields, kind.sql(), slow, check, width=len(fields))
    return catalyst.invoked(spark, reader, "read", kind, F.col("value"))


_ReaderFields = list[tuple[str, int, Any]]
"""Name, kind and inner fields."""


def _fields(fields: Sequence[Column], texts: Mapping[str, str]) -> _ReaderFields | None:
    reader_fields: _ReaderFields = []
    for field in fields:
        inner = None
        if field.kind in KINDS:
            number = KINDS[field.kind]
        elif field.kind in texts:
            number = KINDS["STRING"]
        elif field.nested and field.kind.startswith("STRUCT<"):
            number, inner = OBJECT, _fields(field.nested, {})
            if inner is None:
                return None
        else:
            return None
        reader_fields.append((field.name, number, inner))
    return reader_fields


def _reader(
    spark: SparkSession, reader_fields: _ReaderFields | None, about: str, slow: Any, check: Any, *, width: int
) -> Any:
    """The object that reads; without ``reader_fields`` it leaves every record to ``slow``."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    text = catalyst.of(spark, "org.apache.spark.unsafe.types.UTF8String")
    kind = catalyst.of(spark, "headwater.JsonReader")
    fields = reader_fields or []
    names = gateway.new_array(text, width if reader_fields is None else len(fields))
    kinds = gateway.new_array(catalyst.of(spark, "int"), len(fields))
    objects = gateway.new_array(kind, len(fields))
    for place in range(len(names)):
        names[place] = text.fromString("")
    for place, (name, number, inner) in enumerate(fields):
        names[place], kinds[place] = text.fromString(name), number
        if inner is not None:
            objects[place] = _reader(spark, inner, name, None, None, width=len(inner))
    return kind(about, names, kinds, objects, slow, check)
