"""make bench-commits: what the code costs beside an earlier commit, in CPU-seconds, in turns.

Each probe (``bench/commit_cost.py``) is a process of its own with servers of its own; five pairs, the order changes from pair to pair, and the median of
each side counts. What the code may cost more is 5 %. BASE names the earlier commit, PROBES some of log,stage,capture.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from results import Figure, save

ROOT = Path(__file__).parent.parent
PAIRS = int(os.environ.get("PAIRS", "5"))
ALLOWED = 0.95
NEW = {"1.5 million records into a compacted topic"}
"""Measures of what the earlier commit did not do: it took records without a key there."""


def probe(name: str, tree: Path) -> dict[str, float]:
    """The CPU-seconds of each measure with the code of a tree."""
    command = [sys.executable, str(Path(__file__).with_name("commit_cost.py")), name]
    environ = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=1200)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    base = os.environ["BASE"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), base], cwd=ROOT, check=True)
        try:
            for name in (os.environ.get("PROBES") or "log,stage,capture").split(","):
                save(f"commits-{name}", compared(name, base, tree))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def compared(name: str, base: str, tree: Path) -> list[Figure]:
    found: dict[Path, list[dict[str, float]]] = {ROOT: [], tree: []}
    for pair in range(PAIRS):
        for side in (ROOT, tree)[:: -1 if pair % 2 else 1]:
            found[side].append(probe(name, side))
            which = "now" if side == ROOT else base
            print(f"{name} pair {pair + 1} {which:10} {found[side][-1]}", flush=True)
    return [
        Figure(
            measure,
            statistics.median(each[measure] for each in found[ROOT]),
            statistics.median(each[measure] for each in found[tree]),
            f"commit {base}",
            "CPU-s",
            None if measure in NEW else ALLOWED,
            higher_is_better=False,
        )
        for measure in found[ROOT][0]
    ]


if __name__ == "__main__":
    main()
