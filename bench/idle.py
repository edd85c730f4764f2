"""make bench-idle: what twenty views cost while nothing happens: broker, Spark and console together."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from results import Figure, save
from support.servers import free_port, wait_until

VIEWS = 20
SETTLE_S = 120
"""Half of what the JVM does in its first minute is compiling."""
MEASURE_S = 60

APP = f"""
from datetime import datetime
import headwater as hw
from pyspark.sql import functions as F

app = hw.App("idle")

class Tick(hw.Event):
    id: int
    at: datetime

app.stream("ticks", Tick, key="id", time="at")

def declare(number):
    @app.view(key=["window"], name=f"view_{{number}}")
    def counted(ticks):
        return ticks.groupBy(F.window("at", f"{{number + 1}} minutes")).agg(F.count("*").alias("ticks"))

for number in range({VIEWS}):
    declare(number)
"""


def family(root: int) -> list[int]:
    """A process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found, grown = {root}, True
    while grown:
        grown = False
        for pid, parent in parents.items():
            if parent in found and pid not in found:
                found.add(pid)
                grown = True
    return sorted(found)


def cpu_seconds(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def memory_mb(pids: list[int]) -> float:
    """Memory that would be free without these processes: what they share is counted once."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.py").write_text(APP)
        console, broker = free_port(), free_port()
        settings = {"HEADWATER_CONSOLE_PORT": str(console), "HEADWATER_BROKER_PORT": str(broker)}
        command = [sys.executable, "-m", "headwater", "up", "app.py"]
        running = subprocess.Popen(command, cwd=folder, env=os.environ | settings)

        def ready() -> bool:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{console}/health", timeout=1).status == 200
            except OSError:
                return False

        try:
            wait_until(ready, 180, "the console")
            subprocess.run(
                ["kcat", "-b", f"127.0.0.1:{broker}", "-P", "-t", "ticks"],
                input=b'{"id": 1, "at": "2026-01-05T09:00:00Z"}\n',
                check=True,
                timeout=30,
            )
            time.sleep(SETTLE_S)
            pids = family(running.pid)
            before, start = cpu_seconds(pids), time.monotonic()
            time.sleep(MEASURE_S)
            share = (cpu_seconds(pids) - before) / (time.monotonic() - start) * 100
            memory = memory_mb(pids)
        finally:
            running.send_signal(signal.SIGINT)
            running.wait(60)
    limit = "the limit that was set"
    save(
        "idle",
        [
            Figure(
                f"{VIEWS} idle views, all processes, two minutes after the start: share of one core",
                share,
                15,
                limit,
                "%",
                1,
                higher_is_better=False,
            ),
            Figure(
                f"{VIEWS} idle views, all processes: memory",
                memory,
                2000,
                limit,
                "MB",
                1,
                higher_is_better=False,
            ),
        ],
    )


if __name__ == "__main__":
    main()
