"""What a view's state depends on is structure, not text: which changes of a query are refused, and which are not, decided on plans."""

import time
from functools import reduce

import pytest
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from pipeline.plans import defined, refusal

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:Cannot infer the eval type:UserWarning"),
]
PAIR = {"on": "user", "time": ("at", "seen"), "within": "1 minute"}


def bucket(size):
    def of(number: int) -> int:
        return number // size

    return F.udf(of, "bigint")


def pandas_bucket(size):
    return F.pandas_udf(lambda numbers: numbers // size, "bigint")


def mapped(size):
    def batches(parts):
        for part in parts:
            yield part.assign(user=part.user // size)

    return batches


def right(users, n):
    return users.select(F.col("id").alias("user"), (F.col("age") * n).alias("age"))


STATEFUL = {
    "a filter of a table, before hw.group": (
        "country",
        lambda n: lambda users: hw.group(users.where(F.col("age") >= n), "country", n=F.count("*")),
    ),
    "a filter of a table, before GROUP BY": (
        "country",
        lambda n: f"SELECT country, count(*) AS n FROM users WHERE age >= {n} GROUP BY country",
    ),
    "a filter of a table, before a join": (
        "id",
        lambda n: lambda orders, users: hw.join(orders, right(users.where(F.col("age") >= n), 1), on="user"),
    ),
    "a filter of a table, after a join": (
        "id",
        lambda n: f"SELECT o.id, u.name FROM orders o JOIN users u ON o.user = u.id WHERE u.age >= {n}",
    ),
    "a filter of a table that is only shown": (
        "id",
        lambda n: f"SELECT id, name FROM users WHERE age >= {n}",
    ),
    "HAVING over a table": (
        "country",
        lambda n: f"SELECT country, count(*) AS n FROM users GROUP BY country HAVING count(*) > {n}",
    ),
    "a column of the left of a join": (
        "id",
        lambda n: (
            lambda orders, users: hw.join(
                orders.select("id", "user", (F.col("cents") * n).alias("cents")), right(users, 1), on="user"
            )
        ),
    ),
    "a column of the right of a join": (
        "id",
        lambda n: lambda orders, users: hw.join(orders, right(users, n), on="user"),
    ),
    "a column of the right of a join of groups": (
        "id",
        lambda n: (
            lambda orders, users: hw.join(
                hw.group(orders, "user", id=F.max("id")),
                hw.group(right(users, n), "user", age=F.max("age")),
                on="user",
            )
        ),
    ),
    "the code of a function on the right of a join": (
        "id",
        lambda n: (
            lambda orders, users: hw.join(
                orders, users.select(F.col("id").alias("user"), bucket(n)("age").alias("b")), on="user"
            )
        ),
    ),
    "the code of a function, before hw.group": (
        "b",
        lambda n: lambda users: hw.group(users.select(bucket(n)("age").alias("b")), "b", n=F.count("*")),
    ),
    "the code of a function, before groupBy": (
        "b",
        lambda n: lambda clicks: clicks.groupBy(bucket(n)("user").alias("b")).count(),
    ),
    "the code of a pandas function": (
        "b",
        lambda n: lambda clicks: clicks.groupBy(pandas_bucket(n)("user").alias("b")).count(),
    ),
    "the code of mapInPandas": (
        "user",
        lambda n: (
            lambda clicks: clicks.select("user").mapInPandas(mapped(n), "user bigint").groupBy("user").count()
        ),
    ),
    "what explode makes of a stream": (
        "word",
        lambda n: (
            f"SELECT word, count(*) AS n FROM clicks LATERAL VIEW explode(split(text, '{n}')) AS word GROUP BY word"
        ),
    ),
    "what explode makes of a table": (
        "word",
        lambda n: (
            f"SELECT word, count(*) AS n FROM users LATERAL VIEW explode(split(name, '{n}')) AS word GROUP BY word"
        ),
    ),
    "the second branch of a union": (
        "k",
        lambda n: (
            lambda clicks, seens: (
                clicks.select(F.col("user").alias("k"), F.lit(1).alias("x"))
                .union(seens.select(F.col("user").alias("k"), (F.col("n") * n).cast("int").alias("x")))
                .groupBy("k")
                .agg(F.sum("x").alias("x"))
            )
        ),
    ),
    "a column of the right of a match": (
        ["id", "n"],
        lambda n: (
            lambda clicks, seens: hw.match(
                clicks.select("id", "user", "at"),
                seens.select("user", "seen", (F.col("n") * n).alias("n")),
                **PAIR,
            )
        ),
    ),
    "a column of the right of a left match": (
        ["id", "n"],
        lambda n: (
            lambda clicks, seens: hw.match(
                clicks.select("id", "user", "at"),
                seens.select("user", "seen", (F.col("n") * n).alias("n")),
                how="left",
                **PAIR,
            )
        ),
    ),
    "a column of the table of an enrichment": (
        "id",
        lambda n: lambda clicks, users: hw.enrich(clicks, right(users, n), on="user"),
    ),
    "a literal that is grouped by": (
        "k",
        lambda n: f"SELECT text = '{n}' AS k, count(*) AS n FROM clicks GROUP BY text = '{n}'",
    ),
    "the body of a lambda that is grouped by": (
        "k",
        lambda n: (
            lambda clicks: (
                clicks.select(
                    F.transform(F.split("text", " "), lambda x: x == f"{n}").cast("string").alias("k")
                )
                .groupBy("k")
                .count()
            )
        ),
    ),
    "the order of two sums": (
        "user",
        lambda n: (
            f"SELECT user, {'sum(id) AS a, sum(n) AS b' if n == 1 else 'sum(n) AS b, sum(id) AS a'} FROM seens GROUP BY user"
        ),
    ),
    "which of two sums of a subquery is used": (
        "user",
        lambda n: (
            f"SELECT user, {'a' if n == 1 else 'b'} AS s FROM (SELECT user, sum(id) AS a, sum(n) AS b FROM seens GROUP BY user)"
        ),
    ),
    "which columns a join of streams keeps": (
        "id",
        lambda n: (
            f"""SELECT c.id, s.{"n" if n == 1 else "id"} AS x FROM clicks c JOIN seens s
                ON c.user = s.user AND s.seen BETWEEN c.at AND c.at + INTERVAL 1 MINUTE"""
        ),
    ),
    "SELECT DISTINCT of a stream": ("k", lambda n: f"SELECT DISTINCT user % {n} AS k FROM clicks"),
    "a common table expression": (
        "k",
        lambda n: f"WITH c AS (SELECT user % {n} AS k FROM clicks) SELECT k, count(*) AS n FROM c GROUP BY k",
    ),
    "what the key is made of": ("k", lambda n: f"SELECT user % {n} AS k, text FROM clicks"),
    "the order in which streams are read": (
        "id",
        lambda n: (
            lambda clicks, seens: reduce(
                lambda a, b: a.union(b), [clicks.select("id"), seens.select("id")][:: 1 if n == 1 else -1]
            )
        ),
    ),
}
VALUES = {
    "what explode makes of a stream": (" ", ","),
    "what explode makes of a table": (" ", ","),
    "a filter of a table, before hw.group": (18, 21),
    "a literal that is grouped by": ("#1", "#2"),
}


@pytest.mark.parametrize("case", STATEFUL)
def test_a_change_of_what_state_depends_on_is_refused(spark, case):
    key, made = STATEFUL[case]
    one, two = VALUES.get(case, (1, 2))
    before, again, now = (defined(spark, made(value), key) for value in (one, one, two))
    assert refusal(before, again) == ""
    assert before.digest == again.digest
    assert "headwater view rebuild v" in refusal(before, now)
    assert before.digest != now.digest


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("#1", "#2"),
        ("@ac", "@be"),
        ("123e4567-e89b-12d3-a456-426655440000", "00000000-e89b-12d3-a456-426655440000"),
    ],
)
def test_a_literal_that_looks_like_a_number_of_spark_counts(spark, one, two):
    query = "SELECT CASE WHEN text = '{0}' THEN 1 ELSE 0 END AS k, count(*) AS n FROM clicks GROUP BY 1"
    assert "steps changed" in refusal(*(defined(spark, query.format(each), "k") for each in (one, two)))


