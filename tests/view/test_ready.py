"""Ready and provisional rows over HTTP, by the time up to which the view is complete."""

import json
import sqlite3
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.client.client import Client
from headwater.clock import SystemClock
from headwater.demo.page import Page
from headwater.errors import UsageError
from headwater.result import topic
from headwater.view.results import FIRST_S
from headwater.view.tables.completeness import parse_ready, text, until, until_of, until_sql
from support.resultlog import Driver
from support.servers import both_logs, wait_until

MINUTE = 60_000_000
NINE = 1_767_603_600_000_000
"""2026-01-05T09:00 in microseconds."""


def at(minute):
    return text(NINE + minute * MINUTE)


def row(country, revenue, minute=0, **more):
    window = {"start": at(minute), "end": at(minute + 5)}
    return {"window": window, "country": country, "revenue": revenue, **more}


def written(rows):
    return {key: json.dumps(each).encode() for key, each in rows.items()}


@pytest.fixture
def driver(bootstrap, revenue):
    return Driver(bootstrap, revenue, partitions=2)


@pytest.fixture
def three(console, driver):
    """The console with three windows, of which the view has closed the first."""
    driver.publish({"orders": {0: 1}}, written({c: row(c, n, 5 * n) for n, c in enumerate("abc")}))
    driver.publish({"orders": {0: 2}}, complete=NINE + 7 * MINUTE)
    wait_until(lambda: console.get(f"/views/{driver.view}")[1]["complete"], 20, "a view that is complete")
    return console


# ---- until ----------------------------------------------------------------------------------------------

times = st.sampled_from([at(0), at(5), at(10)])
oddities = st.sampled_from([None, "", "soon", 5, 5.5, True, [], {}, [at(0)], at(0)[:-1], f"{at(0)}0"])
windows = st.fixed_dictionaries({}, optional={"start": times | oddities, "end": times | oddities, "x": times})
rows = st.fixed_dictionaries(
    {},
    optional={
        "_until": times | oddities,
        "window": windows | oddities,
        "a.b": windows,
        'a"b': windows,
        "a'b": windows,
    },
)


@given(rows, st.lists(st.sampled_from(["window", "a.b", 'a"b', "a'b", "n"]), max_size=4, unique=True))
def test_sql_and_python_agree_on_when_a_row_is_complete(row, key):
    value = json.dumps(row)
    expression, parameters = until_sql(key)
    with sqlite3.connect(":memory:") as connection:
        found = connection.execute(
            f"SELECT {expression} FROM (SELECT :value AS value)", parameters | {"value": value}
        ).fetchone()[0]

    assert found == until(row, key) == until_of(value, key)


def test_a_row_is_complete_at_its_own_time_or_else_at_the_latest_end_of_its_windows():
    def found(key, **columns):
        return until(columns, key)

    early, late = ({"start": at(0), "end": at(end)} for end in (5, 10))
    assert found(["window"], window=early) == at(5)
    assert found(["window"], window=early, _until=at(30)) == at(30)
    assert found(["window"], window=early, _until=None) == at(5)
    assert found(["a", "b"], a=late, b=early) == at(10)
    assert found(["user"], window=early, user="x") is None
    assert found(["window"], window={"start": 1, "end": 2}) is None


def test_times_that_no_calendar_has_are_the_first_or_the_last():
    assert text(NINE + 1) == "2026-01-05T09:00:00.000001Z"
    assert text(-(1 << 62)) == "0001-01-01T00:00:00.000000Z"
    assert text(1 << 62) == "9999-12-31T23:59:59.999999Z"


def test_a_wrong_value_of_ready_is_refused():
    assert parse_ready([("ready", "true"), ("a", "1")]) == (True, [("a", "1")])
    assert parse_ready([("ready", "false")]) == (False, [])
    assert parse_ready([("ready.eq", "x")]) == (None, [("ready.eq", "x")])
    with pytest.raises(UsageError, match="ready is wrong; got 'yes'; expected true or false"):
        parse_ready([("ready", "yes")])


