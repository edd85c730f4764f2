"""Installation: ``headwater up`` as a user runs it, with all its parts, to be ended and started in every way."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from headwater.client.client import Client
from headwater.node.processes import marked
from processes import cpu_s, family
from support.servers import free_port

APP = Path(__file__).with_name("shop.py")
PARTS = ("broker", "pipeline", "console", "sinks", "capture-warehouse")
READY_S = 900.0
"""A limit for machines that are very busy: what takes so long has failed."""
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
TRIGGER_MS = 8_000
SPARK_OPTIONS = '{"spark.sql.streaming.minBatchesToRetain": "20"}'
"""Files of the last batches are kept, by default of a hundred: a slow machine does not make so many in a third of the time."""


class Start(NamedTuple):
    """One start of a part, or of all of them: until it was ready."""

    what: str
    at_s: float
    wall_s: float
    cpu_s: float


class Installation:
    """One data folder and the processes on it. ``elapsed`` gives the seconds since the day began."""

    def __init__(self, folder: Path, elapsed: Callable[[], float]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.starts: list[Start] = []
        self.kept_logs = folder / "logs"
        self._elapsed = elapsed
        self._up: subprocess.Popen | None = None
        self._runs = 0
        self._port, console = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self._port}"
        environ = {key: value for key, value in os.environ.items() if not key.startswith("HEADWATER_")}
        self.environ = environ | {
            "DAY_FOLDER": str(folder),
            "HEADWATER_LOG": f"embedded:{self.data}",
            "HEADWATER_VIEW_TABLES": f"sqlite:{self.data / 'views'}",
            "HEADWATER_BROKER_PORT": str(self._port),
            "HEADWATER_CONSOLE_PORT": str(console),
            "HEADWATER_TRIGGER_MS": str(TRIGGER_MS),
            "HEADWATER_SPARK": "local[2,4]",
            "HEADWATER_SPARK_OPTIONS": SPARK_OPTIONS,
            "JAVA_TOOL_OPTIONS": JAVA_OPTIONS,
        }
        (folder / "stores").mkdir(parents=True)
        self.kept_logs.mkdir()
        self.client = Client(self.bootstrap, timeout_s=READY_S)

    # ---- all of it -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything, and returns when every part is ready."""
        self._runs += 1
        begun, out = time.monotonic(), self.kept_logs / f"up-{self._runs}.log"
        with out.open("wb") as log:
            command = [sys.executable, "-m", "headwater", "up", str(APP)]
            self._up = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environ, start_new_session=True
            )
        wait_until(lambda: "logs " in out.read_text() or self._up.poll() is not None, "headwater up")
        if self._up.poll() is not None:
            raise RuntimeError(f"headwater up has ended: {out.read_text()}")
        self._note("everything", begun, [pid for part in PARTS for pid in family(self.pid(part))])

    def stop(self) -> None:
        """Ctrl-C."""
        assert self._up is not None
        self._up.send_signal(signal.SIGINT)
        code = self._up.wait(READY_S)
        self.keep_logs()
        if code != 0:
            raise RuntimeError(f"headwater up ended with {code}")

    def kill(self) -> None:
        """kill -9 of everything at once."""
        assert self._up is not None
        pids = [pid for part in PARTS for pid in marked(f"{self.data}/{part}")]
        for pid in (self._up.pid, *pids):
            _send(pid, signal.SIGKILL)
        self._up.wait()
        self.keep_logs()

    def close(self) -> None:
        """Leaves nothing running, whatever has happened."""
        if self._up is not None and self._up.poll() is None:
            self.kill()

    def check(self) -> None:
        """Raises when the supervisor has given up."""
        assert self._up is not None
        if self._up.poll() is not None:
            out = self.kept_logs / f"up-{self._runs}.log"
            raise RuntimeError(
                f"headwater up has ended with {self._up.returncode}: {out.read_text()[-2000:]}"
            )

    # ---- single parts --------------------------------------------------------------------------------------

    def restart(self, part: str, number: signal.Signals) -> None:
        """Ends a part by a signal; its supervisor starts it again. Returns when it is ready."""
        old, ready = self.pid(part), self.data / "run" / "pipeline.ready"
        if part == "pipeline":
            ready.unlink(missing_ok=True)
        os.kill(old, number)
        wait_until(lambda: self._is_new(part, old), f"a new {part}")
        begun = time.monotonic()
        if part == "pipeline":
            wait_until(ready.exists, "views that run", self.check)
        elif part == "broker":
            wait_until(self.client.is_reachable, "an answer of the broker", self.check)
        else:
            return
        self._note(part, begun, family(self.pid(part)))

    def suspend(self, part: str, number: signal.Signals) -> None:
        """SIGSTOP or SIGCONT to a part and all that it has started."""
        for pid in family(self.pid(part)):
            _send(pid, number)

    def pid(self, part: str) -> int:
        return int((self.data / "run" / f"{part}.pid").read_text())

    def members(self, part: str) -> list[int]:
        """The processes of a part; none while it is away."""
        try:
            return family(self.pid(part))
        except (OSError, ValueError):
            return []

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of a user beside the installation."""
        argv = [sys.executable, "-m", "headwater", *arguments]
        return subprocess.run(
            argv, env=self.environ, capture_output=True, text=True, timeout=2 * READY_S, check=False
        )

    def accounts(self) -> list[dict]:
        """The ledger, whether or not it adds up."""
        done = self.command("ledger", "--json")
        if done.returncode not in {0, 1}:
            raise RuntimeError(f"headwater ledger: {done.stderr}")
        return [msgspec.json.decode(line) for line in done.stdout.splitlines()]

    def _is_new(self, part: str, old: int) -> bool:
        self.check()
        return self.pid(part) != old

    def _note(self, what: str, begun: float, pids: list[int]) -> None:
        self.starts.append(Start(what, self._elapsed(), time.monotonic() - begun, cpu_s(pids)))

    def keep_logs(self) -> None:
        """Moves them away, those that were rotated too: the next ``headwater up`` would append to them."""
        for log in (self.data / "logs").glob("*.log*"):
            name, _, number = log.name.partition(".log")
            shutil.move(log, self.kept_logs / f"{name}-{self._runs}{number}.log")


def wait_until(condition: Callable[[], object], what: str, check: Callable[[], None] = lambda: None) -> None:
    limit = time.monotonic() + READY_S
    while not condition():
        check()
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} did not come within {READY_S:.0f} s")
        time.sleep(0.1)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
