"""Rows that hold what a reader has written: answered when they do, and never before."""

import json
import threading
import time
import uuid

import pytest

import headwater as hw
from headwater.client.client import Client
from support.resultlog import Driver
from support.servers import both_logs, wait_until


@pytest.fixture
def orders(bootstrap):
    name = f"orders-{uuid.uuid4().hex[:8]}"
    Client(bootstrap).ensure_topics([name], 1)
    return name


@pytest.fixture
def driver(bootstrap, revenue):
    return Driver(bootstrap, revenue, partitions=2)


def row(country, revenue):
    return json.dumps({"country": country, "revenue": revenue}).encode()


def countries(body):
    return [each["country"] for each in body["rows"]]


class Asking:
    """A request on its way."""

    def __init__(self, console, path):
        self.answer = None
        self._thread = threading.Thread(target=self._ask, args=(console, path))
        self._thread.start()

    def _ask(self, console, path):
        self.answer = console.get(path)

    def result(self):
        self._thread.join(120)
        return self.answer


@both_logs
def test_rows_are_answered_when_the_table_holds_what_was_written(console, bootstrap, revenue, orders, driver):
    with hw.Writer(bootstrap) as writer:
        first = writer.send(orders, b"an order")
        second = writer.send(orders, b"another")
    driver.publish({orders: {0: 1}}, {"DE": row("DE", 1)})

    status, body = console.get(f"/views/{revenue}?at_least={first}")
    assert (status, countries(body)) == (200, ["DE"])

    asking = Asking(console, f"/views/{revenue}?at_least={second}&order=country")
    driver.begin({orders: {0: 2}}, {"FR": row("FR", 2), "GB": row("GB", 3), "DE": row("DE", 4)})
    time.sleep(0.3)  # time enough to answer too early
    assert asking.answer is None
    driver.commit()
    status, body = asking.result()
    assert (status, countries(body)) == (200, ["DE", "FR", "GB"])
    assert body["rows"][0]["revenue"] == 4


def test_a_table_that_lags_its_view_is_waited_for(console, log, revenue, orders, driver):
    console.delivery.stop()
    driver.publish({orders: {0: 1}}, {"DE": row("DE", 1)})

    status, body = console.get(f"/views/{revenue}?at_least=0~{orders}:0=1&wait=0.5")
    assert status == 504
    assert body["what"] == f"the table of view {revenue!r} has not reached the position within 0.5 s"
    assert body["expected"].startswith(f"0~{revenue}:")

    asking = Asking(console, f"/views/{revenue}?at_least=0~{orders}:0=1")
    again = type(console.delivery)(console.bootstrap, [revenue], console.folder, console.hub.publish)
    again.start()
    try:
        assert asking.result()[0] == 200
    finally:
        again.stop()


def test_a_view_that_lags_is_an_answer_with_how_far_it_is(console, revenue, orders, driver):
    driver.publish({orders: {0: 4}})

    status, body = console.get(f"/views/{revenue}?at_least=0~{orders}:0=5&wait=0.5")

    assert status == 504
    assert (body["got"], body["expected"]) == (f"0~{orders}:0=4", f"0~{orders}:0=5")


def test_a_position_of_the_view_itself_needs_no_result(console, log, revenue):
    log.put(revenue, {"DE": {"country": "DE"}}, partition=1)

    status, body = console.get(f"/views/{revenue}?at_least=0~{revenue}:1=1")
    assert (status, countries(body)) == (200, ["DE"])
    assert console.get(f"/views/{revenue}?at_least={body['position']}")[0] == 200
    assert console.get(f"/views/{revenue}?at_least=0~{revenue}:1=2&wait=0.2")[0] == 504


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("at_least=soon", "this is not a position"),
        ("at_least=0~clicks:0=1", "does not read clicks; expected a position of ORDERS"),
        (
            "at_least=0~ORDERS:0=1&wait=0",
            "wait is wrong; got '0'; expected seconds, more than 0 and at most 60",
        ),
        ("at_least=0~ORDERS:0=1&wait=x", "wait is wrong"),
        ("wait=5", "wait without at_least; a column of that name is filtered with wait.eq="),
    ],
)
def test_what_cannot_be_waited_for_is_refused(console, orders, driver, query, message):
    driver.publish({orders: {0: 1}})

    status, body = console.get(f"/views/{driver.view}?{query.replace('ORDERS', orders)}")

    assert status == 400
    assert message.replace("ORDERS", orders) in body["error"]


def test_a_view_without_results_is_refused(console, revenue, orders):
    status, body = console.get(f"/views/{revenue}?at_least=0~{orders}:0=1")

    assert status == 400
    assert "with results" in body["error"]


def test_many_requests_that_wait_hold_up_no_others_and_share_one_connection(console, revenue, orders, driver):
    driver.publish({orders: {0: 0}})
    threads = threading.active_count()
    waiting = [
        Asking(console, f"/views/{revenue}?at_least=0~{orders}:0={n % 5 + 1}&wait=30") for n in range(100)
    ]
    wait_until(lambda: len(console.reach._wakes) == 100, 20, "a hundred requests that wait")

    begun = time.monotonic()
    assert console.get(f"/views/{revenue}")[0] == 200
    assert time.monotonic() - begun < 2
    assert threading.active_count() < threads + 100 + 50

    for n in range(1, 6):
        driver.publish({orders: {0: n}}, {"DE": row("DE", n)})
    for n, asking in enumerate(waiting):
        status, body = asking.result()
        assert status == 200
        assert body["rows"][0]["revenue"] >= n % 5 + 1


def test_a_console_that_stops_answers_those_who_wait(console, revenue, orders, driver):
    driver.publish({orders: {0: 1}})
    waiting = Asking(console, f"/views/{revenue}?at_least=0~{orders}:0=2&wait=60")
    wait_until(lambda: console.reach._wakes, 20, "a request that waits")

    console.reach.close()

    status, body = waiting.result()
    assert (status, body["error"]) == (503, "the console is stopping")
