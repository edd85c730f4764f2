"""The console over HTTP: rows, errors, changes as they commit."""

import socket

import pytest

from headwater.health.condition import PartStatus, State
from headwater.view.hub import Hub
from support.servers import wait_until


def row(country, revenue, minute=0):
    window = {
        "start": f"2026-01-05T09:{minute:02}:00.000000Z",
        "end": f"2026-01-05T09:{minute + 5:02}:00.000000Z",
    }
    return {"window": window, "country": country, "revenue": revenue}


def provisional(row):
    """A row in an answer while it is not known whether it is complete."""
    return row | {"_ready": False}


@pytest.fixture
def filled(console, log, revenue):
    """The console with three rows in its view."""
    log.put(revenue, {"DE": row("DE", 10), "FR": row("FR", 20, 5), "GB": row("GB", 30, 5)})
    wait_until(lambda: len(console.rows(revenue)) == 3, 20, "three rows")
    return console


def test_views_are_listed_with_key_rows_and_position(filled, revenue):
    status, views = filled.get("/views")

    assert status == 200
    assert [(view["name"], view["key"], view["rows"]) for view in views] == [
        (revenue, ["window", "country"], 3)
    ]
    assert views[0]["position"].partition("~")[2].startswith(f"{revenue}:")
    assert views[0]["changed_at"] > 0


def test_rows_are_filtered_ordered_and_limited(filled, revenue):
    assert filled.rows(revenue, "?country=FR") == [provisional(row("FR", 20, 5))]
    assert [r["country"] for r in filled.rows(revenue, "?order=-revenue&limit=2")] == ["GB", "FR"]
    assert [
        r["country"] for r in filled.rows(revenue, "?window.start.gte=2026-01-05T09:05:00Z&order=country")
    ] == ["FR", "GB"]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/views/NAMEx", 404, "unknown view 'NAMEx'; did you mean 'NAME'?"),
        ("/views/..%2F..%2Fetc%2Fpasswd", 404, ""),
        ("/live/nothing-like-it", 404, "views are: NAME"),
        ("/views/nothing-like-it/changes", 404, "unknown view"),
        ("/views/NAME?countr=DE", 400, "unknown column 'countr'; did you mean 'country'?"),
        ("/views/NAME?limit=1000000", 400, "expected a number from 1 to 100000"),
        ("/nowhere", 404, "Not Found"),
    ],
)
def test_errors_are_json_and_name_the_nearest_right_one(filled, revenue, path, status, message):
    found, body = filled.get(path.replace("NAME", revenue))

    assert found == status
    assert message.replace("NAME", revenue) in body["error"]
    assert set(body) == {"error", "what", "got", "expected", "hint"}


def part(name, state, error=""):
    return PartStatus("view", name, State(state), 1_000, lag_records=3, error=error)


@pytest.mark.parametrize(
    ("state", "health", "ready"),
    [
        ("running", 200, 200),
        ("paused", 200, 200),
        ("starting", 200, 503),
        ("failing", 503, 503),
        ("stopped", 503, 503),
    ],
)
def test_health_and_readiness_are_those_of_every_part(console, state, health, ready):
    console.parts = (part("visits", "running"), part("revenue", state, "the disk is full"))
    assert [console.get(path)[0] for path in ("/health", "/ready")] == [health, ready]
    assert [console.get(f"{path}?part=visits")[0] for path in ("/health", "/ready")] == [200, 200]
    status, body = console.get("/health?part=revenue")
    assert status == health
    assert [(each["name"], each["state"], each["lag_records"]) for each in body["parts"]] == [
        ("revenue", state, 3)
    ]
    assert (body["parts"][0]["since_ms"], body["parts"][0]["error"]) == (1_000, "the disk is full")
    assert len(console.get("/health")[1]["parts"]) == 2


def test_the_health_of_a_part_that_is_not_there_is_not_found(console):
    status, body = console.get("/health?part=nothing")
    assert (status, body["hint"]) == (404, "parts are: none yet")


def test_a_stream_begins_with_a_snapshot_and_continues_with_commits(filled, log, revenue, events):
    stream = events(f"/views/{revenue}/changes")

    name, data = stream.next()
    assert name == "snapshot"
    assert data["key"] == ["window", "country"]
    assert {change["key"]: change["row"] for change in data["rows"]} == log.expected(revenue)

    log.put(revenue, {"DE": row("DE", 11) | {"_version": 3}})
    name, data = stream.next()
    assert name == "changes"
    assert [(change["key"], change["row"]) for change in data["changes"]] == [("DE", row("DE", 11))]

    log.put(revenue, {"FR": None})
    assert [(c["key"], c["row"]) for c in stream.next()[1]["changes"]] == [("FR", None)]


