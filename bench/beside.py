"""Beside: Flink and our own Spark, both up between runs, and the CPU-seconds that each has taken."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.config import Settings
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from idle import family

FLINK = Path(
    os.environ.get("FLINK_PYTHON", str(Path(__file__).parent.parent / ".venv-flink" / "bin" / "python"))
)


class Flink:
    """Flink in a process of its own."""

    def __init__(self, folder: Path, tables: list[str]) -> None:
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [FLINK, Path(__file__).with_name("flinkserver.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "flink.log").open("w"),
            text=True,
            env={**os.environ, "JVM_ARGS": "-Xmx2g", "PYTHONPATH": ""},
        )
        self._answer()
        self._ask(tables)
        self.started_s = time.perf_counter() - begun

    @property
    def processes(self) -> list[int]:
        return family(self._process.pid)

    def run(self, created: str, insert: str) -> float:
        """Fills a table that is created for it; the seconds that the job took."""
        return float(self._ask([created], insert=insert)["seconds"])

    def begin(self, statements: list[str], insert: str) -> None:
        """A job that runs until ``cancel``."""
        self._ask(statements, begin=insert)

    def cancel(self) -> None:
        self._ask([], cancel=True)

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)

    def _ask(self, statements: list[str], **asked: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps({"statements": statements, **asked}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        found = json.loads(next(line for line in self._process.stdout if line.startswith("{")))
        if "error" in found:
            raise RuntimeError(found["error"])
        return found


class Ours:
    """Spark and its Python workers, in the family of this process."""

    def __init__(self, settings: Settings) -> None:
        begun = time.perf_counter()
        self._settings = settings
        self._others = set(family(os.getpid())) - {os.getpid()}
        session.start(settings).conf.set("spark.sql.streaming.numRecentProgressUpdates", "100")
        self.started_s = time.perf_counter() - begun

    @property
    def processes(self) -> list[int]:
        return [pid for pid in family(os.getpid()) if pid not in self._others]

    def run(self, app: hw.App, view: str) -> float:
        """Brings a view up to date; the seconds that its batches took."""
        runner = Runner(app, self._settings)
        runner.once()
        progress = runner.views[view].query.recentProgress
        return sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000


def cpu_seconds(pids: list[int]) -> float:
    """Of these processes and of those they have waited for."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(each) for each in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")
