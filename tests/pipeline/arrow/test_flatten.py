"""Structs on their way into Python: what comes out is what went in, in fewer columns."""

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headwater.pipeline.arrow.flatten import spread
from headwater.pipeline.operator.two_inputs import pair

pytestmark = pytest.mark.spark

ORDERS = (
    "id INT, at STRUCT<start: TIMESTAMP, place: STRUCT<city: STRING, zip: INT>>, note STRING, sure BOOLEAN"
)


def travelled(rows):
    """The rows of a frame after their way into Python and back, and how many columns they went in."""
    columns, together = spread(rows.schema)
    kind = rows.schema

    def through(batches):
        for batch in batches:
            found = together.gathered(batch)
            for name in found.schema.names:  # a null struct has only null fields
                column = found.column(name)
                if pa.types.is_struct(column.type):
                    assert all(each.filter(column.is_null()).null_count == column.null_count for each in column.flatten())  # fmt: skip
            yield found

    return rows.selectExpr(*columns).mapInArrow(through, kind), len(columns)


def test_structs_come_back_with_their_nulls_at_every_depth(spark):
    rows = spark.createDataFrame(
        [
            (1, (None, ("Bern", 3000)), "a", True),
            (2, (None, None), None, None),
            (3, None, "c", False),
            (4, (None, (None, None)), "", True),
        ],
        ORDERS,
    )
    back, _ = travelled(rows)
    assert sorted(back.collect(), key=repr) == sorted(rows.collect(), key=repr)
    assert {row.id: row.at for row in back.collect()}[3] is None


def test_both_sides_of_a_pair_come_back_from_the_columns_that_they_share(spark):
    left = spark.createDataFrame(
        [(1, (None, ("Bern", 3000)), "a", True), (None, (None, None), None, None)], ORDERS
    )
    right = spark.createDataFrame(
        [(1, "x", None, 2.5), (2, None, "z", None)], "key INT, name STRING, more STRING, share DOUBLE"
    )
    both, _ = pair("join", left, right, {"id": "key"})
    back, columns = travelled(both)
    assert sorted(back.collect(), key=repr) == sorted(both.collect(), key=repr)
    apart = 1 + len(_leaves(both.schema["_left"].dataType)) + 1 + len(right.columns)
    assert (
        columns == len(both.columns) - 2 + apart - 3 - 1
    )  # id and key, note and name, city and more; one flag


def test_names_with_signs_and_columns_beside_them_are_kept(spark):
    rows = spark.createDataFrame(
        [((1, 2, 3), 4)], "ab STRUCT<`x``y`: INT, `c/d`: INT, `e.f`: INT>, `a/b` INT"
    )
    back, _ = travelled(rows)
    assert back.collect() == rows.collect()


def test_a_column_that_only_makes_the_key_is_not_sent(spark):
    rows = spark.range(2).selectExpr("id", "'x' AS _id")
    columns, together = spread(rows.schema, without=("_id",))
    assert columns == ["`id` AS `id`"]
    assert together.gathered(pa.record_batch({"id": [1], "_key": ["x"]})).schema.names == ["id", "_key"]


def _leaves(kind):
    return [
        each
        for field in kind.fields
        for each in ([field.name, *_leaves(field.dataType)] if isinstance(field.dataType, StructType) else [field.name])
    ]  # fmt: skip
