"""The long runs of ``make test-faults``: a slice of seeds of one kind of fault, and a line in outcomes.jsonl that says how it ended.

A kind is a test file that reads its first seed and its amount from the environment. A slice ends within SLICE_S. A test that writes what
each seed did to the file CRASH_TALLY gets a line for each of them; what it writes to CRASH_PROGRESS is shown every PROGRESS_S.
"""

import argparse
import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["KINDS", "Kind", "environment", "lines", "say", "seeds"]

TESTS = Path(__file__).parent.parent
OUTCOMES = Path(__file__).parent / "outcomes.jsonl"
SLICE_S = 3600
PROGRESS_S = 30
"""How often a slice under way is reported."""
SEEDED = "whatever_is_killed"
"""The part of a test file that seeds are for."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault: where its test is, and what a seed is."""

    test: str
    unit: str
    per_seed: int
    seeds: tuple[int, int]
    """The first and the last seed of the whole run."""
    first_variable: str = "CRASH_SEED"
    amount_variable: str = "CRASH_ROUNDS"
    variant: str | None = None
    """What CRASH_KIND says to a test file of several kinds."""
    tallies: bool = False
    """Whether its test writes to CRASH_TALLY what each seed did."""
    rows: int | None = None
    """What CAPTURE_ROWS says."""


STAGE = "pipeline/run/test_stage_kill.py"
LIFE = "simulation/test_simulation.py"
PROCESSES = "simulation/test_processes.py"
KINDS = {
    "power": Kind("crash/test_power_cut.py", "power cuts", 10, (0, 29)),
    "simulation": Kind(LIFE, "lives", 1000, (0, 99), "SIMULATION_SEED", "SIMULATION_LIVES"),
    "simulation-long": Kind(
        LIFE, "lives", 10, (0, 19), "SIMULATION_SEED", "SIMULATION_LIVES", variant="simulation-long"
    ),
    "simulation-views": Kind(
        "simulation/test_driven.py", "lives", 100, (0, 19), "SIMULATION_SEED", "SIMULATION_LIVES"
    ),
    "simulation-captures": Kind(
        PROCESSES, "lives", 100, (0, 19), "SIMULATION_SEED", "SIMULATION_LIVES", variant="simulation-captures"
    ),
    "simulation-sinks": Kind(
        PROCESSES, "lives", 100, (0, 19), "SIMULATION_SEED", "SIMULATION_LIVES", variant="simulation-sinks"
    ),
    "queue": Kind("simulation/test_shares.py", "lives", 100, (0, 19), "QUEUE_SEED", "QUEUE_LIVES"),
    "queue-kill": Kind("crash/test_worker_kill.py", "kills", 10, (0, 29), tallies=True),
    "kill": Kind("crash/test_broker_kill.py", "kills", 10, (0, 29)),
    "views-kill": Kind(
        "pipeline/run/test_kill.py", "runs with two kills", 1, (0, 9), "VIEWS_KILL_SEED", "VIEWS_KILL_RUNS"
    ),
    "stage": Kind(STAGE, "kills", 10, (0, 29), variant="stage", tallies=True),
    "stage-kafka": Kind(STAGE, "kills", 10, (0, 9), variant="stage-kafka", tallies=True),
    "stage-executor": Kind(STAGE, "kills", 10, (0, 4), variant="stage-executor", tallies=True),
    "joins": Kind(STAGE, "kills", 10, (0, 9), variant="joins", tallies=True),
    "joins-kafka": Kind(STAGE, "kills", 10, (0, 2), variant="joins-kafka", tallies=True),
    "joins-executor": Kind(STAGE, "kills", 10, (0, 2), variant="joins-executor", tallies=True),
    "sink": Kind("sink/test_sink_kill.py", "kills", 10, (0, 29), "SINK_SEED", "SINK_KILLS", tallies=True),
    "time": Kind(
        "pipeline/windows/test_any_order.py", "orders of arrival", 1, (0, 99), "TIME_SEED", "TIME_SEEDS"
    ),
    "tables": Kind(
        "pipeline/tables/test_any_tables.py", "histories of tables", 1, (0, 99), "TABLES_SEED", "TABLES_SEEDS"
    ),
    "sql": Kind("pipeline/sql/test_any_query.py", "queries", 12, (0, 166), "SQL_SEED", "SQL_PROGRAMS"),
    "versions": Kind(
        "pipeline/definition/test_changed_views.py",
        "changed views",
        1,
        (0, 999),
        "VERSIONS_SEED",
        "VERSIONS_SEEDS",
    ),
    "fair": Kind(
        "pipeline/run/test_fairness.py", "minutes of twelve views", 1, (0, 1), "FAIR_SEED", "FAIR_ROUNDS"
    ),
    "twelve": Kind(
        "crash/test_twelve_views.py", "parts with three kills", 8, (0, 4), "TWELVE_SEED", "TWELVE_PARTS"
    ),
    "skew": Kind(
        "pipeline/tables/test_skew.py", "rows of a key", 1_000_000, (0, 0), "SKEW_SEED", "SKEW_ROWS"
    ),
    "capture": Kind("capture/test_capture_kill.py", "kills", 10, (0, 9)),
    "capture-mariadb": Kind("capture/test_mariadb_kill.py", "kills", 10, (0, 9)),
    "capture-large": Kind("capture/test_large.py", "kills", 5, (0, 4), rows=1_000_000),
    "values": Kind("capture/test_values.py", "tables of values", 1, (0, 99), "VALUES_SEED", "VALUES_ROUNDS"),
    "cluster": Kind("deploy/test_cluster.py", "losses", 4, (0, 2), "CLUSTER_SEED", "CLUSTER_LOSSES"),
    "fuzz": Kind("door/kafka/test_fuzz.py", "requests", 10_000, (0, 9), "FUZZ_SEED", "FUZZ_REQUESTS"),
}


