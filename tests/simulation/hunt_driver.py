# ruff: noqa: T201
"""Looks for each defect of the driver: ``python tests/simulation/hunt_driver.py [TEXT…]``; writes ``found_driver.json``."""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from simulation.driven import fails, script, shrunk  # noqa: E402
from simulation.driver_mutations import DRIVER_MUTATIONS, STEPS, mutated  # noqa: E402
from simulation.ending import is_defect  # noqa: E402

FOUND = HERE / "found_driver.json"
SEEDS = 300


def hunt(name: str, seeds: int) -> dict[str, Any] | None:
    """The first life that the defect ends, cut down to the steps that it takes."""
    for seed in range(seeds):
        steps = script(seed, 3, STEPS[name])
        with mutated(name):
            if not is_defect(fails(seed, steps)):
                continue
            fewer = shrunk(seed, steps)
            ended = fails(seed, fewer)
        without = fails(seed, fewer)
        if without:
            print(f"seed {seed} fails without the defect too: {without}", flush=True)
            continue
        return {"seed": seed, "steps": fewer, "ended": ended}
    return None


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": "0"})  # noqa: S606
    logging.disable(logging.CRITICAL)
    wanted = sys.argv[1:]
    for name in DRIVER_MUTATIONS:
        found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
        if not any(text in name for text in wanted) if wanted else name in found:
            continue
        began = time.process_time()
        result = hunt(name, SEEDS)
        spent = time.process_time() - began
        print(f"{name}: {result} ({spent:.0f} s)", flush=True)
        if result:
            found[name] = result
            kept = {name: found[name] for name in DRIVER_MUTATIONS if name in found}
            FOUND.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
