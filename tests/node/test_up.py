"""``headwater up`` with one real application: what fails takes nothing with it, says why, and heals when it can.

The application has a database and a store that do not answer, a sink that is refused, and a view that fails on a record.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from headwater.client.client import producer
from pipeline.driver import JAVA
from support.databases import RedisProcess
from support.servers import free_port, wait_until

pytestmark = [pytest.mark.own_spark, pytest.mark.timeout(600)]

APP = """
    from pathlib import Path
    import headwater as hw
    from pyspark.sql import functions as F

    app = hw.App("shop")

    class Order(hw.Event):
        id: int
        country: str

    app.stream("orders", Order, key="id", time=hw.ARRIVAL)
    app.sql("good", "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")

    @app.view(key="country", on_error="stop")
    def fragile(orders):
        def checked(country):
            if country == "xx" and not Path({folder!r}, "patched").exists():
                raise ValueError("no such country")
            return country

        named = orders.withColumn("country", F.udf(checked, "string")("country"))
        return named.groupBy("country").agg(F.count("*").alias("n"))

    app.capture("db", hw.capture.Postgres("postgresql://nobody@127.0.0.1:{port}/none", ["t"]))
    app.sink("good", hw.sink.Sqlite({folder!r} + "/good.db"))
    app.sink("good", hw.sink.Redis("redis://127.0.0.1:{redis}"))
    app.sink("good", hw.sink.Sqlite({folder!r} + "/none.db", columns={{"country": "NOTHING"}}), name="good.refused")
"""
PROCESSES = ("broker", "console", "sinks", "capture-db", "pipeline")


class Up:
    """The application as a user runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.redis_port = folder, folder / "data", free_port()
        self.sent = 0
        app = folder / "app.py"
        app.write_text(
            textwrap.dedent(APP).format(folder=str(folder), port=free_port(), redis=self.redis_port)
        )
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")
        }
        self.environ |= {
            "HEADWATER_LOG": f"embedded:{self.data}",
            "HEADWATER_BROKER_PORT": str(free_port()),
            "HEADWATER_CONSOLE_PORT": str(free_port()),
            "HEADWATER_SPARK_MEMORY": "1g",
            "HEADWATER_TRIGGER_MS": "50",
            "JAVA_TOOL_OPTIONS": JAVA,
        }
        self.out = folder / "up.txt"
        with self.out.open("ab") as out:
            command = [sys.executable, "-m", "headwater", "up", str(app)]
            self.process = subprocess.Popen(command, env=self.environ, stdout=out, stderr=out, cwd=folder)

    def until(self, condition, what: str, seconds: float = 60) -> None:
        def holds():
            assert self.process.poll() is None, f"headwater up has ended: {self.said()}"
            return condition()

        try:
            wait_until(holds, seconds, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.status()}; {self.said()}") from None

    def send(self, *countries: str) -> None:
        out = producer(f"127.0.0.1:{self.environ['HEADWATER_BROKER_PORT']}")
        for country in countries:
            out.produce("orders", json.dumps({"id": self.sent, "country": country}), str(self.sent))
            self.sent += 1
        assert out.flush(60) == 0

    def said(self) -> str:
        return self.out.read_text()

    def says(self, line: str) -> None:
        """It prints a line that begins so."""
        self.until(lambda: re.search(f"^{line}", self.said(), re.MULTILINE), f"the line {line}")

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "headwater", *words]
        return subprocess.run(
            argv, env=self.environ, capture_output=True, text=True, check=False, timeout=120
        )

    def get(self, path: str) -> tuple[int, dict]:
        url = f"http://127.0.0.1:{self.environ['HEADWATER_CONSOLE_PORT']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError:
            return 0, {}

    def status(self) -> dict[str, str]:
        shown = json.loads(self.command("status", "--json").stdout)
        return {f"{part['kind']} {part['name']}": part["state"] for part in shown["parts"]}

    def is_(self, part: str, state: str) -> bool:
        """As the console says; as the command says while there is no console."""
        _, body = self.get("/health")
        parts = {f"{each['kind']} {each['name']}": each["state"] for each in body.get("parts", [])}
        return (parts or self.status()).get(part) == state

    def pid(self, process: str) -> int:
        return int((self.data / "run" / f"{process}.pid").read_text())

    def rows(self) -> int:
        """The orders in the store of the sink that works."""
        with sqlite3.connect(self.folder / "good.db") as connection:
            try:
                return connection.execute("SELECT sum(n) FROM good").fetchone()[0] or 0
            except sqlite3.OperationalError:
                return 0


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    running = Up(tmp_path_factory.mktemp("up"))
    try:
        running.until(lambda: "logs " in running.said(), "the application", 120)
        yield running
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(120) == 0
    finally:
        running.process.kill()


