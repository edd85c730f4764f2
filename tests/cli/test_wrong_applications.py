"""Applications that cannot be right are refused by ``headwater graph``: one clear line, at once, without Spark."""

import pytest

from support.commandline import complaint, headwater

HEADER = """
from datetime import datetime
from decimal import Decimal
import headwater as hw
from pyspark.sql import Window, functions as F
app = hw.App("shop")
class Order(hw.Event):
    order_id: int
    customer: int
    country: str
    total: float
    at: datetime
class Click(hw.Event):
    click_id: int
    order_id: int
    at: datetime
class Customer(hw.Row):
    id: int
    name: str
    country: str
    seen: datetime
"""
DECLARED = (
    HEADER
    + """
app.stream("orders", Order, key="order_id", time="at")
app.stream("clicks", Click, key="click_id", time="at")
app.table("customers", Customer, key="id")
"""
)
LINE = DECLARED.count("\n") + 1
"""The line at which the code of a case begins."""


def view(body: str, key: str = "order_id", parameters: str = "orders", **options: str) -> str:
    """A view in Python; ``body`` is its last expression, or its statements."""
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    lines = body if body.startswith("    ") else f"    return {body}"
    return f"@app.view(key={key!r}{given})\ndef v({parameters}):\n{lines}\n"


def sql(query: str, key: str = "order_id", **options: str) -> str:
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"app.sql('v', {query!r}, key={key!r}{given})\n"