FREE = {
    "a filter of a stream, before groupBy": (
        "user",
        lambda n: f"SELECT user, count(*) AS n FROM clicks WHERE id > {n} GROUP BY user",
    ),
    "a filter of a stream, before hw.group": (
        "user",
        lambda n: lambda clicks: hw.group(clicks.where(F.col("id") > n), "user", n=F.count("*")),
    ),
    "a filter of the stream that meets a table": (
        "id",
        lambda n: lambda clicks, users: hw.join(clicks.where(F.col("id") > n), right(users, 1), on="user"),
    ),
    "a filter of the stream that is enriched": (
        "id",
        lambda n: lambda clicks, users: hw.enrich(clicks.where(F.col("id") > n), right(users, 1), on="user"),
    ),
    "a filter of one side of a stream that is matched with itself": (
        ["id", "other"],
        lambda n: (
            lambda clicks: hw.match(
                clicks.select("id", "user", "at").where(F.col("id") > n),
                clicks.select(F.col("id").alias("other"), "user", F.col("at").alias("seen")),
                **PAIR,
            )
        ),
    ),
    "a filter of a stream that is only shown": (
        "id",
        lambda n: f"SELECT id, text FROM clicks WHERE id > {n}",
    ),
    "a column of a stream that is only shown": ("id", lambda n: f"SELECT id, user * {n} AS x FROM clicks"),
    "a column of a table that is only shown": ("id", lambda n: f"SELECT id, age * {n} AS x FROM users"),
    "a column that is shown of a join": (
        "id",
        lambda n: f"SELECT o.id, u.age * {n} AS x FROM orders o JOIN users u ON o.user = u.id",
    ),
    "what is shown of an aggregate": (
        "user",
        lambda n: f"SELECT user, count(*) * {n} AS n FROM clicks GROUP BY user",
    ),
    "the name of an aggregate": (
        "user",
        lambda n: f"SELECT user, count(*) AS n{n} FROM clicks GROUP BY user",
    ),
    "HAVING over a stream": (
        "user",
        lambda n: f"SELECT user, count(*) AS n FROM clicks GROUP BY user HAVING count(*) > {n}",
    ),
    "the code of a function that is only shown": (
        "id",
        lambda n: lambda clicks: clicks.select("id", bucket(n)("user").alias("b")),
    ),
    "what explode makes that is only shown": (
        "id",
        lambda n: f"SELECT id, part FROM clicks LATERAL VIEW explode(split(text, '{n}')) AS part",
    ),
}


