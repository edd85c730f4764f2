# ruff: noqa: T201
"""Looks for each mutation: ``python tests/simulation/hunt.py [--seeds 10000] [--name TEXT]``; writes ``found.json``.

The seed, the shortened script and what the life ended with are kept, so that ``make test`` can see each of them found again.
"""

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from simulation.ending import is_defect  # noqa: E402
from simulation.kinds import KINDS  # noqa: E402
from simulation.life import fails, shrunk  # noqa: E402
from simulation.mutations import MUTATIONS, kind_of, mutated  # noqa: E402

FOUND = HERE / "found.json"
STEPS = 12


def hunt(name: str, seeds: int) -> dict | None:
    """The first life that the mutation ends, cut down to the steps that it takes."""
    script, played = KINDS[kind_of(name)]
    for seed in range(seeds):
        steps = script(seed, STEPS)
        with mutated(name):
            if not is_defect(fails(seed, steps, played)):
                continue
            fewer = shrunk(seed, steps, played)
            ended = fails(seed, fewer, played)
        without = fails(seed, steps, played) or fails(seed, fewer, played)
        if without:
            print(f"seed {seed} fails without the mutation too: {without}", flush=True)
            continue
        return {"seed": seed, "steps": fewer, "ended": ended}
    return None


def is_found(name: str, life: dict) -> bool:
    """Whether the life that found it before still does."""
    steps = [tuple(step) for step in life["steps"]]
    with mutated(name):
        return is_defect(fails(life["seed"], steps, KINDS[kind_of(name)].play))


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are gone through in the same order in every run
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})  # noqa: S606
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--name", default="")
    parser.add_argument("--again", action="store_true", help="also those whose life still finds them")
    options = parser.parse_args()
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    for name in [name for name in MUTATIONS if options.name in name]:
        if not options.again and name in found and is_found(name, found[name]):
            continue
        began = time.process_time()
        result = hunt(name, options.seeds)
        spent = time.process_time() - began
        print(
            f"{name}: {result['seed'] if result else 'NOT FOUND'} ({spent:.0f} s) {result and result['ended']}",
            flush=True,
        )
        if result:
            found[name] = result
            kept = {name: found[name] for name in MUTATIONS if name in found}
            FOUND.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
