"""What tests of captures share: a database of their own, a capture in a thread, and what is in its topics."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from headwater.capture.loop.feed import Feed
from headwater.capture.state import State, last_state
from headwater.client.client import Client
from support.servers import wait_until


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


def drop_slots(url: str) -> None:
    """Drops the slots of a database, as soon as the server has noticed that their readers are gone."""
    base = url.rsplit("/", 1)[1]
    with psycopg.connect(url.rsplit("/", 1)[0] + "/postgres", autocommit=True) as connection:
        query = f"SELECT slot_name, active FROM pg_replication_slots WHERE database = '{base}'"
        wait_until(
            lambda: not any(active for _, active in connection.execute(query).fetchall()), 30, "idle slots"
        )
        for slot, _ in connection.execute(query).fetchall():
            connection.execute(f"SELECT pg_drop_replication_slot('{slot}')")


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


class Unknown(AssertionError):  # noqa: N818 (said of a row)
    """A change of a row that is not there."""


def table(found: list[Event], topic: str) -> dict[str, Any]:
    """The rows that a topic leaves, by key; what a reader must not see raises.

    A truncate takes no row away here: each of them is deleted, and a truncate in one partition says nothing of when in the others.
    To PostgreSQL a table that was truncated is empty for older snapshots too, so that rows may be unknown that change before the first
    truncate after a snapshot; before a later one they may not.
    """
    rows: dict[str, Any] = {}
    truncates = [e.value["source"] for e in found if e.topic == topic and e.value and e.value["op"] == "t"]
    live = [each.get("lsn") or 0 for each in truncates if each["snapshot"] != "true"]
    has_snapshot_truncate = len(live) < len(truncates)
    emptied = (max if has_snapshot_truncate else min)(live, default=0)
    for event in found:
        if event.topic != topic:
            continue
        key = json.dumps(event.key)
        if event.value is None:
            assert key not in rows
        elif event.value["op"] == "t":
            continue
        elif event.value["op"] == "d":
            if key not in rows and (event.value["source"].get("lsn") or 0) >= emptied:
                raise Unknown(f"{key} is deleted and was not there")
            rows.pop(key, None)
        else:
            again = has_snapshot_truncate and event.value["op"] == "r"
            assert again or key not in rows or event.value["op"] == "u", f"{key} {event.value['op']}"
            if (
                key not in rows
                and event.value["op"] == "u"
                and (event.value["source"].get("lsn") or 0) >= emptied
            ):
                raise Unknown(f"{key} is changed and was not there")
            rows[key] = event.value["after"]
    return rows


def once_in_order(found: list[Event]) -> None:
    """Every change of a row once, and in the order of the database's log; one that comes again or too late raises.

    Rows of a snapshot are as of one moment, and changes that it has not seen may have been written into the log before: they come once.
    """
    last: dict[tuple[str, str], tuple[Any, ...]] = {}
    read: set[tuple[Any, ...]] = set()
    for event in found:
        if event.key is None or event.value is None or "source" not in event.value:
            continue
        row, op, source = (event.topic, json.dumps(event.key)), event.value["op"], event.value["source"]
        place = (source["lsn"],) if "lsn" in source else (source["file"], source["pos"], source["row"])
        if source["snapshot"] == "false":
            before = last.get(row)
            assert before is None or place > before, f"{row} {op} at {place} comes after {before}"
            last[row] = place
        else:
            assert (*row, op, place) not in read, f"{row} {op} comes twice from the snapshot at {place}"
            read.add((*row, op, place))


def by_key(found: list[Event], topic: str) -> dict[str, Any]:
    """The rows of a reader who passes over truncates, as views and sinks do."""
    rows: dict[str, Any] = {}
    for event in found:
        if event.topic != topic or event.key is None:
            continue
        after = None if event.value is None else event.value["after"]
        if after is None:
            rows.pop(json.dumps(event.key), None)
        else:
            rows[json.dumps(event.key)] = after
    return rows


def notices(log: str, name: str) -> list[dict[str, Any]]:
    """The notices of a capture."""
    client = Client(log)
    try:
        return [json.loads(message.value()) for message in client.read([f"{name}.notifications"])]
    finally:
        client.close()


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
        thread.join(120)
    if failures:
        raise failures[0]


APP = """
import headwater as hw

app = hw.App("captured")
app.capture({name!r}, hw.capture.{declared})
"""


class CaptureProcess:
    """``headwater capture run`` as a user runs it."""

    def __init__(self, folder: Path, name: str, declared: str, log: str) -> None:
        self._app = folder / "app.py"
        self._app.write_text(APP.format(name=name, declared=declared))
        self._name = name
        self._environ = os.environ | {
            "HEADWATER_LOG": f"kafka://{log}",
            "HEADWATER_VIEW_TABLES": f"sqlite:{folder / 'views'}",
        }
        self.log = folder / "capture.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "headwater", "capture", "run", self._name, str(self._app)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environ)

    @property
    def peak_mb(self) -> float:
        """The most memory that it has had at a time."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024

    def wait(self) -> int:
        """How it has ended by itself."""
        assert self._process is not None
        return self._process.wait(120)

    def end(self, number: signal.Signals) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-3000:]
        self._process.send_signal(number)
        return self._process.wait(120)


def committed(log: str, name: str) -> State | None:
    """The last state of a capture; None before it has committed anything."""
    client = Client(log)
    try:
        begun = f"{name}.capture" in client.partitions()
    finally:
        client.close()
    return last_state(log, name) if begun else None


def streaming(url: str, slot: str) -> None:
    """Waits until a capture has finished its snapshot and follows the log."""

    def active() -> bool:
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT state FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid"
                f" WHERE slot_name = '{slot}' AND NOT temporary"
            ).fetchone()
        return found is not None and found[0] in {"streaming", "catchup"}

    wait_until(active, 30, f"slot {slot} in use")
