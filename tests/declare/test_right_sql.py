"""SQL that Spark accepts is accepted by the checks without Spark, and what is surely wrong in it is refused."""

from datetime import datetime
from typing import Any

import pytest

import headwater as hw
from declare.right_sql import QUERIES
from headwater.declare.sql_scan import tables
from headwater.errors import UsageError


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
    rate: float


def graph(*queries: tuple[str, str], **options: Any) -> None:
    """The graph of an application with these queries, each with its key, as views ``v1``, ``v2`` …"""
    app = hw.App("shop")
    app.stream("orders", Order, key="order_id", time="at", delay="10 minutes")
    app.stream("refunds", Refund, key="order_id", time="at", delay="10 minutes")
    app.table("customers", Customer, key="id")
    for number, (query, key) in enumerate(queries, 1):
        app.sql(f"v{number}", query, key=key.split(", "), **options)
    app.graph()


ALIASES = [
    ("SELECT country AS land, count(*) AS n FROM orders GROUP BY land", "land"),
    ("SELECT o.country AS land, count(*) AS n FROM orders o GROUP BY land", "land"),
    ("SELECT part.sku AS s, count(*) AS n FROM orders GROUP BY s", "s"),
    ("SELECT part.sku, count(*) AS n FROM orders GROUP BY sku", "sku"),
    ("SELECT c.name AS nm, count(*) AS n FROM customers c GROUP BY nm", "nm"),
    ("SELECT order_id, country AS c, c AS d FROM orders", "order_id"),
    ("SELECT order_id, country AS c, upper(c) AS d FROM orders", "order_id"),
    (
        "SELECT order_id IS DISTINCT FROM 1 AS x, country AS land, count(*) AS n FROM orders GROUP BY x, land",
        "land",
    ),
    ("SELECT date_trunc('day', at) AS d, count(*) AS n FROM orders GROUP BY d", "d"),
    ("SELECT country LIKE SOME ('a%', 'b%') AS k, count(*) AS n FROM orders GROUP BY k", "k"),
    ("SELECT 1 AS a, total FROM orders UNION ALL SELECT id AS b, max(rate) FROM customers GROUP BY b", "a"),
    ("SELECT order_id, c AS d FROM (SELECT order_id, country AS c FROM orders)", "order_id"),
]
SOURCES = [
    ("SELECT order_id FROM orders WHERE country IN (SELECT col1 FROM VALUES ('DE'))", "order_id"),
    (
        "SELECT o.order_id, r.name FROM orders o JOIN VALUES ('DE', 'x') AS r(code, name) ON o.country = r.code",
        "order_id",
    ),
    ("SELECT o.order_id FROM orders o, VALUES (1) AS t(x)", "order_id"),
    ("SELECT o.order_id FROM VALUES (1) AS t(x), orders o", "order_id"),
    ("SELECT o.order_id, r.id AS i FROM orders o CROSS JOIN range(3) r", "order_id, i"),
    ("SELECT order_id FROM IDENTIFIER('orders')", "order_id"),
    ("SELECT order_id, IDENTIFIER('country') AS land FROM orders", "land"),
    ("SELECT Country, Sum(Total) AS S FROM ORDERS O WHERE o.TOTAL > 1 GROUP BY COUNTRY", "country"),
    ("SELECT COUNT, country FROM COUNT(ORDERS, key => 'country')", "country"),
    ("SELECT o.id, r.rate FROM v1 o JOIN CUSTOMERS FOR SYSTEM_TIME AS OF o.at AS r ON o.id = r.id", "id"),
    ("FROM orders SELECT upper(country) AS land, count(*) AS n GROUP BY land", "land"),
    ("TABLE orders", "order_id"),
    ("SELECT a, b FROM orders AS o(a, b, c, d, e, f, g, h)", "a"),
    ("SELECT o.a FROM orders o (a, b, c, d, e, f, g, h)", "a"),
    ("SELECT o.order_id, tag FROM orders o, LATERAL explode(o.tags) AS t(tag)", "order_id, tag"),
    (
        "SELECT o.order_id, name FROM orders o JOIN refunds r ON o.order_id = r.order_id, customers c",
        "order_id",
    ),
    ("SELECT n FROM sessions(orders, key=>'country', time=>'at', gap=>\"30 minutes\", n=>'count(*)')", "n"),
    ("SELECT order_id, x FROM orders o, LATERAL (SELECT upper(o.country) AS x)", "order_id"),
]
PIPES = [
    ("SELECT * FROM orders |> EXTEND lower(country) AS land, total AS t", "land"),
    ("FROM orders |> EXTEND upper(country) AS land |> AGGREGATE sum(total) AS s GROUP BY land", "land"),
    (
        "FROM orders |> JOIN refunds r USING (order_id) |> SELECT order_id, r.amount AS a |> WHERE (a > 1)",
        "order_id",
    ),
    (
        "FROM orders |> AS u |> SELECT u.order_id, country AS c |> UNION ALL (SELECT order_id, 'x' FROM refunds)",
        "order_id",
    ),
    ("FROM orders |> DROP country |> SET total = (total + 1)", "total"),
]
SCOPES = [
    ("SELECT order_id, transform(parts, o -> o.sku) AS skus FROM orders o", "order_id"),
    ("SELECT order_id, aggregate(parts, 0D, (a, o) -> a + o.price) AS s FROM orders o", "order_id"),
    ("SELECT i.order_id, exists(parts, i -> i.price > 1) AS x FROM orders i", "order_id"),
    (
        "WITH orders AS (SELECT country AS land FROM orders) SELECT land, count(*) AS n FROM orders GROUP BY land",
        "land",
    ),
    ("WITH orders AS (SELECT country AS land FROM orders r) SELECT orders.land FROM orders", "land"),
    ("WITH big (SELECT country AS land FROM orders), s (l) AS (TABLE big) SELECT l FROM s", "l"),
    (
        "SELECT * FROM (WITH orders AS (SELECT id FROM customers) SELECT id FROM orders) JOIN orders ON id = order_id",
        "id",
    ),
    ("SELECT o.sku, id FROM (SELECT order_id AS id, explode(o.parts) AS o FROM orders o)", "id"),
    (
        "WITH b AS (SELECT order_id, at AS current_date FROM orders) SELECT order_id, current_date FROM b",
        "order_id",
    ),
    ("SELECT o.dbl, o.country FROM (SELECT o.total * 2 AS dbl, o.country FROM orders o) o", "country"),
]
COLUMNS = [
    ("SELECT * EXCEPT (country), lower(country) AS land FROM orders", "land"),
    ("SELECT o.* EXCEPT (total), total AS amount FROM orders o", "amount"),
    ("SELECT part.total, order_id FROM orders", "total"),
    ("SELECT o.part.total, order_id FROM orders o", "total"),
    ("SELECT parts[0].total AS total FROM orders", "total"),
    ("SELECT order_id, parts.total FROM orders", "order_id"),
    ("SELECT part.total FROM orders UNION ALL SELECT name FROM customers", "total"),
]
WORDS = [
    (r"SELECT country, count(*) AS n FROM orders WHERE country <> r'\' GROUP BY country", "country"),
    (r'SELECT country, count(*) AS n FROM orders WHERE country <> R"\" GROUP BY country', "country"),
    (r"SELECT order_id, split(country, r'\s+') AS x FROM orders", "order_id"),
    ("SELECT country /* a /* b */ isn't */ , count(*) AS n FROM orders GROUP BY country", "country"),
    ("SELECT country -- isn't \\\n one either'\n FROM orders", "country"),
    ("SELECT order_id AS `a``b` FROM orders", "a`b"),
    ("SELECT order_id AS `größe`, country AS `über` FROM orders", "größe, über"),
    ("SELECT order_id, 'it''s FROM x' AS a, \"JOIN \\\" y\" AS b FROM orders", "order_id"),
]
RIGHT = [*ALIASES, *SOURCES, *PIPES, *SCOPES, *COLUMNS, *WORDS, *QUERIES]
FIRST = ("SELECT order_id AS id, country, at FROM orders", "id")