@pytest.mark.parametrize("case", FREE)
def test_a_filter_of_a_stream_and_what_is_only_shown_may_change(spark, case):
    key, made = FREE[case]
    before, now = (defined(spark, made(value), key) for value in (1, 2))
    assert refusal(before, now) == ""
    assert before.digest != now.digest


SAME = {
    "a lambda": (
        lambda clicks: (
            clicks.select(
                F.transform(F.split("text", " "), lambda x: F.concat(x, x)).cast("string").alias("k")
            )
            .groupBy("k")
            .count()
        ),
        lambda clicks: (
            clicks.select(
                F.transform(F.split("text", " "), lambda w: F.concat(w, w)).cast("string").alias("k")
            )
            .groupBy("k")
            .count()
        ),
        "k",
    ),
    "a select in two steps": (
        lambda users: hw.group(users.select((F.col("age") + 1).alias("x"), "country"), "x", n=F.count("*")),
        lambda users: hw.group(
            users.withColumn("y", F.col("age") + 1).select(F.col("y").alias("x"), "country"),
            "x",
            n=F.count("*"),
        ),
        "x",
    ),
    "two filters of a table, as one": (
        lambda users: hw.group(users.where("age > 3").where("id > 2"), "country", n=F.count("*")),
        lambda users: hw.group(users.where("id > 2 AND age > 3"), "country", n=F.count("*")),
        "country",
    ),
    "SQL and DataFrames": (
        "SELECT user, count(*) AS n FROM clicks GROUP BY user",
        lambda clicks: clicks.groupBy("user").agg(F.count("*").alias("n")),
        "user",
    ),
    "an expression that is used twice": (
        "SELECT user, count(*) AS n FROM seens WHERE n BETWEEN 1 AND 9 GROUP BY user, nullif(n BETWEEN 2 AND 5, true)",
        "SELECT user, count(*) AS n FROM seens WHERE n BETWEEN 1 AND 9 GROUP BY user, nullif(n BETWEEN 2 AND 5, true)",
        "user",
    ),
    "an aggregate of a subquery that is not used": (
        "SELECT user, a FROM (SELECT user, sum(id) AS a FROM seens GROUP BY user)",
        "SELECT user, a FROM (SELECT user, sum(id) AS a, sum(n) AS b FROM seens GROUP BY user)",
        "user",
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_the_same_query_written_differently_is_the_same(spark, case):
    one, two, key = SAME[case]
    before, now = defined(spark, one, key), defined(spark, two, key)
    assert refusal(before, now) == ""
    assert before.digest == now.digest


def test_partitions_of_a_topic_are_not_part_of_a_definition(spark):
    query = "SELECT user, window(at, '1 minute') AS window, count(*) AS n FROM clicks GROUP BY 1, 2"
    few, many = (defined(spark, query, ["user", "window"], partitions=count) for count in (2, 40))
    assert refusal(few, many) == ""


def test_stragglers_that_are_waited_for_longer_change_no_state(spark):
    query = "SELECT user, window(at, '1 minute') AS window, count(*) AS n FROM clicks GROUP BY 1, 2"
    before, now = (
        defined(spark, query, ["user", "window"], **late)
        for late in ({}, {"late": hw.late.correct("1 hour")})
    )
    assert refusal(before, now) == ""


def test_views_with_lambdas_that_are_built_before_change_nothing(spark):
    """Spark numbers the variables of lambdas by a counter of its process."""

    def shown(clicks):
        return clicks.select("id", F.transform(F.split("text", " "), lambda x: F.concat(x, x)).alias("t"))

    def grouped(clicks):
        words = F.transform(
            F.split("text", " "), lambda x: F.transform(F.split(x, ""), lambda y: F.concat(x, y))
        )
        return clicks.select(words.cast("string").alias("k")).groupBy("k").count()

    alone = defined(spark, shown, "id"), defined(spark, grouped, "k")
    for _ in range(3):
        defined(spark, grouped, "k")
    later = defined(spark, shown, "id"), defined(spark, grouped, "k")
    assert [each.digest for each in alone] == [each.digest for each in later]
    assert [refusal(before, now) for before, now in zip(alone, later, strict=True)] == ["", ""]


class Unreadable:
    """What only workers can read."""

    def __reduce__(self):
        return _elsewhere, ()


def _elsewhere():
    raise OSError("there is no such file here")


def test_a_function_that_the_driver_cannot_read_is_its_bytes(spark):
    thing = Unreadable()

    def view(n):
        code = F.udf(lambda x: (x, thing, n)[0], "bigint")
        return lambda clicks: clicks.groupBy(code("user").alias("b")).count()

    one, again, two = (defined(spark, view(n), "b") for n in (1, 1, 2))
    assert refusal(one, again) == ""
    assert "steps changed" in refusal(one, two)


def large(spark, n):
    """More than Spark sends with a function."""
    table = "x" * 2_000_000
    return F.udf(lambda x: (x, table, n)[0], "bigint")


def sharing(spark, n):
    shared = spark.sparkContext.broadcast([n])
    return F.udf(lambda x: x + shared.value[0], "bigint")


@pytest.mark.parametrize("function", [large, sharing])
def test_the_code_of_a_large_function_and_a_broadcast_variable_count(spark, function):
    def view(n):
        code = function(spark, n)
        return lambda clicks: clicks.groupBy(code("user").alias("b")).count()

    one, again, two = (defined(spark, view(n), "b") for n in (1, 1, 2))
    assert refusal(one, again) == ""
    assert "steps changed" in refusal(one, two)


def test_a_long_expression_and_a_long_chain_of_selects_are_read(spark):
    total = reduce(lambda a, b: a + b, [F.col("user") * n for n in range(100)])
    tests = reduce(lambda a, b: a & b, [F.col("id") != n for n in range(100)])

    def view(users, clicks):
        rows = clicks
        for n in range(100):
            rows = rows.withColumn(f"c{n}", F.col("id") + n)
        rows = rows.where(tests).select("id", "user", total.alias("total"), "c99")
        return hw.join(rows, right(users, 1), on="user")

    assert refusal(defined(spark, view, "id"), defined(spark, view, "id")) == ""


def test_a_column_that_is_doubled_again_and_again_takes_no_longer_each_time(spark):
    def view(clicks):
        rows = clicks
        for _ in range(40):
            rows = rows.withColumn("user", F.coalesce(F.col("user") + F.col("user"), F.lit(1)))
        return rows.groupBy("user").count()

    began = time.monotonic()
    assert refusal(defined(spark, view, "user"), defined(spark, view, "user")) == ""
    assert time.monotonic() - began < 60