NOT_LOADED = {
    "no file of Python": ("order_id: int", "defines 0 apps"),
    "a mistake in Python": (
        "def f(:",
        "app.py: SyntaxError: invalid syntax (app.py, line 1); got app.py, line 1: def f(:",
    ),
    "an error while it is loaded": (
        "x = 1\nraise ValueError('no luck')",
        """app.py: ValueError: no luck; got app.py, line 2: raise ValueError('no luck')""",
    ),
    "a module that is missing": ("import nosuch", "ModuleNotFoundError: No module named 'nosuch'"),
    "an error in a function of its own": (
        "def wanted():\n    return {}['x']\n\nx = wanted()",
        "KeyError: 'x'; got app.py, line 2, in wanted: return {}['x'], called from app.py, line 4: x = wanted()",
    ),
    "two apps": ("import headwater as hw\na = hw.App('a')\nb = hw.App('b')", "defines 2 apps"),
    "an app that starts itself": (HEADER + "app.up()", "app.up() is called while the application file is"),
}
STREAMS = {
    "a key that is no field": ("app.stream('s', Order, key='id', time='at')", "key 'id' is not a field"),
    "no key": ("app.stream('s', Order, key=(), time='at')", "stream 's' has no key"),
    "a time that is no field": ("app.stream('s', Order, key='order_id', time='att')", "did you mean 'at'?"),
    "a time that is a text": (
        "app.stream('s', Order, key='order_id', time='country')",
        "time 'country' is not a datetime field; got STRING; expected time='at'",
    ),
    "no time": ("app.stream('s', Order, key='order_id')", "stream 's' has no time="),
    "a delay without unit": (
        "app.stream('s', Order, key='order_id', time='at', delay='10')",
        "delay= is not a duration; got '10'",
    ),
    "a pattern that is none": (
        "app.stream('s', Order, key='order_id', time='at', pattern='(')",
        "pattern '(' is not a regular expression",
    ),
    "a table of events": ("app.table('t', Order, key='order_id')", "expected class Order(hw.Row)"),
    "a table with a key of doubles": (
        "class Price(hw.Row):\n    price: float\napp.table('t', Price, key='price')",
        "key 'price' has a type that keys cannot have; got DOUBLE",
    ),
    "a field of a type that Spark has not": (
        "class Odd(hw.Event):\n    a: set\n    at: datetime\napp.stream('s', Odd, key='a', time='at')",
        "field Odd.a has a type that Spark does not have; got set",
    ),
    "a name that no topic can have": (
        "app.stream('a/b', Order, key='order_id', time='at')",
        "stream name 'a/b' is not allowed",
    ),
    "a name twice": ("app.table('orders', Customer, key='id')", "table name 'orders' is already used"),
    "a delay that is a number": (
        "app.stream('s', Order, key='order_id', time='at', delay=10)",
        "stream 's': delay= is wrong; got 10; expected a text",
    ),
    "a key that is a number": (
        "app.stream('s', Order, key=3, time='at')",
        "stream 's': key= is wrong; got 3; expected the name of a column, or a list of names",
    ),
    "an envelope that is none": (
        "app.table('t', Customer, key='id', envelope='avro')",
        "envelope= is wrong; got 'avro'",
    ),
}
VIEWS = {
    "an input that is not declared": (view("order", parameters="order"), "did you mean 'orders'?"),
    "a table of a query that is not declared": (sql("SELECT * FROM ordrs"), "unknown input 'ordrs'"),
    "no key": (sql("SELECT * FROM orders", key=""), "key '' is not allowed"),
    "a key in Python that is no column": (
        view('orders.groupBy("country").agg(F.sum("total").alias("sum"))', key="land"),
        "view 'v': key column 'land' is not in its output; got country, sum",
    ),
    "a key in SQL that is no column": (
        sql("SELECT country, sum(total) AS s FROM orders GROUP BY country", key="land"),
        "view 'v': key column 'land' is not in its output; got country, s",
    ),
    "a key that all columns of a stream lack": (
        sql("SELECT * FROM orders WHERE total > 3", key="id"),
        "key column 'id' is not in its output; got order_id, customer, country, total, at",
    ),
    "a key that is an aggregate": (
        view('orders.groupBy("country").count()', key="count"),
        "key column 'count' comes from an aggregate; expected a key of columns by which rows are grouped",
    ),
    "a key in SQL that is an aggregate": (
        sql("SELECT country, max(total) AS top FROM orders GROUP BY country", key="top"),
        "key column 'top' comes from an aggregate",
    ),
    "a key of doubles": (view("orders", key="total"), "key column 'total' has no exact text; got DOUBLE"),
    "a column that is not there": (
        view('orders.groupBy("contry").count()'),
        f"there is no column 'contry'; got 'contry' in line {LINE + 2}; did you mean 'country'?",
    ),
    "a column in brackets that is not there": (
        view('orders.where(orders["contry"] == "DE")'),
        f"there is no column 'contry'; got orders['contry'] in line {LINE + 2}; did you mean 'country'?",
    ),
    "a column in SQL that is not there": (
        sql("SELECT order_id,\n  contry FROM orders"),
        (
            "view 'v': there is no column 'contry'; got 'contry FROM orders' at line 2, column 3 of the query; "
            "did you mean 'country'?"
        ),
    ),
    "a column of a table that is not there": (
        sql("SELECT o.order_id, c.nam FROM orders o JOIN customers c ON o.customer = c.id"),
        "there is no column 'nam'; got 'c.nam FROM orders",
    ),
    "groupBy on a table": (
        view('customers.groupBy("country").count()', key="country", parameters="customers"),
        f"a table has no groupBy(); got customers.groupBy('country') in line {LINE + 2}; expected group(by,",
    ),
    "dropDuplicates on the rows of a view": (
        sql("SELECT * FROM customers", key="id").replace("'v'", "'w'")
        + view('w.where("id > 3").dropDuplicates(["id"])', key="id", parameters="w"),
        "a table has no dropDuplicates()",
    ),
    "orderBy": (
        view('orders.orderBy("total")'),
        f"view 'v' sorts the rows of a stream; got orders.orderBy('total') in line {LINE + 2}; rows of a view",
    ),
    "orderBy on a table": (
        view('customers.orderBy("name")', key="id", parameters="customers"),
        "a table has no orderBy()",
    ),
    "ORDER BY": (
        sql("SELECT order_id FROM orders ORDER BY total"),
        "got 'ORDER BY total' at column 29 of the query; rows of a view have no order",
    ),
    "ORDER BY over a table": (
        sql("SELECT id FROM customers ORDER BY name", key="id"),
        "view 'v': ORDER BY over a table cannot follow its changes",
    ),
    "LIMIT": (
        sql("SELECT order_id FROM orders LIMIT 10"),
        "takes the first rows of a stream; got 'LIMIT 10'",
    ),
    "limit": (view("orders.limit(10)"), "takes the first rows of a stream; got orders.limit(10)"),
    "a window function": (
        view(
            '    w = Window.partitionBy("country").orderBy("total")\n'
            '    return orders.withColumn("place", F.row_number().over(w))'
        ),
        "uses a window function over a stream; got F.row_number().over(w)",
    ),
    "a window function in SQL": (
        sql("SELECT order_id, rank() OVER (PARTITION BY country ORDER BY total) AS r FROM orders"),
        "uses a window function over a stream; got 'OVER (PARTITION BY",
    ),
    "distinct values": (
        sql("SELECT country, count(DISTINCT customer) AS n FROM orders GROUP BY country", key="country"),
        "aggregates distinct values of a stream",
    ),
    "rand": (
        view('orders.withColumn("r", F.rand())'),
        "uses rand(), which has another value each time that a record is read; got F.rand() in line",
    ),
    "rand in SQL": (
        sql("SELECT order_id, rand() AS r FROM orders"),
        "uses rand(), which has another value each time that a record is read; got 'rand() AS r FROM orders'",
    ),
    "current_timestamp": (
        view('orders.withColumn("now", F.current_timestamp())'),
        "expected values of the record; use the event time of the record",
    ),
    "current_timestamp without brackets": (
        sql("SELECT order_id, current_timestamp AS seen FROM orders"),
        "uses current_timestamp()",
    ),
    "uuid": (sql("SELECT uuid() AS order_id FROM orders"), "use the record's key, or a hash of its columns"),
    "now in a condition": (view('orders.where("at > now()")'), "uses now(), which has another value"),
    "a clock over a table": (
        sql("SELECT id FROM customers WHERE seen > now()", key="id"),
        "hw.valid(rows, since=..., until=...) has the rows that are valid now",
    ),
    "an action": (view("orders.count()"), "reads its rows with count(), and a view only says how they are"),
    "a watermark": (view('orders.withWatermark("at", "1 minute")'), "view 'v' calls withWatermark"),
    "ready rows without a window": (
        view('orders.groupBy("country").count()', key="country", emit="ready"),
        "has no rows that become complete; expected a window over event time in its key",
    ),
    "ready rows in SQL without a window": (
        sql("SELECT country, count(*) AS n FROM orders GROUP BY country", key="country", emit="ready"),
        "has no rows that become complete",
    ),
    "an operator in real time": (
        view('hw.count(orders, "country")', key="country", latency="realtime"),
        "cannot run in real time: it uses hw.count",
    ),
    "an operator of SQL in real time": (
        sql("SELECT country, count FROM count(orders, key => 'country')", "country", latency="realtime"),
        "cannot run in real time: it uses hw.count",
    ),
    "a Python function in real time": (
        "upper = F.udf(lambda text: text.upper())\n"
        + view('orders.select("order_id", upper("country").alias("c"))', latency="realtime"),
        "cannot run in real time: it uses a Python function; got upper in line",
    ),
    "a join in real time": (
        sql("SELECT o.order_id FROM orders o JOIN clicks c USING (order_id)", latency="realtime"),
        "cannot run in real time: it uses Join",
    ),
    "a table in real time": (sql("SELECT * FROM customers", "id", latency="realtime"), "it reads table"),
    "a bracket that does not close": (
        sql("SELECT order_id, (total FROM orders"),
        "a bracket in its query does not close; got '(total FROM orders' at column 18",
    ),
    "a quote that does not close": (sql("SELECT 'a FROM orders"), "a quote in its query does not close"),
    "no query": (sql("DELETE FROM orders"), "its query is not one; got 'DELETE FROM orders' at column 1"),
    "an option that does not exist": (
        sql("SELECT * FROM orders", emitt="ready"),
        "app.sql has no option 'emitt'",
    ),
    "an option with a wrong value": (
        sql("SELECT * FROM orders", emit="later"),
        "emit= is wrong; got 'later'",
    ),
    "a key that is a number": (
        "app.sql('v', 'SELECT * FROM orders', key=3)",
        "view 'v': key= is wrong; got 3; expected the name of a column, or a list of names",
    ),
    "a key that has a number": (
        "app.sql('v', 'SELECT * FROM orders', key=['order_id', 3])",
        "view 'v': key= is wrong; got ['order_id', 3]",
    ),
    "a query that is no text": (
        "app.sql('v', 3, key='order_id')",
        "view 'v': its query is not a text; got 3",
    ),
    "a name that is no text": ("app.sql(3, 'SELECT * FROM orders', key='order_id')", "view name 3 is not"),
    "forgetting after a number": (
        "app.sql('v', 'SELECT * FROM orders', key='order_id', forget=30)",
        "view 'v': forget= is wrong; got 30; expected a text",
    ),
    "appending perhaps": (
        "app.sql('v', 'SELECT * FROM orders', key='order_id', append='yes')",
        "view 'v': append= is wrong; got 'yes'; expected True or False",
    ),
    "a window over a column that is not there": (
        view('orders.groupBy(F.window("att", "5 minutes"), "country").count()', key="country"),
        f"view 'v': there is no column 'att'; got F.window('att', '5 minutes') in line {LINE + 2}; did you mean 'at'?",
    ),
    "a window in SQL over a column that is not there": (
        sql("SELECT window, count(*) AS n FROM orders GROUP BY window(att, '1 hour')", key="window"),
        "view 'v': there is no column 'att'; got \"att, '1 hour')\" at column 58 of the query; did you mean 'at'?",
    ),
    "a sum of a column that is not there": (
        view('orders.groupBy("country").agg(F.sum("totl").alias("t"))', key="country"),
        f"there is no column 'totl'; got F.sum('totl') in line {LINE + 2}; did you mean 'total'?",
    ),
    "a sum in SQL of a column that is not there": (
        sql("SELECT country, sum(totl) AS t FROM orders GROUP BY country", key="country"),
        "there is no column 'totl'; got 'totl) AS t FROM orders",
    ),
    "a condition on a column that is not there": (
        view('orders.where(F.col("contry") == "DE")'),
        "there is no column 'contry'; got F.col('contry') in line",
    ),
    "a group of a table by an aggregate of no column": (
        view('customers.group("country", n=F.max("nam"))', "country", "customers"),
        "there is no column 'nam'; got F.max('nam') in line",
    ),
    "a function of SQL that does not exist": (
        sql("SELECT country, summ(total) AS s FROM orders GROUP BY country", key="country"),
        (
            "view 'v': there is no function 'summ'; got 'summ(total) AS s FROM orders GROUP BY co' at column 17 "
            "of the query; expected a function of Spark's SQL; did you mean 'sum'?"
        ),
    ),
    "a function of Spark that does not exist": (
        view('orders.groupBy("country").agg(F.summ("total").alias("s"))', key="country"),
        f"view 'v': there is no F.summ; got F.summ in line {LINE + 2}; did you mean F.sum?",
    ),
    "an operator that does not exist": (
        view('hw.distnct(orders, "order_id", time="at", within="1 hour")'),
        f"view 'v': there is no hw.distnct; got hw.distnct in line {LINE + 2}; did you mean hw.distinct?",
    ),
    "an operator without an argument": (
        view('hw.distinct(orders, "order_id", time="at")'),
        "view 'v': distinct: missing a required",
    ),
    "an operator with a wrong argument": (
        view('hw.latest(orders, "order_id", tim="at")'),
        "expected hw.latest(rows, key, *, time); did you mean time=?",
    ),
    "duplicates within no duration": (
        view('hw.distinct(orders, "order_id", time="at", within="1 hours long")'),
        "view 'v': distinct: within= is not a duration; got '1 hours long' in hw.distinct(orders, 'order_id'",
    ),
    "sessions with a gap of zero": (
        view('hw.sessions(orders, "customer", time="at", gap="0 minutes")', key="customer"),
        "sessions: gap= is not a duration; got '0 minutes'",
    ),
    "duplicates by a time that is not there": (
        view('hw.distinct(orders, "order_id", time="att", within="1 hour")'),
        "view 'v': distinct: there is no column 'att' for time=",
    ),
    "the latest by a text": (
        view('hw.latest(orders, "customer", time="country")', key="customer"),
        "view 'v': latest: time='country' is not a timestamp column; got STRING in hw.latest(",
    ),
    "a count by a column that is not there": (
        view('hw.count(orders, "contry")', key="contry"),
        "view 'v': count: there is no column 'contry' for key=",
    ),
    "pairs within no duration": (
        view('hw.match(orders, clicks, "order_id", time="at", within="soon")', parameters="orders, clicks"),
        "view 'v': match: within= is not a duration; got 'soon'",
    ),
    "pairs by a time that one of them has not": (
        view(
            'hw.match(orders, clicks, "order_id", time=("at", "seen"), within="1 hour")',
            parameters="orders, clicks",
        ),
        "view 'v': match: there is no column 'seen' for time=",
    ),
    "an operator in SQL by a time that is not there": (
        sql("SELECT customer FROM latest(orders, key => 'customer', time => 'att')", key="customer"),
        "view 'v': latest: there is no column 'att' for time=; got latest(orders, key => 'customer', time => 'att')",
    ),
    "an operator in SQL with no duration": (
        sql("SELECT order_id FROM distinct(orders, key => 'order_id', time => 'at', within => 'an hour')"),
        "view 'v': distinct: within= is not a duration; got 'an hour'",
    ),
    "views in a circle": (
        "app.sql('a', 'SELECT * FROM b', key='x')\napp.sql('b', 'SELECT * FROM a', key='x')",
        "views read each other in a circle: a -> b -> a",
    ),
}
OUTSIDE = {
    "a sink of nothing": (
        "app.sink('order', hw.sink.Sqlite('x.db'))",
        "there is no stream, table or view 'order'; did you mean 'orders'?",
    ),
    "a sink of columns that are not there": (
        "app.sink('orders', hw.sink.Sqlite('x.db', columns={'order_id': 'BIGINT', 'contry': 'STRING'}))",
        "sink 'orders.sqlite': 'orders' has no column 'contry'; got columns={'order_id': 'BIGINT', 'contry': 'STRING'}; did you mean 'country'?",
    ),
    "a sink of a real-time view without its key": (
        sql("SELECT order_id, total FROM orders", latency="realtime")
        + "app.sink('v', hw.sink.Sqlite('x.db', columns={'total': 'DOUBLE'}))",
        "sink 'v.sqlite': key column 'order_id' is not among its columns",
    ),
    "two sinks into one place": (
        (
            "app.sink('orders', hw.sink.Sqlite('x.db', table='t'))\n"
            "app.sink('clicks', hw.sink.Sqlite('x.db', table='t'))"
        ),
        "write to one place and would overwrite each other",
    ),
    "a capture without tables": (
        "app.capture('shop', hw.capture.Postgres('postgresql://db/shop', tables=[]))",
        "capture 'shop' names no tables",
    ),
    "a capture of another database": (
        "app.capture('shop', hw.capture.Postgres('mysql://db/shop', tables=['a']))",
        "the address is not PostgreSQL's",
    ),
}