@pytest.mark.parametrize(("query", "key"), RIGHT, ids=[query for query, _ in RIGHT])
def test_a_query_that_spark_accepts_is_accepted(query, key):
    graph(FIRST, (query, key))


@pytest.mark.parametrize(
    ("upstream", "column"),
    [
        ("SELECT country, count(*) FROM orders GROUP BY country", "count(1)"),
        ("SELECT country, total DIV order_id FROM orders", "(total div order_id)"),
        ("SELECT country, at + INTERVAL 1 DAY FROM orders", "at + INTERVAL '1 DAY'"),
        ("SELECT country, first(total) IGNORE NULLS FROM orders GROUP BY country", "first(total)"),
        ("SELECT *, 1 AS x FROM orders |> EXTEND lower(country) AS land", "land"),
        ("SELECT * EXCEPT (total), 1 AS one FROM orders", "one"),
    ],
)
def test_a_view_may_read_a_column_that_spark_has_named(upstream, column):
    graph((upstream, "country"), (f"SELECT country, `{column}` AS n FROM v1", "country"))


WRONG = {
    "SELECT country AS land, count(*) AS n FROM orders GROUP BY lnd": "there is no column 'lnd'",
    "SELECT contry AS contry FROM orders": "there is no column 'contry'",
    "SELECT order_id, transform(parts, p -> p.sku) AS s, o.contry FROM orders o": "there is no column 'contry'",
    "SELECT order_id FROM orders o WHERE o.contry IN (SELECT 1 FROM VALUES (1))": "there is no column 'contry'",
    "SELECT order_id FROM orders WHERE EXISTS (SELECT 1 FROM refunds r WHERE r.amont > 1)": "column 'amont'",
    "SELECT contry FROM ORDERS": "there is no column 'contry'",
    "SELECT order_id FROM ordrs": "unknown input 'ordrs'",
    "SELECT order_id FROM orders, ordrs": "unknown input 'ordrs'",
    "SELECT order_id FROM orders WHERE order_id IN (TABLE refnds)": "unknown input 'refnds'",
    "WITH big AS (SELECT * FROM bigg) SELECT order_id FROM big": "unknown input 'bigg'",
    "FROM orders |> JOIN refnds USING (order_id)": "unknown input 'refnds'",
    "WITH b AS (SELECT * FROM orders) SELECT order_id FROM count(b, key => 'country')": "takes a stream, a table",
    "SELECT order_id FROM orders WHERE country = 'it": "a quote in its query does not close",
    "SELECT total AS order_id FROM orders": "key column 'order_id' has no exact text",
    "SELECT o.total AS order_id FROM orders o": "key column 'order_id' has no exact text",
}


