"""Applications: declarations, the checks of the graph and its drawing, without Spark."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import headwater as hw
from headwater.declare import sql_scan
from headwater.declare.drawing import drawing
from headwater.declare.sql_scan import tables
from headwater.errors import UsageError

ORDERS = Path(__file__).parents[2] / "examples" / "orders" / "app.py"


class Order(hw.Event):
    order_id: int
    country: str
    at: datetime


@pytest.fixture
def app():
    app = hw.App("shop")
    app.stream("orders", Order, key="order_id", time="at")
    return app


def refusal(app):
    with pytest.raises(hw.UsageError) as caught:
        app.graph()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_inputs_of_a_view_are_its_parameters(app):
    @app.view(key="country")
    def totals(orders):
        return orders

    graph = app.graph()
    assert list(graph.streams) == ["orders"]
    assert graph.views["totals"].key == ("country",)
    assert graph.inputs(graph.views["totals"]) == {"orders": graph.streams["orders"]}


def test_a_declared_function_stays_callable(app):
    @app.view(key="country")
    def totals(orders):
        return orders

    assert totals(5) == 5


def test_inputs_can_be_named_otherwise(app):
    @app.view(key="country", inputs={"o": "orders"})
    def totals(o):
        return o

    app.sql("latest", "SELECT * FROM x", key="order_id", inputs={"x": "orders"})
    assert app.graph().views["totals"].inputs == {"o": "orders"}
    assert app.graph().views["latest"].inputs == {"x": "orders"}


def test_inputs_that_are_not_parameters_are_refused(app):
    with pytest.raises(hw.UsageError, match="inputs are not its parameters; got x; expected orders"):

        @app.view(key="country", inputs={"x": "orders"})
        def totals(orders):
            return orders


def test_an_unknown_input_is_refused_with_the_nearest_name(app):
    @app.view(key="country")
    def totals(order):
        return order

    assert refusal(app) == "view 'totals': unknown input 'order'; did you mean 'orders'?"


def test_an_unknown_table_of_a_query_is_refused(app):
    app.sql("totals", "SELECT * FROM ordrs", key="country")
    assert refusal(app) == "view 'totals': unknown input 'ordrs'; did you mean 'orders'?"


def test_views_in_a_circle_are_refused(app):
    app.sql("a", "SELECT * FROM b", key="k")
    app.sql("b", "SELECT * FROM c JOIN orders USING (k)", key="k")
    app.sql("c", "SELECT * FROM a", key="k")
    assert "views read each other in a circle: a -> b -> c -> a" in refusal(app)


def test_views_that_read_views_come_after_them(app):
    app.sql("c", "SELECT * FROM a JOIN b USING (order_id)", key="order_id")
    app.sql("b", "SELECT * FROM a", key="order_id", append=True)
    app.sql("a", "SELECT * FROM orders", key="order_id")
    graph = app.graph()
    assert list(graph.views) == ["a", "b", "c"]
    assert [[view.name for view in level] for level in graph.levels()] == [["a"], ["b"], ["c"]]
    a, b = graph.inputs(graph.views["c"]).values()
    assert (a.topic, a.table, a.key, b.topic, b.table) == ("a", True, ("order_id",), "b", False)


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ({"latency": "realtime"}, {}, "view 'b' reads view 'a', which runs in real time"),
        ({}, {"latency": "realtime"}, "view 'b' cannot run in real time: it reads view 'a'"),
    ],
)
def test_views_of_views_run_in_batches(app, first, then, said):
    app.sql("a", "SELECT * FROM orders", key="order_id", **first)
    app.sql("b", "SELECT * FROM a", key="order_id", **then)
    assert refusal(app).startswith(said)


class User(hw.Row):
    id: int
    name: str
    score: float
    since: datetime | None = None


def test_a_table_needs_no_time_and_is_drawn_as_one(app):
    app.table("users", User, key="id")
    app.table("prices", User, key=["name", "id"], time="since", topic="prices.changes")
    app.sql("names", "SELECT * FROM users", key="id")
    app.sql("known", "SELECT * FROM names JOIN orders", key="id")
    assert drawing(app.graph()) == (
        "shop\n"
        "\n"
        "orders  topic orders · key order_id · time at · delay 10 minutes · kept for ever\n"
        "  └─► known  key id · SQL · micro-batch · with names\n"
        "\n"
        "users  table · topic users · key id\n"
        "  └─► names  key id · SQL · micro-batch\n"
        "\n"
        "prices  table · topic prices.changes · key name, id · time since · delay 10 minutes\n"
        "\n"
        "names  view\n"
        "  └─► known  key id · SQL · micro-batch · with orders"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "score"}, "table 't': key 'score' has a type that keys cannot have; got DOUBLE"),
        ({"key": "no"}, "table 't': key 'no' is not a field of User"),
        ({"key": ()}, "table 't' has no key"),
        ({"time": "name"}, "table 't': time 'name' is not a datetime field; got STRING"),
    ],
)
def test_a_wrong_table_is_refused(change, said):
    app = hw.App("shop")
    app.table("t", User, **{"key": "id", **change})
    assert refusal(app).startswith(said)


def test_a_table_is_not_read_in_real_time(app):
    app.table("users", User, key="id")
    app.sql("names", "SELECT * FROM users", key="id", latency="realtime")
    assert refusal(app).startswith("view 'names' cannot run in real time: it reads table 'users'")


@pytest.mark.parametrize("key", [(), []])
def test_a_view_without_key_is_refused(app, key):
    app.sql("totals", "SELECT * FROM orders", key=key)
    assert refusal(app).startswith("view 'totals' has no key; name the columns that identify a row")


def test_a_view_decorated_without_a_call_is_refused(app):
    with pytest.raises(hw.UsageError, match=r"view 'totals' has no key; write @app.view\(key=\[...\]\)"):

        @app.view
        def totals(orders):
            return orders


@pytest.mark.parametrize(
    ("key", "said"), [("", "key '' is not allowed"), ("_version", "key '_version' is not allowed")]
)
def test_a_key_that_is_not_a_column_of_the_user_is_refused(app, key, said):
    app.sql("totals", "SELECT * FROM orders", key=[key])
    assert said in refusal(app)


def test_a_watermark_inside_a_view_is_refused(app):
    @app.view(key="country")
    def totals(orders):
        def hurry(frame):
            return frame.withWatermark("at", "1 minute")

        return hurry(orders)

    said = refusal(app)
    assert said.startswith("view 'totals' calls withWatermark")
    assert said.endswith("delay=")


@pytest.mark.parametrize("name", ["a/b", "", "über", "x" * 201])
def test_a_name_that_is_not_a_topic_name_is_refused(app, name):
    app.sql(name, "SELECT * FROM orders", key="order_id")
    assert "is not allowed; expected 1 to 200 letters" in refusal(app)


@pytest.mark.parametrize("ending", ["progress", "late", "ledger", "invalid", "dead"])
def test_a_name_with_a_reserved_ending_is_refused(app, ending):
    app.sql(f"orders.{ending}", "SELECT * FROM orders", key="order_id")
    assert f"ends in '.{ending}'" in refusal(app)


def test_two_declarations_of_one_name_are_refused(app):
    app.sql("orders", "SELECT * FROM orders", key="order_id")
    assert refusal(app).startswith("view name 'orders' is already used")


def test_a_view_that_would_write_a_streams_topic_is_refused(app):
    app.stream("clicks", Order, key="order_id", time="at", topic="web")
    app.sql("web", "SELECT * FROM orders", key="order_id")
    assert refusal(app).startswith("view 'web' would write to the topic of stream 'clicks'")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time": "att"}, "stream 's': time 'att' is not a field of Order; did you mean 'at'?"),
        (
            {"time": "country"},
            "stream 's': time 'country' is not a datetime field; got STRING; expected time='at'",
        ),
        (
            {"time": ""},
            "stream 's' has no time=, which names the field with the time of an event; expected time='at'",
        ),
        ({"key": "id"}, "stream 's': key 'id' is not a field of Order"),
        ({"key": ()}, "stream 's' has no key"),
        (
            {"delay": "soon"},
            "stream 's': delay= is not a duration; got 'soon'; expected a whole number and a unit",
        ),
        ({"pattern": "("}, "stream 's': pattern '(' is not a regular expression"),
        ({"pattern": "a.*", "topic": "a"}, "stream 's' has both topic= and pattern="),
        ({"pattern": "a.*", "retention": "1 day"}, "stream 's' has both retention= and pattern="),
        ({"retention": "long"}, "stream 's': retention= is not a duration; got 'long'"),
    ],
)
def test_a_wrong_stream_is_refused(change, said):
    app = hw.App("shop")
    app.stream("s", Order, **{"key": "order_id", "time": "at", **change})
    assert refusal(app).startswith(said)


def test_a_horizon_shorter_than_the_delay_is_refused(app):
    app.sql("v", "SELECT * FROM orders", key="order_id", late=hw.late.correct("9 minutes"))
    said = refusal(app)
    assert said.startswith(
        "view 'v': the correction horizon is shorter than the stream's delay; got late=hw.late.correct('9 minutes')"
    )
    assert "delay='10 minutes'" in said


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT window, count(*) FROM orders GROUP BY window(at, '1 minute')", ["orders"]),
        ("select * from a, b join c on a.x = b.y left join `d.e-f` as d using (k)", ["a", "b", "c", "d.e-f"]),
        ("WITH x AS (SELECT * FROM a) SELECT extract(year FROM at) FROM x -- from y", ["a"]),
        (
            "SELECT * FROM (SELECT 'from q', /* from r */ 1 FROM a WHERE b IS DISTINCT FROM c) t, d",
            ["a", "d"],
        ),
        ("SELECT trim(BOTH ' ' FROM name) FROM a UNION ALL SELECT 1 FROM a", ["a"]),
    ],
)
def test_the_tables_of_a_query_are_found(query, found):
    assert tables(query) == found


def test_an_operator_in_a_query_is_a_function_of_a_stream():
    query = """
        -- FROM count(nothing, key => 'x')
        SELECT a.*, 'from count(text)' FROM count(`my.clicks`, key => 'user, site', column => 'it''s') AS a
        JOIN latest(orders , time => 'at') ON true"""
    text, found = sql_scan.expanded(query, ["count", "latest"])
    assert found == [
        ("count__1", "count", ("my.clicks",), {"key": "user, site", "column": "it's"}),
        ("latest__2", "latest", ("orders",), {"time": "at"}),
    ]
    assert "FROM count__1 AS a" in text
    assert "JOIN latest__2 ON true" in text
    assert sql_scan.tables(query, ["count", "latest"]) == ["my.clicks", "orders"]


def test_an_operator_in_a_query_may_be_a_function_of_two_streams():
    query = "SELECT * FROM unmatched(searches, `my.clicks`, on => 'id', after => '1 hour') JOIN orders"
    text, (call,) = sql_scan.expanded(query, ["unmatched"])
    assert call == ("unmatched__1", "unmatched", ("searches", "my.clicks"), {"on": "id", "after": "1 hour"})
    assert text == "SELECT * FROM unmatched__1 JOIN orders"
    assert sql_scan.tables(query, ["unmatched"]) == ["searches", "my.clicks", "orders"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM count(orders, 'user')",
        "SELECT * FROM count(orders, key => user)",
    ],
)
def test_a_wrong_call_in_a_query_is_refused(query):
    app = hw.App("shop")
    with pytest.raises(
        UsageError, match=r"the arguments of count are wrong.*count\(orders, name => 'text', …\)"
    ):
        app.sql("v", query, key="user")


def test_a_table_as_of_a_time_gets_a_name_of_its_own():
    query = "SELECT 'a TIMESTAMP AS OF b' FROM o JOIN `my.rates` FOR system_time AS OF o.`at` AS r ON o.k = r.k -- x VERSION AS OF 1"
    text, found = sql_scan.travels("view 'v'", query)
    assert text == query.replace("`my.rates` FOR system_time AS OF o.`at`", "`my_rates__as_of_1`")
    assert found == [("my_rates__as_of_1", "my.rates", "o.`at`")]
    assert sql_scan.tables(query) == ["o", "my.rates"]
    for wrong in ("VERSION AS OF 3", "TIMESTAMP AS OF o.at + o.b", "FOR SYSTEM_TIME AS OF f(o.at)"):
        with pytest.raises(UsageError, match="view 'v': AS OF takes the event time of a stream"):
            sql_scan.travels("view 'v'", f"SELECT 1 FROM o JOIN r {wrong} AS r ON o.k = r.k")


def test_captures_are_drawn_with_their_tables_and_what_reads_these(app):
    class Row(hw.Row):
        id: int

    app.stream("own", Order, key="order_id", time="at", topic="db.own")
    app.stream("paid", Order, key="order_id", time="at", topic="db.event.paid")
    app.capture("db", hw.capture.Postgres("postgresql://db/shop", ["product", "stock.*"], outbox=None))
    app.capture("web", hw.capture.Sqlite("web.db", ["visits", "outbox"], outbox="outbox"))
    app.capture("erp", hw.capture.Polling("sqlite:erp.db", "invoice", "changed"))
    for name, topic in {
        "product": "db.public.product",
        "shelf": "db.stock.shelf",
        "visits": "web.visits",
        "clicked": "web.event.clicked",
    }.items():
        app.table(name, Row, key="id", topic=topic, envelope="debezium")
    assert drawing(app.graph()).partition("db  capture")[2] == (
        " · postgres · product, stock.*\n"
        "  ├─► product  topic db.public.product\n"
        "  └─► shelf  topic db.stock.shelf\n"
        "\n"
        "web  capture · sqlite · visits, outbox\n"
        "  ├─► visits  topic web.visits\n"
        "  └─► clicked  topic web.event.clicked\n"
        "\n"
        "erp  capture · polling · invoice"
    )


def test_the_graph_is_drawn_with_keys_times_and_tiers(app):
    app.stream("clicks", Order, key=["order_id", "country"], time="at", delay="1 hour", pattern="web-.*")
    app.sql("latest", "SELECT * FROM orders", key="order_id", latency="realtime")
    app.sql("rates", "SELECT * FROM orders JOIN clicks USING (order_id)", key=["window", "country"])
    assert drawing(app.graph()) == (
        "shop\n"
        "\n"
        "orders  topic orders · key order_id · time at · delay 10 minutes · kept for ever\n"
        "  ├─► latest  key order_id · SQL · real time\n"
        "  └─► rates   key window, country · SQL · micro-batch · with clicks\n"
        "\n"
        "clicks  topics web-.* · key order_id, country · time at · delay 1 hour · kept as each topic says\n"
        "  └─► rates   key window, country · SQL · micro-batch · with orders"
    )


def test_the_steps_of_views_are_below_the_drawing(app):
    app.sql("latest", "SELECT * FROM orders", key="order_id")
    drawn = drawing(app.graph(), {"latest": ["join1: somewhere", "groupBy: elsewhere"], "other": []})
    assert drawn.endswith(
        "\n\nlatest  keeps\n  join1: somewhere\n  groupBy: elsewhere\n\nother  keeps\n  nothing but its rows"
    )


def test_an_application_file_is_loaded():
    app = hw.App.load(str(ORDERS))
    assert app.name == "shop"
    assert list(app.graph().views) == ["revenue", "orders_per_minute"]
    assert app.folder == ORDERS.parent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "x = 1\ny = 1 / 0\n",
            "wrong.py: ZeroDivisionError: division by zero; got wrong.py, line 2: y = 1 / 0",
        ),
        ("def f(:\n", "wrong.py, line 1: def f(:"),
        ("x = 1\n", "defines 0 apps; expected one"),
        ("import headwater as hw\na = hw.App('a')\nb = hw.App('b')\n", "defines 2 apps; expected one"),
    ],
)
def test_a_wrong_application_file_is_one_clear_line(tmp_path, text, said):
    file = tmp_path / "wrong.py"
    file.write_text(text)
    with pytest.raises(hw.UsageError) as caught:
        hw.App.load(str(file))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_application_file_is_named(tmp_path):
    with pytest.raises(hw.UsageError, match=r"nothing\.py does not exist"):
        hw.App.load(str(tmp_path / "nothing.py"))


def test_importing_headwater_loads_no_spark():
    code = "import sys, headwater; sys.exit('pyspark' in sys.modules or 'confluent_kafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- what declarations return, and running from Python --------------------------------------------------


def test_every_declaration_returns_what_it_declares(tmp_path):
    app = hw.App("shop")
    orders = app.stream("orders", Order, key="order_id", time="at")

    @app.view(key="country")
    def totals(orders):
        return orders

    counts = app.sql("counts", "SELECT country FROM orders", key="country")
    sink = app.sink(totals, hw.sink.Sqlite(str(tmp_path / "totals.db")))
    capture = app.capture("db", hw.capture.Postgres("postgresql://h/d", tables=["public.t"]))

    graph = app.graph()
    assert graph.streams["orders"] is orders
    assert graph.views == {"totals": totals, "counts": counts}
    assert graph.sinks[sink.name] is sink
    assert sink.source == "totals"
    assert graph.captures["db"] is capture


def test_a_view_by_sql_cannot_be_called(app):
    counts = app.sql("counts", "SELECT country FROM orders", key="country")

    with pytest.raises(hw.UsageError, match="view 'counts' is a SQL query and cannot be called"):
        counts(None)


def test_an_unknown_option_of_a_view_is_refused_with_the_nearest(app):
    with pytest.raises(hw.UsageError, match=r"app.view has no option 'latancy'.*did you mean latency"):
        app.view(key="country", latancy="realtime")
    with pytest.raises(hw.UsageError, match=r"app.sql has no option 'emits'.*did you mean emit"):
        app.sql("counts", "SELECT country FROM orders", key="country", emits="ready")


def test_an_application_without_a_file_cannot_go_up(app):
    app.file = None  # as in a notebook

    with pytest.raises(hw.UsageError, match=r"this app has none; in a notebook write: with app.running\(\)"):
        app.up()


@pytest.mark.parametrize("method", ["run", "up", "running"])
def test_an_application_is_not_run_while_its_file_is_loaded(tmp_path, method):
    file = tmp_path / "app.py"
    file.write_text(f"import headwater as hw\napp = hw.App('a')\napp.{method}()\n")

    with pytest.raises(hw.UsageError, match='write it under if __name__ == "__main__"'):
        hw.App.load(str(file))
