"""Views in Python that may be right: the checks that run without Spark leave every one of them to Spark."""

import pytest

import headwater as hw
from headwater.declare.app import App

HEADER = """
import enum
import functools
import types
from datetime import datetime
from pyspark.sql import Window, functions as F
from pyspark.sql.types import StringType
import headwater as hw

app = hw.App("shop")

class Part(hw.Event):
    sku: str
    price: float
    total: str

class Order(hw.Event):
    order_id: int
    customer_id: int
    country: str
    total: float
    tags: list[str]
    parts: list[Part]
    part: Part
    at: datetime

class Refund(hw.Event):
    order_id: int
    amount: float
    at: datetime

class Customer(hw.Row):
    id: int
    name: str

app.stream("orders", Order, key="order_id", time="at")
app.stream("refunds", Refund, key="order_id", time="at")
app.table("customers", Customer, key="id")

class Names:
    LAND = "country"
    AMOUNT = "total"

class Column(enum.Enum):
    LAND = "country"

BY_NAME = {"land": "country"}
SPACE = types.SimpleNamespace(LAND="country")

class Own:
    def over(self, name): return F.lit(name)
    def where(self, text): return text

def with_land(function):
    @functools.wraps(function)
    def wrapper(orders):
        return function(orders.withColumn("land", F.upper("country")))
    return wrapper

def with_id(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs).withColumn("id", F.concat_ws("/", "country", "customer_id"))
    return wrapper

def plain(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

def with_floor(function):
    @functools.wraps(function)
    def wrapper(orders):
        return function(orders, floor=3)
    return wrapper

def large(orders, floor):
    return orders.where(F.col("total") > floor)

class Callable:
    def __call__(self, orders):
        return orders.select("order_id")
"""


def view(
    body: str, key: str = "order_id", parameters: str = "orders", decorator: str = "", **options: object
) -> str:
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"@app.view(key={key!r}{given})\n{decorator}\ndef v({parameters}):\n{lines}\n"


def returned(rows: str, key: str = "order_id", parameters: str = "orders", **options: object) -> str:
    return view(f"return {rows}", key, parameters, **options)