# ---- rows -----------------------------------------------------------------------------------------------


@both_logs
def test_rows_are_called_ready_when_the_view_is_complete_up_to_their_end(three, driver):
    _, body = three.get(f"/views/{driver.view}?order=country")
    assert body["complete"] == at(7)
    assert [(r["country"], r["_ready"]) for r in body["rows"]] == [("a", True), ("b", False), ("c", False)]

    driver.publish({"orders": {0: 3}}, complete=NINE + 10 * MINUTE)
    _, body = three.get(f"/views/{driver.view}?at_least=0~orders:0=3&order=country")
    assert body["complete"] == at(10)
    assert [r["_ready"] for r in body["rows"]] == [True, True, False]


def test_only_ready_rows_are_given_in_order_and_up_to_the_limit(three, driver):
    driver.publish({"orders": {0: 3}}, complete=NINE + 10 * MINUTE)
    path = f"/views/{driver.view}?at_least=0~orders:0=3"

    def countries(query):
        status, body = three.get(f"{path}&{query}")
        assert status == 200, body
        return "".join(r["country"] for r in body["rows"]), body["more"]

    assert countries("ready=true&order=-country") == ("ba", False)
    assert countries("ready=true&order=-country&limit=1") == ("b", True)
    assert countries("ready=true&order=-country&limit=2") == ("ba", False)
    assert countries("ready=true&country=c") == ("", False)
    assert countries("ready=false") == ("c", False)
    assert countries("ready=false&limit=1") == ("c", False)


def test_a_column_that_is_called_ready_can_be_filtered(console, log, revenue):
    log.put(revenue, {"a": {"ready": "yes"}, "b": {"ready": "no"}})
    wait_until(lambda: len(console.rows(revenue)) == 2, 20, "two rows")

    assert console.rows(revenue, "?ready.eq=yes") == [{"ready": "yes"}]
    assert console.rows(revenue, "?ready=true") == []
    status, body = console.get(f"/views/{revenue}?ready=yes")
    assert (status, body["error"]) == (
        400,
        "ready is wrong; got 'yes'; expected true or false; a column of that name is filtered with ready.eq=",
    )


def test_an_operator_says_itself_when_a_row_is_complete_and_its_column_stays_hidden(console, driver):
    given = {"a": row("a", 1, _until=at(9)), "b": row("b", 1, _until=at(8)), "c": {"country": "c"}}
    driver.publish({"orders": {0: 1}}, written(given), complete=NINE + 8 * MINUTE)

    found = console.get(f"/views/{driver.view}?at_least=0~orders:0=1&order=country")[1]["rows"]

    assert [each.get("_ready") for each in found] == [False, True, None]
    assert not any("_until" in each for each in found)


def test_rows_of_a_table_that_lags_its_view_are_not_called_ready(console, driver):
    driver.publish({"orders": {0: 1}}, written({"a": row("a", 1)}), complete=NINE)
    console.get(f"/views/{driver.view}?at_least=0~orders:0=1")
    console.delivery.stop()
    driver.publish({"orders": {0: 2}}, written({"a": row("a", 2)}), complete=NINE + 9 * MINUTE)
    later = f"/views/{driver.view}?at_least=0~orders:0=2&wait=0.5"
    assert "the table" in console.get(later)[1]["what"]

    _, body = console.get(f"/views/{driver.view}")

    assert body["complete"] == at(0)
    assert [(r["revenue"], r["_ready"]) for r in body["rows"]] == [(1, False)]


def test_before_anything_was_heard_all_rows_are_provisional(console, driver):
    driver.publish({"orders": {0: 1}}, written({"a": row("a", 1)}), complete=-(1 << 62))

    _, body = console.get(f"/views/{driver.view}?at_least=0~orders:0=1")

    assert body["complete"] == "0001-01-01T00:00:00.000000Z"
    assert [r["_ready"] for r in body["rows"]] == [False]


