"""Reading: records of JSON as rows, by a class of our own inside Spark (``jvm/JsonReader.java``).

Most of what a query costs is to read JSON. Spark's own ``from_json`` makes a parser for each record and keeps the query from being compiled
as one; this reads ordinary records from their bytes, and asks ``from_json`` about all others. So both say the same of every record.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headwater.pipeline import catalyst
from headwater.schema import Column

__all__ = ["column"]

KINDS = {"STRING": 0, "BIGINT": 1, "DOUBLE": 2, "BOOLEAN": 3, "TIMESTAMP": 4}
OBJECT = 5
"""What the class calls them."""


def column(
    spark: SparkSession, fields: Sequence[Column], from_json: str, texts: Mapping[str, str]
) -> SparkColumn | None:
    """A struct of these fields, and of one more for records that do not fit, from the bytes of ``value``; None for types that it does not know.

    ``from_json`` is SQL for the same. Times are times in both; other fields of the kinds in ``texts`` are texts.
    """
    known = _fields(fields, texts)
    if known is None:
        return None
    kind, slow = catalyst.bound(spark.sql("SELECT CAST(NULL AS BINARY) AS value"), from_json)
    reader = _reader(spark, known, kind.sql(), slow)
    return catalyst.invoked(spark, reader, "read", kind, F.col("value"))


_Known = list[tuple[str, int, Any]]
"""Name, kind and inner fields."""


def _fields(fields: Sequence[Column], texts: Mapping[str, str]) -> _Known | None:
    found: _Known = []
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
        found.append((field.name, number, inner))
    return found


def _reader(spark: SparkSession, fields: _Known, about: str, slow: Any) -> Any:
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    text = catalyst.of(spark, "org.apache.spark.unsafe.types.UTF8String")
    kind = catalyst.of(spark, "headwater.JsonReader")
    names = gateway.new_array(text, len(fields))
    kinds = gateway.new_array(spark._jvm.int, len(fields))  # noqa: SLF001
    objects = gateway.new_array(kind, len(fields))
    for place, (name, number, inner) in enumerate(fields):
        names[place], kinds[place] = text.fromString(name), number
        if inner is not None:
            objects[place] = _reader(spark, inner, name, None)
    return kind(about, names, kinds, objects, slow)
