"""JSON writer: rows as JSON, by our own class inside Spark (``jvm/JsonWriter.java``) or by ``to_json``."""

from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.declare.spec import View
from headwater.pipeline.spark import catalyst
from headwater.pipeline.wire import wire

__all__ = ["value"]

KINDS: dict[type[DataType], int] = {
    StringType: 0,
    LongType: 1,
    DoubleType: 2,
    BooleanType: 3,
    TimestampType: 4,
    TimestampNTZType: 4,
    IntegerType: 6,
}
OBJECT = 5
"""The numbers of types in the Java class."""


def value(rows: DataFrame, view: View) -> Column:
    """The value of each row's record, as ``wire.expressions`` defines it."""
    row = wire.row_expression(rows.schema)
    shaped = rows.selectExpr(f"{row} AS row")
    kind = shaped.schema["row"].dataType
    if not _known(kind):
        return F.expr(wire.expressions(rows.schema, view)[1])
    spark = rows.sparkSession
    text, slow = catalyst.bound(shaped, wire.json_expression("row"))
    written = catalyst.invoked(spark, _writer(spark, kind, slow), "write", text, F.expr(row))
    return F.when(F.col(wire.GONE), None).otherwise(written) if wire.GONE in rows.columns else written


def _known(kind: DataType) -> bool:
    return type(kind) in KINDS or (
        isinstance(kind, StructType) and all(_known(field.dataType) for field in kind.fields)
    )


def _writer(spark: SparkSession, kind: StructType, slow: Any) -> Any:
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    text = catalyst.of(spark, "org.apache.spark.unsafe.types.UTF8String")
    writer = catalyst.of(spark, "headwater.JsonWriter")
    heads = gateway.new_array(text, len(kind))
    kinds = gateway.new_array(catalyst.of(spark, "int"), len(kind))
    objects = gateway.new_array(writer, len(kind))
    for place, field in enumerate(kind.fields):
        heads[place] = text.fromString(f"{',' if place else '{'}{msgspec.json.encode(field.name).decode()}:")
        kinds[place] = KINDS.get(type(field.dataType), OBJECT)
        if isinstance(field.dataType, StructType):
            objects[place] = _writer(spark, field.dataType, None)
    return writer(kind.simpleString(), heads, kinds, objects, slow)