FILTERS = {
    "a column that select left out": returned('orders.select("order_id").where(F.col("total") > 1)'),
    "a column that drop left out": returned('orders.drop("total").filter(F.col("total") > 1)'),
    "a column that an alias hides": returned('orders.select(F.col("total").alias("t"), "order_id").where(F.col("total") > 1)'),
    "a column that was renamed": returned('orders.withColumnRenamed("total", "t").where(F.col("total") > 1)'),
    "two filters after select": returned('orders.select("order_id").where(orders["total"] > 1).where(F.col("country") == "DE")'),
    "an aggregate that is not selected": returned('orders.groupBy("country").agg(F.count("*").alias("n")).where(F.sum("total") > 1)', "country"),
    "rows of another query": returned('orders.where(F.col("order_id").isin(1) | (refunds.where(F.col("amount") > 1) is None))', parameters="orders, refunds"),
}  # fmt: skip
NAMES = {
    "a name in a class": returned('orders.groupBy(Names.LAND).agg(F.sum(Names.AMOUNT).alias("r"))', "country"),
    "a name in a dict": returned('orders.groupBy(BY_NAME["land"]).agg(F.sum("total").alias("r"))', "country"),
    "a name in an enum": returned('orders.groupBy(Column.LAND.value).agg(F.sum("total").alias("r"))', "country"),
    "a name in a namespace": returned('orders.select("order_id", SPACE.LAND).groupBy("country").count()', "country"),
    "a name for an operator": returned("hw.count(orders, Names.LAND)", "country"),
    "a name in a local dict": view('names = {"land": "country"}\nreturn orders.select(names["land"])', "country"),
    "a name that is dropped": returned("orders.drop(Names.AMOUNT, SPACE.LAND)"),
    "all columns by their names": returned("orders.select(orders.columns)"),
    "a field of a column in a variable": view('part = F.col("part")\nreturn orders.select("order_id", part.sku)'),
    "a field in brackets": returned('orders.select(orders.part["total"], "order_id").withColumnRenamed("part.total", "x")', "x"),
    "a field of a struct has a type of its own": returned('orders.select(F.col("part.total"), "order_id")', "total"),
    "a field that drop does not know": returned('orders.drop("part.total").groupBy("total", "country").count()', "country"),
    "a column of others that is dropped": returned('orders.drop(refunds["order_id"])', parameters="orders, refunds"),
    "an alias that is used at once": returned('orders.select(F.upper("country").alias("c"), "c", "order_id")', "c"),
    "an alias of a variable": view('c = F.upper("country").alias("c")\nreturn orders.select(c, "c", F.lower("c").alias("d"), "order_id")', "c"),
    "an alias in SQL": returned('orders.select(F.expr("upper(country) AS c"), "c", F.lower("c").alias("d"))', "c"),
    "columns from a list": view('wanted = [F.upper("country").alias("c")]\nreturn orders.select(*wanted, "c")', "c"),
    "a group in a list": returned('orders.groupBy(*[F.upper("country").alias("land")]).agg(F.max("land").alias("m"))', "land"),
}  # fmt: skip
CAPITALS = {
    "a column that is renamed": returned('orders.withColumnRenamed("Country", "land").groupBy("land").count()', "land"),
    "a column that is replaced": returned('orders.withColumn("TOTAL", F.col("total").cast("string"))', "total"),
    "a time that is replaced": returned('hw.latest(orders.withColumn("Country", F.to_timestamp("country")), "order_id", time="country")'),
    "a column that is dropped and made": returned('orders.drop("COUNTRY").withColumn("country", F.lit("x")).select("order_id", "country")'),
    "a column that is dropped and named": returned('orders.drop("TOTAL").select(F.upper("country").alias("total"), "order_id")', "total"),
    "columns of an operator": returned('hw.distinct(orders, "Order_Id", time="AT", within="1 hour")'),
}  # fmt: skip
DECORATORS = {
    "a decorator that adds a column first": view('return orders.groupBy("land").count()', "land", decorator="@with_land"),
    "a decorator that adds a column last": view('return orders.select("country", "customer_id")', "id", decorator="@with_id"),
    "a decorator that gives an argument": view('return orders.where(F.col("total") > floor)', parameters="orders, floor", decorator="@with_floor"),
    "a function of any inputs": view('return given["o"]', parameters="**given", inputs={"o": "orders"}),
    "a decorator that does not name the function": view('return orders.groupBy("country").count()', "country", decorator="@plain", inputs={"orders": "orders"}, name="v"),
    "a partial function": 'app.view(key="order_id")(functools.partial(large, floor=3))',
    "an object that can be called": 'app.view(key="order_id", name="v")(Callable())',
    "a parameter with a default value": returned('orders.where(F.col("total") > limit)', parameters="orders, limit=5"),
    "inputs beside a default value": view('return o.where(F.col("total") > limit)', parameters="o, limit=5", inputs={"o": "orders"}),
}  # fmt: skip
FOLLOWED = {
    "rows with missing columns": returned('orders.unionByName(refunds, allowMissingColumns=True).groupBy("order_id").agg(F.sum("amount").alias("a"))', parameters="orders, refunds"),
    "a union of two types": returned('orders.select("total").union(refunds.select(F.col("at").cast("string").alias("a")))', "total", "orders, refunds"),
    "a pivot": returned('orders.groupBy("country").pivot("customer_id", [1, 2]).count()', "country"),
    "grouping sets": returned('orders.groupingSets([["country"], []], "country").count()', "country"),
    "a table for transform": returned('orders.transform(lambda rows, names: hw.enrich(rows, names, on="customer_id = id"), customers)', parameters="orders, customers"),
    "an assignment in an expression": view('big = (orders := orders.withColumn("land", F.upper("country"))).where("total > 1")\nreturn orders.groupBy("land").count()', "land"),
    "a name of an exception": view('try:\n    n = 1\nexcept ValueError as orders:\n    n = orders["x"]\nreturn hw.count(rows, "order_id")', parameters="orders, rows", inputs={"orders": "orders", "rows": "refunds"}),
    "a lambda with the name of a module": returned('orders.select("order_id", F.transform("parts", lambda F: F.sku).alias("s"))'),
    "the time of an aggregate": returned('hw.latest(orders.groupBy("country").agg(F.max("at").alias("last")), "country", time="last")', "country"),
    "a group by an aggregate": returned('orders.groupBy(F.window("at", "1 hour"), "country").agg(F.max("customer_id").alias("top")).groupBy("window", "top").count()', "top", emit="ready"),
    "a function in SQL text": returned('orders.where("country not in (\'now()\')")'),
}  # fmt: skip
FUNCTIONS = {
    "a time that is given by name": returned('orders.select("order_id", F.unix_timestamp(timestamp=F.col("at")).alias("u"))'),
    "over of another object": returned('orders.select("order_id", Own().over("x"))'),
    "where of another object": view("own = Own()\nown.where(\"it's now()\")\nreturn orders"),
    "a UDF with a type": "up = F.udf(lambda text: text.upper(), StringType())\n" + returned('orders.select("order_id", up("country").alias("c"))', "c"),
}  # fmt: skip
RIGHT = FILTERS | NAMES | CAPITALS | DECORATORS | FOLLOWED | FUNCTIONS