def test_a_dropped_connection_resumes_without_gap_or_repeat(filled, log, revenue, events):
    stream = events(f"/views/{revenue}/changes")
    stream.next()
    log.put(revenue, {"DE": row("DE", 11)})
    stream.until("DE")
    stream.close()
    log.put(revenue, {"DE": row("DE", 12), "FR": None, "US": row("US", 1)})
    expected = [provisional(each) for each in (row("DE", 12), row("GB", 30, 5), row("US", 1))]
    wait_until(lambda: filled.rows(revenue, "?order=country") == expected, 20, "the changes in the table")

    again = events(f"/views/{revenue}/changes", stream.last)
    name, data = again.next()
    assert name == "changes"
    assert {c["key"]: c["row"] for c in data["changes"]} == {
        "DE": row("DE", 12),
        "FR": None,
        "US": row("US", 1),
    }

    log.put(revenue, {"JP": row("JP", 5)})
    assert [c["key"] for c in again.next()[1]["changes"]] == ["JP"]


def test_a_reader_resumes_after_the_console_was_restarted(filled, log, revenue, events):
    stream = events(f"/views/{revenue}/changes")
    stream.next()
    filled.stop()
    assert stream.ended()
    log.put(revenue, {"US": row("US", 1)})
    filled.start()
    wait_until(lambda: len(filled.rows(revenue)) == 4, 20, "the fourth row")

    again = events(f"/views/{revenue}/changes?since={stream.last}")

    assert [c["key"] for c in again.next()[1]["changes"]] == ["US"]


@pytest.mark.parametrize("token", ["nonsense", "1~other:0=5", "ffffffffffff~x:0=1"])
def test_a_token_that_means_nothing_gets_a_snapshot(filled, revenue, events, token):
    assert events(f"/views/{revenue}/changes", token).next()[0] == "snapshot"


def test_readers_that_connect_at_any_moment_end_up_with_the_same_rows(console, log, revenue, events):
    streams = []
    for n in range(80):
        if n % 16 == 8:
            streams.append(events(f"/views/{revenue}/changes"))
        log.put(revenue, {f"k{n % 7}": row("DE", n), f"k{n % 5}": None if n % 3 else row("FR", n)})
    expected = log.expected(revenue)

    for stream in streams:
        while stream.rows != expected:
            stream.next()
    assert all(stream.rows == expected for stream in streams)


def test_a_reader_that_does_not_read_holds_up_no_others_and_no_memory(console, log, revenue, events):
    console.stop()
    console.start(Hub(pending_changes_max=1000))
    stuck = socket.create_connection(("127.0.0.1", console.port))
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.sendall(f"GET /views/{revenue}/changes HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    quick = events(f"/views/{revenue}/changes")
    quick.next()
    wait_until(lambda: console.hub.subscribers(revenue) == 2, 10, "two subscribers")

    for n in range(60):
        log.put(revenue, {f"k{n}-{i}": row("x" * 500, i) for i in range(100)})
    log.put(revenue, {"end": row("DE", 0)})

    received = []
    while "end" not in received:
        _, data = quick.next()
        received += [change["key"] for change in data.get("rows", data.get("changes"))]
    queues = [len(s._queue) for s in console.hub._subscriptions[revenue]]
    assert max(queues) <= 1000
    assert len(console.rows(revenue, "?limit=10000")) == 6001
    stuck.close()
    wait_until(lambda: console.hub.subscribers(revenue) == 1, 10, "the stuck reader is forgotten")


def test_an_idle_stream_has_a_heartbeat(console, log, revenue, events):
    stream = events(f"/views/{revenue}/changes")
    stream.next()

    wait_until(lambda: stream._response.readline().startswith(b":"), 10, "a comment")


def test_activity_shows_the_first_page_commits(console, log, revenue, events):
    stream = events("/activity")
    assert stream.next()[1]["views"][0]["rows"] == 0

    log.put(revenue, {"DE": row("DE", 10)})

    data = stream.next()[1]
    while not data["views"][0]["rows"]:
        data = stream.next()[1]
    assert (data["app"], data["views"][0]["rows"], data["views"][0]["changes"]) == ("shop", 1, 1)


def test_pages_allow_no_foreign_script(console, revenue):
    import http.client

    for path in ("/", f"/live/{revenue}", "/static/live.js", "/static/console.css"):
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        assert response.status == 200
        assert "http://" not in text.replace("http://www.w3.org/", "")
        assert "https://" not in text
        if not path.startswith("/static"):
            assert response.getheader("content-security-policy").startswith("default-src 'self'")
