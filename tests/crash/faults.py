"""The long runs of ``make test-faults``: a slice of seeds of one kind of fault, and a line in outcomes.jsonl that says how it ended.

A kind is a test file that reads its first seed and its amount from the environment. A slice ends within SLICE_S.
"""

import argparse
import datetime as dt
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KINDS", "Kind", "environment", "seeds"]

TESTS = Path(__file__).parent.parent
OUTCOMES = Path(__file__).parent / "outcomes.jsonl"
SLICE_S = 3600


@dataclass(frozen=True)
class Kind:
    """One kind of fault: where its test is, and what a seed stands for."""

    test: str
    unit: str
    per_seed: int
    seeds: tuple[int, int]
    """The first and the last seed of the whole run."""
    first_variable: str = "CRASH_SEED"
    amount_variable: str = "CRASH_ROUNDS"


KINDS = {
    "power": Kind("crash/test_power_cut.py", "power cuts", 10, (0, 29)),
    "kill": Kind("crash/test_broker_kill.py", "kills", 10, (0, 29)),
    "stage": Kind("pipeline/test_stage_kill.py", "kills", 10, (0, 29)),
    "fuzz": Kind("kafka/test_fuzz.py", "requests", 10_000, (0, 9), "FUZZ_SEED", "FUZZ_REQUESTS"),
}


def seeds(text: str) -> tuple[int, int]:
    """``3-7``, or ``3`` alone."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"seeds are FIRST-LAST or one number, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def environment(kind: Kind, first: int, last: int) -> dict[str, str]:
    """What tells the test which slice to run."""
    amount = (last - first + 1) * kind.per_seed
    return {kind.first_variable: str(first), kind.amount_variable: str(amount)}


def run(name: str, first: int, last: int) -> bool:
    """Runs a slice and appends its line; True if nothing was found."""
    kind, began = KINDS[name], dt.datetime.now(dt.UTC)
    chosen = environment(kind, first, last)
    command = [sys.executable, "-m", "pytest", str(TESTS / kind.test), "--timeout", str(SLICE_S), "-q"]
    try:
        code = subprocess.run(command, env=os.environ | chosen, timeout=SLICE_S, check=False).returncode
        outcome = "passed" if code == 0 else "failed"
    except subprocess.TimeoutExpired:
        outcome = "too long"
    line = {
        "date": f"{began:%Y-%m-%d}",
        "kind": name,
        "seeds": f"{first}-{last}",
        "commit": _commit(),
        "outcome": outcome,
        kind.unit: int(chosen[kind.amount_variable]),
        "seconds": round((dt.datetime.now(dt.UTC) - began).total_seconds()),
    }
    with OUTCOMES.open("a") as outcomes:
        outcomes.write(json.dumps(line) + "\n")
    return outcome == "passed"


def _commit() -> str:
    """The commit that was tested; a plus sign says that something was changed since."""
    said = subprocess.run(
        ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        check=True,
    )
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