def seeds(text: str) -> tuple[int, int]:
    """``3-7``, or ``3`` alone."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"seeds are FIRST-LAST or one number, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def environment(kind: Kind, first: int, last: int) -> dict[str, str]:
    """The environment by which the test knows which slice to run."""
    amount = (last - first + 1) * kind.per_seed
    options = {"CRASH_KIND": kind.variant} if kind.variant else {}
    if kind.rows:
        options["CAPTURE_ROWS"] = str(kind.rows)
    return {kind.first_variable: str(first), kind.amount_variable: str(amount), **options}


def run(name: str, first: int, last: int) -> bool:
    """Runs a slice and appends its lines; True if nothing was found."""
    kind, began = KINDS[name], dt.datetime.now(dt.UTC)
    chosen, commit = environment(kind, first, last), _commit()
    command = [sys.executable, "-m", "pytest", str(TESTS / kind.test), "--timeout", str(SLICE_S), "-q"]
    if kind.tallies:
        command += ["-k", SEEDED]
    with tempfile.TemporaryDirectory() as folder:
        tally = Path(folder) / "tally"
        progress = Path(folder) / "progress"
        environ = os.environ | chosen | {"CRASH_TALLY": str(tally), "CRASH_PROGRESS": str(progress)}
        outcome = _outcome(
            command, environ, lambda passed_s: say(f"{name} {first}-{last}", passed_s, progress)
        )
        seconds = round((dt.datetime.now(dt.UTC) - began).total_seconds())
        whole = {"outcome": outcome, kind.unit: int(chosen[kind.amount_variable]), "seconds": seconds}
        found = (
            lines(tally, first, last, outcome) if kind.tallies else [{"seeds": f"{first}-{last}", **whole}]
        )
    with OUTCOMES.open("a") as outcomes:
        for line in found:
            about = {"date": f"{began:%Y-%m-%d}", "kind": name, "seeds": "", "commit": commit}
            outcomes.write(json.dumps(about | line) + "\n")
    return outcome == "passed"


def say(name: str, passed_s: float, progress: Path) -> str:
    """A line for who waits: how long a slice has been running, and what its test last said of how far it is."""
    reported = progress.read_text().splitlines() if progress.exists() else []
    text = f"{name}: {passed_s / 60:.1f} minutes{', ' + reported[-1] if reported else ''}"
    print(text, flush=True)  # noqa: T201  it is for who runs it
    return text


def _outcome(command: list[str], environ: dict[str, str], waiting: Callable[[float], object]) -> str:
    """How the tests ended; those that take too long are ended with all servers that they have started."""
    began = time.monotonic()
    with subprocess.Popen(command, env=environ, process_group=0) as process:
        try:
            while (code := _ended(process)) is None:
                waiting(time.monotonic() - began)
                if time.monotonic() - began >= SLICE_S:
                    os.killpg(process.pid, signal.SIGKILL)
                    return "too long"
        except KeyboardInterrupt:  # it is in a group of its own, and has not heard it
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait()
    return {0: "passed", 2: "interrupted"}.get(code, "failed")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Waits a little; None while it runs."""
    try:
        return process.wait(PROGRESS_S)
    except subprocess.TimeoutExpired:
        return None


def lines(tally: Path, first: int, last: int, outcome: str) -> list[dict[str, Any]]:
    """The line of each seed; a seed without one has not passed, whatever the slice says."""
    tallied = [json.loads(line) for line in tally.read_text().splitlines()] if tally.exists() else []
    by_seed = {line.pop("seed"): line for line in tallied}
    silent = {"outcome": "failed" if outcome == "passed" else outcome, "kills": 0}
    return [{"seeds": str(seed), **by_seed.get(seed, silent)} for seed in range(first, last + 1)]


def _commit() -> str:
    """The commit that was tested; a plus sign says that something was changed since, beside the outcomes."""
    changed = _git(
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":/",
        f":(top,exclude){OUTCOMES.relative_to(TESTS.parent)}",
    )
    return _git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def _git(*arguments: str) -> str:
    said = subprocess.run(["git", *arguments], cwd=TESTS, capture_output=True, text=True, check=True)
    return said.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="the long runs")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--seeds", type=seeds)
    arguments = parser.parse_args()
    if arguments.seeds and not arguments.kind:
        parser.error("seeds belong to a kind: name one with --kind")
    chosen = [arguments.kind] if arguments.kind else list(KINDS)
    passed = [run(name, *(arguments.seeds or KINDS[name].seeds)) for name in chosen]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
