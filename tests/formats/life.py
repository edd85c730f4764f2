"""A part of an application's life in a folder: ``application/app.py`` takes in orders and rows, step by step, each step in processes of its own.

It serves ``make_application.py``, which runs it with the code of any commit, and the tests, which take up the folders. So it asks for no more
than what the earliest of these commits has: the command line, and a Kafka client.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from headwater.view.tables.delivery import Delivery

HERE = Path(__file__).parent
VIEWS = ("totals", "minutes", "counted", "visits", "large")
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
LIMIT_S = 240
COUNTRIES = ("DE", "FR", "IT")


def orders(numbers: range) -> list[dict[str, Any]]:
    """Orders by number, one a second from the same moment on: what views come to depends on the numbers alone."""
    return [
        {
            "id": n,
            "country": COUNTRIES[n % 3],
            "cents": 100 + n,
            "at": f"2026-01-01T00:{n // 60 % 60:02}:{n % 60:02}Z",
        }
        for n in numbers
    ]


class Life:
    """An application in a folder, whose broker listens on a port while `broker` is entered."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.bootstrap = f"127.0.0.1:{port}"
        self.environ = os.environ | {
            "HEADWATER_LOG": f"embedded:{folder / 'data'}",
            "HEADWATER_VIEW_TABLES": f"sqlite:{folder / 'data' / 'views'}",
            "HEADWATER_BROKER_PORT": str(port),
            "HEADWATER_SPARK": "local[2,4]",
            "JAVA_TOOL_OPTIONS": JAVA,
        }

    def begin(self) -> None:
        """A folder with the application and a database of its own."""
        self.folder.mkdir(parents=True)
        shutil.copy(HERE / "application" / "app.py", self.folder / "app.py")
        with sqlite3.connect(self.folder / "shop.db") as db:
            db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, cents INTEGER)")
        db.close()

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "headwater", *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @contextmanager
    def broker(self) -> Iterator[None]:
        with self._running("broker") as process:
            self._until(lambda: self._answers(process), "the broker's answer")
            yield

    def send(self, numbers: range) -> None:
        out = Producer({"bootstrap.servers": self.bootstrap})
        for order in orders(numbers):
            out.produce("orders", json.dumps(order), str(order["id"]))
        assert out.flush(30) == 0

    def put(self, topic: str, key: str, value: Any) -> None:
        out = Producer({"bootstrap.servers": self.bootstrap})
        out.produce(topic, json.dumps(value), key)
        assert out.flush(30) == 0

    def views(self) -> str:
        """Takes what is in the log into all views; what the process says when it fails, nothing otherwise."""
        process = self.command("run", "app.py", "--once")
        said, _ = process.communicate(timeout=LIMIT_S)
        return said if process.returncode else ""

    def capture(self, *statements: str) -> str:
        """Has a writer change the database, and the capture publish it all; what the process says when it fails, nothing otherwise."""
        with self._running("capture", "run", "shop", "app.py") as process:
            self._until(lambda: self._is_captured() or process.poll() is not None, "the capture's snapshot")
            if process.poll() is None:
                with sqlite3.connect(self.folder / "shop.db", timeout=30) as db:
                    for statement in statements:
                        db.execute(statement)
                db.close()
                self._until(lambda: self._is_captured() or process.poll() is not None, "the capture's end")
            if process.poll() is not None:
                return process.communicate()[0]
        return ""

    def sink(self) -> str:
        """Has the sink claim its partitions and brings it to the end of its topic; what the process says when it fails, nothing otherwise."""
        before = self._claims()

        def done() -> bool:
            return self._claims() > before and self._sunk() == self.rows("totals")

        with self._running("sink", "run", "app.py") as process:
            self._until(lambda: done() or process.poll() is not None, "the sink")
            if process.poll() is not None:
                return process.communicate()[0]
        return ""

    def tables(self) -> None:
        """Brings the tables of the console to the ends of their topics."""
        failures: list[Exception] = []
        done = threading.Event()
        delivery = Delivery(
            self.bootstrap,
            self.shown,
            self.folder / "data" / "views",
            lambda *_: done.set(),
            on_failure=failures.append,
        )
        delivery.start()
        try:
            self._until(
                lambda: failures or all(self.table(view) == self.rows(view) for view in self.shown),
                "the tables",
            )
        finally:
            delivery.stop()
        if failures:
            raise failures[0]

    # ---- what there is -----------------------------------------------------------------------------------

    @property
    def shown(self) -> list[str]:
        """The views of the application in this folder, which may be older than the last ones that were added."""
        code = (self.folder / "app.py").read_text()
        return [view for view in VIEWS if f"def {view}(" in code]

    def records(self, topic: str) -> list[tuple[str, Any]]:
        """The committed records of a topic, by partition."""
        reader = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "life",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            known = reader.list_topics(timeout=30).topics
            if topic not in known:
                return []
            places = [TopicPartition(topic, number, 0) for number in sorted(known[topic].partitions)]
            reader.assign(places)
            found, open_ = [], len(places)
            while open_:
                message = reader.poll(30)
                assert message is not None, f"{topic} sent nothing"
                if message.error() is not None:
                    open_ -= 1
                else:
                    value = message.value()
                    found.append((message.key().decode(), None if value is None else json.loads(value)))
            return found
        finally:
            reader.close()

    def rows(self, view: str) -> dict[str, Any]:
        """The rows of a view in its topic, without the hidden columns."""
        return _shown(dict(self.records(view)))

    def table(self, view: str) -> dict[str, Any]:
        """The rows of a view in the console's table."""
        path = self.folder / "data" / "views" / f"{view}.db"
        if not path.exists():
            return {}
        db = sqlite3.connect(path, timeout=30)
        try:
            made = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'row'").fetchone()[0]
            found = db.execute("SELECT key, value FROM row").fetchall() if made else []
        finally:
            db.close()
        return _shown({key: None if value is None else json.loads(value) for key, value in found})

    def build(self, view: str) -> Any:
        """When the console's table of a view was begun."""
        db = sqlite3.connect(self.folder / "data" / "views" / f"{view}.db", timeout=30)
        try:
            return db.execute("SELECT build FROM build").fetchone()[0]
        finally:
            db.close()

    def state(self) -> dict[str, Any]:
        """The capture's last state."""
        found = self.records("shop.capture")
        return found[-1][1] if found else {}

    def run_of(self, view: str) -> str:
        """The run that the view's last result is of."""
        return self.records(f"{view}.progress")[-1][1]["run"]

    def _claims(self) -> int:
        """How often the sink has claimed partitions."""
        return sum(claim for (claim,) in self._asked_sink("headwater_position", "claim"))

    def _asked_sink(self, table: str, columns: str) -> list[Any]:
        path = self.folder / "sink.db"
        if not path.exists():
            return []
        db = sqlite3.connect(path, timeout=30)
        try:
            made = db.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
            return db.execute(f"SELECT {columns} FROM {table}").fetchall() if made else []
        finally:
            db.close()

    def _sunk(self) -> dict[str, Any]:
        found = self._asked_sink("totals", "country, orders, cents")
        return {country: {"country": country, "orders": n, "cents": cents} for country, n, cents in found}

    def _is_captured(self) -> bool:
        """Whether the log has all changes of the database."""
        db = sqlite3.connect(self.folder / "shop.db", timeout=30)
        try:
            if not db.execute(
                "SELECT count(*) FROM sqlite_master WHERE name = '_headwater_changes'"
            ).fetchone()[0]:
                return False
            last = db.execute("SELECT seq FROM sqlite_sequence WHERE name = '_headwater_changes'").fetchone()
        finally:
            db.close()
        position = self.state().get("position")
        return position is not None and int(position) == (last[0] if last else 0)

    # ---- processes ---------------------------------------------------------------------------------------

    @contextmanager
    def _running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = self.command(*arguments)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=60)

    def _answers(self, process: subprocess.Popen[str]) -> bool:
        assert process.poll() is None, process.communicate()[0]
        try:
            return bool(
                Consumer({"bootstrap.servers": self.bootstrap, "group.id": "life", "log_level": 0})
                .list_topics(timeout=1)
                .brokers
            )
        except Exception:  # noqa: BLE001  not yet
            return False

    def _until(self, condition: Callable[[], object], what: str) -> None:
        limit = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < limit, f"{what} did not come within {LIMIT_S} s"
            time.sleep(0.1)


def _shown(rows: dict[str, Any]) -> dict[str, Any]:
    return {
        key: {name: value for name, value in row.items() if not name.startswith("_")}
        for key, row in rows.items()
        if row is not None
    }