def test_views_without_results_or_watermark_say_nothing_and_cost_no_time(console, log, revenue, bootstrap):
    log.put(revenue, {"a": row("a", 1)})
    wait_until(lambda: len(console.rows(revenue)) == 1, 20, "a row")
    begun = time.monotonic()
    for _ in range(20):
        _, body = console.get(f"/views/{revenue}")
        assert (body["complete"], body["rows"][0]["_ready"]) == (None, False)
    assert time.monotonic() - begun < 5 * FIRST_S  # a delay each time would take 20

    Client(bootstrap).ensure_topics([topic(revenue)], 1)
    driver = Driver(bootstrap, revenue, partitions=2)
    driver.publish({"orders": {0: 1}}, {})
    assert console.get(f"/views/{revenue}?at_least=0~orders:0=1")[1]["complete"] is None


def test_a_log_that_is_away_delays_one_request_and_no_more(console, own_broker, tmp_path):
    away = type(console)(own_broker.bootstrap, tmp_path / "away", {"v": ("window",)})
    own_broker.end()
    away.start()
    try:
        assert away.get("/views/v")[1]["complete"] is None
        begun = time.monotonic()
        for _ in range(20):
            assert away.get("/views/v")[0] == 200
        assert time.monotonic() - begun < 5 * FIRST_S  # a delay each time would take 20
    finally:
        away.stop()


def test_results_that_come_after_the_first_look_are_found(console, log, revenue, bootstrap):
    assert console.get(f"/views/{revenue}")[1]["complete"] is None

    Driver(bootstrap, revenue, partitions=2).publish({"orders": {0: 1}}, {}, complete=NINE)

    wait_until(lambda: console.get(f"/views/{revenue}")[1]["complete"] == at(0), 20, "the result")


def test_many_first_requests_are_all_answered_with_what_is_complete(console, driver):
    from concurrent.futures import ThreadPoolExecutor

    driver.publish({"orders": {0: 1}}, {}, complete=NINE)
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: console.get(f"/views/{driver.view}")[1]["complete"], range(20)))

    assert found == [at(0)] * 20


def test_views_are_listed_with_what_they_are_complete_up_to(three, driver):
    assert [(view["name"], view["complete"]) for view in three.get("/views")[1]] == [(driver.view, at(7))]


def test_the_demo_reads_the_columns_of_a_view_and_follows_it_past_news_of_being_complete(three, driver):
    with Page(three.url, [driver.view]) as page:
        assert page.rows(driver.view) == [row(c, n, 5 * n) for n, c in enumerate("abc")]
        page.follow(SystemClock())
        wait_until(lambda: page.rows_seen() == {driver.view: 3}, 20, "the snapshot")
        driver.publish({"orders": {0: 3}}, complete=NINE + 8 * MINUTE)
        driver.publish({"orders": {0: 4}}, written({"d": row("d", 1, 30)}), complete=NINE + 9 * MINUTE)
        wait_until(lambda: page.rows_seen() == {driver.view: 4}, 20, "the fourth row")


# ---- changes --------------------------------------------------------------------------------------------


def next_complete(stream):
    """What the next event says that knows; the table may still reach the log's end, without a change."""
    while True:
        _, data = stream.next(20)
        assert not data.get("changes")
        if data.get("complete"):
            return data["complete"]


def test_a_stream_says_when_rows_are_complete_and_how_far_the_view_is(three, driver, events):
    stream = events(f"/views/{driver.view}/changes")
    name, data = stream.next()
    assert (name, data["complete"]) == ("snapshot", at(7))
    assert {each["key"]: each["until"] for each in data["rows"]} == {"a": at(5), "b": at(10), "c": at(15)}

    driver.publish({"orders": {0: 3}}, complete=NINE + 8 * MINUTE)
    assert next_complete(stream) == at(8)

    more = {"d": row("d", 1, 30), "e": row("e", 1, 30, _until=at(50)), "f": {"country": "f"}}
    driver.publish({"orders": {0: 4}}, written(more), complete=NINE + 9 * MINUTE)
    changes, complete = [], None
    while complete != at(9):
        name, data = stream.next()
        changes += data.get("changes", [])
        complete = data.get("complete", complete)
    assert {each["key"]: each["until"] for each in changes} == {"d": at(35), "e": at(50), "f": None}
    assert all("_until" not in each["row"] for each in changes)