def graph(tmp_path, code: str):
    (tmp_path / "app.py").write_text(HEADER + code)
    return App.load(str(tmp_path / "app.py")).graph()


@pytest.mark.parametrize("name", RIGHT)
def test_a_view_that_may_be_right_is_left_to_spark(tmp_path, name):
    assert graph(tmp_path, RIGHT[name]).views


def test_no_case_hides_another_one():
    assert len(RIGHT) == sum(map(len, (FILTERS, NAMES, CAPITALS, DECORATORS, FOLLOWED, FUNCTIONS)))


WRONG = {
    "a filter on a column of no step": (returned('orders.where(F.col("contry") == "DE")'), "no column 'contry'"),
    "a filter after a new column": (returned('orders.withColumn("x", F.lit(1)).where(F.col("contry") == "DE")'), "no column 'contry'"),
    "a selected column that select left out": (returned('orders.select("order_id").select("total")'), "no column 'total'"),
    "a column that is neither there nor given": (returned('orders.select(F.upper("country").alias("c"), "d")'), "no column 'd'"),
    "an aggregate of a column that is not there": (returned('orders.groupBy("country").agg(F.sum("totl").alias("s"))', "country"), "no column 'totl'"),
    "a renamed column": (returned('orders.withColumnRenamed("Country", "land").groupBy("country").count()'), "no column 'country'"),
    "a type that is left": (returned('orders.withColumn("TAX", F.lit(1))', "Total"), "has no exact text; got DOUBLE"),
    "a condition in SQL text with a clock": (view('big = orders.where("total > 1")\nreturn big.where("at > now()")'), "uses now()"),
    "a clock": (returned('orders.withColumn("u", F.unix_timestamp())'), "uses unix_timestamp()"),
    "a window function with an alias": (returned('orders.select("order_id", F.sum("total").over(Window.partitionBy("country")).alias("s"))'), "uses a window function"),
    "a method of rows with a table": (returned('orders.join(customers, F.col("customer_id") == F.col("id"))', parameters="orders, customers"), "takes no table"),
    "an input without a default value": (returned("orders", parameters="orders, limit"), "unknown input 'limit'"),
    "an object without a name": ('app.view(key="order_id")(Callable())', "a view's function has no name"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_view_is_still_refused(tmp_path, name):
    code, said = WRONG[name]
    with pytest.raises(hw.UsageError) as refused:
        graph(tmp_path, code)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "line", ['@F.udf("string")\ndef up(x): return x', '@F.pandas_udf("string")\ndef up(x): return x', 'BIG = F.col("a") > 1']
)  # fmt: skip
def test_spark_at_the_level_of_the_module_is_refused_with_its_line(tmp_path, line):
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        pytest.skip("Spark runs in this process already")
    with pytest.raises(hw.UsageError) as refused:
        graph(tmp_path, line)
    number = HEADER.count("\n") + 1
    assert "uses Spark while it is loaded, before Spark runs; got app.py, line" in str(refused.value)
    assert f"line {number}: {line.splitlines()[0]}" in str(refused.value)
    assert "give the type as StringType(), or make the column inside the view's function" in str(
        refused.value
    )