def check(capsys, tmp_path, code: str, said: str) -> None:
    (tmp_path / "app.py").write_text(code)
    assert said in complaint(headwater(capsys, tmp_path, "graph", "app.py"))


@pytest.mark.parametrize("name", NOT_LOADED)
def test_a_file_that_is_no_application_is_refused_in_one_line(capsys, tmp_path, name):
    check(capsys, tmp_path, *NOT_LOADED[name])


@pytest.mark.parametrize("name", STREAMS | VIEWS | OUTSIDE)
def test_a_wrong_application_is_refused_in_one_line_without_spark(capsys, tmp_path, name):
    code, said = (STREAMS | VIEWS | OUTSIDE)[name]
    check(capsys, tmp_path, DECLARED + code, said)


RIGHT = {
    "a column that is called offset": sql("SELECT order_id, total AS offset FROM orders WHERE total > 3"),
    "a fixed time": sql("SELECT order_id, unix_timestamp(at) AS s FROM orders"),
    "an order inside a function": sql("SELECT customer, max_by(total, at) AS t FROM orders GROUP BY customer", "customer"),
    "a text with a function": sql("SELECT order_id, 'rand()' AS how FROM orders WHERE country <> 'ORDER BY'"),
    "a window": sql("SELECT window, count(*) AS n FROM orders GROUP BY window(at, '1 hour')", "window", emit="ready"),
    "chains": view(
        '    big = orders.where("total > 3").withColumn("cents", F.col("total") * 100)\n'
        '    return big.groupBy(F.window("at", "1 hour"), "country").agg(F.sum("cents").alias("cents"))',
        key="country",
        emit="changes",
    ),
    "a group of a table": view('customers.group("country", n=F.count("*"))', "n", "customers"),
    "two ways": view('    if len(orders.columns) > 3:\n        return orders\n    return orders.select("order_id")'),
    "names that are computed": view("orders.select(*[name for name in orders.columns])"),
    "capital letters": sql("SELECT ORDER_ID, Total FROM orders o WHERE O.country = 'DE'", "ORDER_ID"),
    "columns of a subquery": sql("SELECT t.order_id FROM (SELECT order_id, total * 2 AS t2 FROM orders) t WHERE t.t2 > 3"),
    "a lateral view": sql("SELECT order_id, c FROM orders LATERAL VIEW explode(split(country, '')) AS c", "order_id"),
    "a name of a column that is computed": view('    wanted = "total"\n    return orders.groupBy("country").agg(F.sum(wanted).alias("s"))', key="country"),
    "an alias that is used at once": view('orders.select("order_id", F.col("total").alias("t"), F.col("t"))'),
    "a column of a joined stream": view('orders.join(clicks, F.col("click_id") == F.col("customer")).select(orders.order_id)', parameters="orders, clicks"),
    "a column of a helper": view('    large = big(orders)\n    return large.groupBy("country").agg(F.sum("cents").alias("s"))', key="country"),
    "a window of a window": view('orders.groupBy(F.window("at", "5 minutes").alias("w"), "country").agg(F.sum("total").alias("s"))', key="country"),
    "functions of SQL in brackets": sql("SELECT order_id, cast((total) AS DECIMAL(10, 2)) AS d, CASE WHEN (total > 3) THEN (1) ELSE (2) END AS c FROM orders WHERE country IN ('DE') AND (total > 3)"),
    "a table with names of columns": sql("SELECT t.a FROM (SELECT order_id FROM orders) t(a)", "a"),
    "a common table": sql("WITH big(a) AS (SELECT order_id FROM orders), small (b) AS (SELECT a FROM big) SELECT b FROM small", "b"),
    "a filter of an aggregate": sql("SELECT country, count(*) FILTER (WHERE total > 3) AS n FROM orders GROUP BY country", "country"),
    "units of time": sql("SELECT order_id, timestampadd(MINUTE, 3, at) AS later, extract(YEAR FROM at) AS y FROM orders"),
    "arguments that are computed": view('hw.latest(orders, **dict(key="customer", time="at"))', key="customer"),
    "an operator": sql("SELECT customer, window, n FROM sessions(orders, key => 'customer', time => 'at', gap => '1 hour', n => 'count(*)')", "customer", emit="ready"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_query_that_may_be_right_is_left_to_spark(capsys, tmp_path, name):
    (tmp_path / "app.py").write_text(DECLARED + RIGHT[name])
    outcome = headwater(capsys, tmp_path, "graph", "app.py")
    assert (outcome.code, outcome.stderr) == (0, "")


def test_there_are_sixty_of_them():
    assert len(NOT_LOADED | STREAMS | VIEWS | OUTSIDE) >= 60