def test_a_stream_never_says_complete_before_its_rows_were_sent(console, driver, events):
    driver.publish({"orders": {0: 1}}, written({"a": row("a", 0)}), complete=NINE)
    console.get(f"/views/{driver.view}?at_least=0~orders:0=1")
    stream = events(f"/views/{driver.view}/changes")
    assert stream.next()[1]["complete"] == at(0)

    seen, complete = 0, at(0)
    for n in range(1, 31):
        driver.publish({"orders": {0: n + 1}}, written({"a": row("a", n)}), complete=NINE + n * MINUTE)
    while complete != at(30):
        name, data = stream.next()
        if name == "complete":
            complete = data["complete"]
            assert complete <= at(seen)
        elif data["changes"]:
            seen = data["changes"][-1]["row"]["revenue"]


def test_complete_is_sent_twice_a_second_at_most_and_in_the_end(three, driver, events):
    stream = events(f"/views/{driver.view}/changes")
    stream.next()
    begun = time.monotonic()
    sent = []
    for n in range(40):
        driver.publish({"orders": {0: 3 + n}}, complete=NINE + (8 + n) * MINUTE)
    while not sent or sent[-1] != at(47):
        sent.append(next_complete(stream))

    assert sent == sorted(set(sent))
    assert len(sent) <= 2 + (time.monotonic() - begun) / 0.5


def test_a_stream_has_a_heartbeat_while_results_come_that_say_nothing_new(three, driver, events):
    stream = events(f"/views/{driver.view}/changes")
    stream.next()
    over = threading.Event()

    def publish():
        n = 3
        while not over.is_set():
            driver.publish({"orders": {0: n}}, complete=NINE + 7 * MINUTE)
            n += 1

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        wait_until(lambda: stream._response.readline().startswith(b":"), 10, "a comment")
    finally:
        over.set()
        publishing.join()


def test_a_reader_that_resumes_learns_what_is_complete(three, driver, events):
    first = events(f"/views/{driver.view}/changes")
    first.next()
    first.close()

    again = events(f"/views/{driver.view}/changes", first.last)

    assert again.next() == ("changes", {"changes": [], "total": 3})
    assert next_complete(again) == at(7)


def test_a_stream_that_was_opened_before_the_first_result_learns_of_it(console, revenue, bootstrap, events):
    stream = events(f"/views/{revenue}/changes")
    assert stream.next()[1]["complete"] is None

    Driver(bootstrap, revenue, partitions=2).publish({"orders": {0: 1}}, {}, complete=NINE)

    assert next_complete(stream) == at(0)


def test_decimals_are_numbers_to_a_reader_because_the_view_says_its_types(console, driver):
    rows = {
        c: {"country": c, "revenue": r, "release": r}
        for c, r in {"de": "9.50", "fr": "100.00", "us": "20.00"}.items()
    }
    kinds = {"country": "string", "revenue": "decimal(38,2)", "release": "string"}
    driver.publish({"orders": {0: 1}}, written(rows), columns=kinds)
    wait_until(lambda: len(console.rows(driver.view)) == 3, 20, "the rows")

    def asked(query):
        return [row["country"] for row in console.rows(driver.view, query)]

    assert asked("?order=-revenue&limit=2") == ["fr", "us"]
    assert asked("?revenue.gt=50") == asked("?revenue=100") == ["fr"]
    assert asked("?order=-release&limit=2") == ["de", "us"]
