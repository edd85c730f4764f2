"""What tests of captures share: a database of their own, a capture in a thread, and what is in its topics."""

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg

from headwater.capture.feed import Feed
from headwater.client import Client
from servers import wait_until


class Event(NamedTuple):
    """A record of a change topic."""

    topic: str
    key: Any
    value: Any


def database(url: str) -> str:
    """The address of a new database on the server."""
    name = f"db_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return url.rsplit("/", 1)[0] + f"/{name}"


def execute(url: str, *statements: str) -> None:
    """Each statement in a transaction of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def events(log: str, name: str) -> list[Event]:
    """All committed records of a capture's change topics, in the order of each topic."""
    client = Client(log)
    try:
        own = {f"{name}.{each}" for each in ("capture", "schema", "control", "notifications")}
        topics = [each for each in client.partitions() if each.startswith(f"{name}.") and each not in own]
        return [
            Event(message.topic(), _parsed(message.key()), _parsed(message.value()))
            for message in client.read(topics)
        ]
    finally:
        client.close()


def _parsed(value: bytes | None) -> Any:
    return None if value is None else json.loads(value)


def table(found: list[Event], topic: str) -> dict[str, Any]:
    """The rows that a topic leaves, by key; what a reader must not see raises."""
    rows: dict[str, Any] = {}
    for event in found:
        if event.topic != topic:
            continue
        key = json.dumps(event.key)
        if event.value is None:
            assert key not in rows
        elif event.value["op"] == "t":
            rows.clear()
        elif event.value["op"] == "d":
            assert key in rows, f"{key} is deleted and was not there"
            del rows[key]
        else:
            assert (key in rows) == (event.value["op"] == "u"), f"{key} {event.value['op']}"
            rows[key] = event.value["after"]
    return rows


@contextlib.contextmanager
def running(feed: Feed) -> Iterator[None]:
    """A capture in a thread, ended at the end; what it has raised is raised."""
    stop, failures = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            feed.run(stop)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    if failures:
        raise failures[0]


def streaming(url: str, slot: str) -> None:
    """Waits until a capture has its snapshot behind it and follows the log."""

    def active() -> bool:
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT state FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid"
                f" WHERE slot_name = '{slot}' AND NOT temporary"
            ).fetchone()
        return found is not None and found[0] in {"streaming", "catchup"}

    wait_until(active, 30, f"slot {slot} in use")