@pytest.mark.parametrize("query", WRONG)
def test_a_query_that_is_surely_wrong_is_refused(query):
    with pytest.raises(UsageError) as refused:
        graph((query, "order_id"))
    assert WRONG[query] in str(refused.value)


def test_a_common_table_hides_a_stream_only_after_its_definition_and_only_in_its_query():
    assert tables("WITH a AS (SELECT 1 FROM a), b AS (SELECT 1 FROM a) SELECT 1 FROM b JOIN a") == ["a"]
    assert tables("WITH a AS (SELECT 1 FROM b), b AS (SELECT 1 FROM a) SELECT 1 FROM b JOIN a") == ["b"]
    assert tables("WITH RECURSIVE a AS (SELECT 1 FROM c UNION ALL SELECT 1 FROM a) SELECT 1 FROM a") == ["c"]
    assert tables("SELECT 1 FROM (WITH a AS (SELECT 1 FROM c) SELECT 1 FROM a) JOIN a") == ["c", "a"]


@pytest.mark.parametrize(
    ("query", "key", "options"),
    [
        ("SELECT * EXCEPT (country) FROM orders", "order_id", {"latency": "realtime"}),
        (
            "SELECT window.start AS s, count(*) AS n FROM orders GROUP BY window(at, '1 hour')",
            "s",
            {"emit": "ready"},
        ),
        ("WITH a AS (SELECT window(at, '1 hour') AS w FROM orders) SELECT w FROM a", "w", {"emit": "ready"}),
        ("SELECT order_id, o.total FROM mine o", "order_id", {"inputs": {"mine": "orders"}}),
        ("SELECT order_id, MINE.total FROM Mine", "order_id", {"inputs": {"mine": "orders"}}),
    ],
)
def test_a_query_with_options_is_accepted(query, key, options):
    graph((query, key), **options)