def test_everything_else_works_while_a_database_and_a_store_are_away_and_a_sink_is_refused(up):
    up.send("de", "fr", "us")
    up.until(lambda: up.rows() == 3, "the first orders in the store that works")
    up.until(lambda: up.is_("capture db", "failing"), "notice of the database")
    states = {
        "log log": "running",
        "capture db": "failing",
        "view fragile": "running",
        "view good": "running",
        "sink good.redis": "failing",
        "sink good.refused": "stopped",
        "sink good.sqlite": "running",
        "console console": "running",
    }
    up.until(lambda: up.status() == states, "the states of all parts")
    up.says(r"capture db is failing: .*127\.0\.0\.1")
    up.says(r"sink good\.redis is failing: the store is away: ")
    up.says(r"sink good\.refused has stopped: ")
    table = up.command("status")
    assert table.returncode == 1
    assert "the store is away" in table.stdout


def test_a_store_that_comes_back_heals_its_sink(up, tmp_path):
    redis = RedisProcess(tmp_path)
    redis.port = up.redis_port
    redis.start()
    try:
        up.until(lambda: up.is_("sink good.redis", "running"), "its recovery")
        up.says("sink good.redis has recovered, after ")
    finally:
        redis.end()


def test_a_view_that_fails_on_a_record_is_stopped_and_named_and_health_says_so(up):
    up.send("xx", "de")
    up.until(lambda: up.is_("view fragile", "stopped"), "its end")
    up.until(lambda: up.rows() == up.sent, "the same orders in the other view")
    assert up.get("/health?part=fragile")[0] == 503
    status, report = up.get("/health?part=good")
    assert (status, report["parts"][0]["state"]) == (200, "running")
    fragile = up.get("/ready?part=view+fragile")[1]["parts"][0]
    assert "no such country" in fragile["error"]
    up.until(lambda: up.get("/health?part=fragile")[1]["parts"][0]["lag_records"] == 2, "its lag")
    up.says(r"view fragile has stopped: .*no such country")


def test_a_command_for_a_stopped_view_works_while_the_others_run_and_starts_it_again(up):
    running = up.command("view", "reset", "good")
    assert (running.returncode, "while the pipeline runs" in running.stderr) == (2, True)
    (up.folder / "patched").touch()
    reset = up.command("view", "reset", "fragile")
    assert reset.returncode == 0, reset.stderr
    up.until(lambda: up.is_("view fragile", "running"), "its start")
    rows = lambda: sum(row["n"] for row in up.get("/views/fragile")[1].get("rows", []))  # noqa: E731
    up.until(lambda: rows() == up.sent, "all orders again")


@pytest.mark.parametrize("killed", PROCESSES)
def test_a_process_that_is_killed_takes_no_other_with_it_and_comes_back(up, killed):
    part = {"broker": "log log", "console": "console console", "sinks": "sink good.sqlite"}.get(
        killed, {"pipeline": "view good", "capture-db": "capture db"}.get(killed)
    )
    others = {process: up.pid(process) for process in PROCESSES if process != killed}
    old, said = up.pid(killed), len(up.said())
    os.kill(old, signal.SIGKILL)
    up.until(
        lambda: f"{part.removeprefix('log ').removeprefix('console ')} is failing: " in up.said()[said:],
        "a line",
    )
    up.until(lambda: up.pid(killed) != old, "a new process")
    state = "failing" if killed == "capture-db" else "running"
    up.until(lambda: up.is_(part, state), f"the recovery of {part}", 120)
    assert {process: up.pid(process) for process in others} == others
    up.send("de")
    up.until(lambda: up.rows() == up.sent, "an order that came afterwards")


def test_logs_of_all_processes_are_kept(up):
    text = (up.data / "logs" / "pipeline.log").read_text()
    assert len(re.findall("^---- pipeline starts, ", text, re.MULTILINE)) == 2
    assert time.time() - (up.data / "logs" / "broker.log").stat().st_mtime < 3_600
