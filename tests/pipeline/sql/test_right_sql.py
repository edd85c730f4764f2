"""What the checks without Spark must accept (``tests/declare/test_right_sql.py``) is what Spark itself accepts."""

import pytest
from pyspark.errors import PySparkException

from declare.test_right_sql import FIRST, RIGHT
from headwater.declare.sql_scan import expanded, travels
from headwater.declare.substitute import OPERATORS

ORDERS = (
    "order_id bigint, customer_id bigint, country string, total double, tags array<string>,"
    " parts array<struct<sku string, price double, total string>>,"
    " part struct<sku string, price double, total string>, at timestamp"
)
INPUTS = {
    "orders": ORDERS,
    "refunds": "order_id bigint, amount double, at timestamp",
    "customers": "id bigint, name string, rate double",
}


@pytest.fixture(scope="module")
def planned(spark):
    """The inputs as empty tables."""
    for name, schema in INPUTS.items():
        spark.createDataFrame([], schema).createOrReplaceTempView(name)
    spark.sql(FIRST[0]).createOrReplaceTempView("v1")
    yield spark
    for name in [*INPUTS, "v1"]:
        spark.catalog.dropTempView(name)


@pytest.mark.spark
def test_spark_accepts_every_query_that_the_checks_must_accept(planned):
    refused = {}
    for query, key in RIGHT:
        if expanded(query, OPERATORS)[1] or travels("a view", query)[1]:
            continue  # these are ours
        try:
            rows = planned.sql(query)
        except PySparkException as error:
            refused[query] = " ".join(str(error).split())[:200]
        else:
            columns = {name.lower() for name in rows.columns}
            if not {name.lower() for name in key.split(", ")} <= columns:
                refused[query] = f"its columns are {rows.columns}"
    assert not refused, "\n".join(f"{query}: {why}" for query, why in refused.items())
