# ruff: noqa: T201
"""Looks for each defect of ``mutations.py``: ``python tests/pipeline/differential/hunt.py [TEXT…]``; writes ``found.json``.

Only programs that may find it are run, each in the history of its group; the seed that is written down counts all.
With ``--streams``, and the number of the first group, defects of several operators over streams are looked for at once.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import msgspec  # noqa: E402

from headwater.config import Settings  # noqa: E402
from headwater.pipeline.spark import session  # noqa: E402
from pipeline.differential.generate import TOGETHER, group  # noqa: E402
from pipeline.differential.mutations import MUTATIONS, mutated  # noqa: E402
from pipeline.differential.run import Compared, compared  # noqa: E402
from pipeline.driver import JAVA  # noqa: E402
from support.ordershop import Shop  # noqa: E402
from support.servers import BrokerProcess  # noqa: E402

FOUND = HERE / "found.json"
PROGRAMS = 500
AT_ONCE = 3
STREAMING = {"window|hw.s|hw.match"}
OF_STREAMS = {
    "windows.sessions",
    "windows.sliding",
    "windows.distinct",
    "asof.timeline",
    "asof.as_of_batch",
    "interval.match",
    "interval.unmatched",
}
CRASH = "An error occurred while calling"
"""The error of a view whose Python worker has ended: that is not a wrong row."""


class Hunt:
    """A log and a session of Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = BrokerProcess(folder / "data", "--flush", "commit")
        self.broker.start()
        os.environ["JAVA_TOOL_OPTIONS"] = JAVA
        settings = Settings(log=f"embedded:{folder}", spark="local[4,4]", spark_memory="2g")
        self.spark = session.start(settings)
        self.shops = 0

    def run(self, number: int, chosen: list[int], *, first_only: bool) -> Compared:
        """Runs some programs of a group."""
        self.shops += 1
        folder = self.folder / str(self.shops)
        folder.mkdir()
        shop = Shop(self.broker.bootstrap, folder)
        whole = group(number)
        shop.settings = msgspec.structs.replace(shop.settings, partitions=whole.shards)
        programs = [whole.programs[each] for each in chosen]
        return compared(self.spark, shop, programs, whole.batches, number, first_only=first_only)

    def first(self, name: str) -> dict[str, Any] | None:
        """The first program that a defect shows in, and that is right without it."""
        for number in range(PROGRAMS // TOGETHER):
            programs = group(number).programs
            about = MUTATIONS[name].about
            chosen = [n for n, each in enumerate(programs) if re.search(about, each.text + each.sql)][
                :AT_ONCE
            ]
            if not chosen or (about in STREAMING and number % 3 != 2):
                continue
            with mutated(self.spark, self.folder, name):
                found = self.run(number, chosen, first_only=True).differences
            for each in found:
                if each.view and CRASH in each.view[0]:
                    print(f"  {name}: group {number} ends with an error", flush=True)
                    continue
                place = programs.index(each.program)
                without = self.run(number, [place], first_only=True).differences
                if without:
                    print(
                        f"seed {number * TOGETHER + place} differs without the defect too: {without[0]}",
                        flush=True,
                    )
                    continue
                return {
                    "seed": number * TOGETHER + place,
                    "kind": each.program.kind,
                    "batch": each.batch,
                    "difference": str(each).splitlines(),
                }
        return None

    def together(self, names: Sequence[str], number: int) -> dict[str, dict[str, Any]]:
        """What a group of programs shows of several defects at once, of operators that no program has two of."""
        programs = group(number).programs
        about = {name: MUTATIONS[name].about for name in names}
        owner = {
            n: found[0]
            for n, each in enumerate(programs)
            if len(found := [name for name in names if re.search(about[name], each.text + each.sql)]) == 1
        }
        chosen = [n for name in names for n in [n for n in owner if owner[n] == name][:AT_ONCE]]
        if not chosen:
            return {}
        with mutated(self.spark, self.folder, *names):
            shown = self.run(number, chosen, first_only=False).differences
        places = {
            programs.index(each.program): each for each in reversed(shown) if CRASH not in str(each.view)
        }
        without = self.run(number, sorted(places), first_only=False).differences if places else []
        wrong = {programs.index(each.program) for each in without}
        return {
            owner[n]: {
                "seed": number * TOGETHER + n,
                "kind": each.program.kind,
                "batch": each.batch,
                "difference": str(each).splitlines(),
            }
            for n, each in places.items()
            if n not in wrong
        }


def of_streams(hunt: Hunt, first: int) -> None:
    """Looks for the defects of operators over streams that are not found yet, one of each operator at a time."""
    tried: set[tuple[str, int]] = set()
    for number in range(first, PROGRAMS // TOGETHER, 3):
        while True:
            names: dict[str, str] = {}
            for name, each in MUTATIONS.items():
                if each.module in OF_STREAMS and name not in known() and (name, number) not in tried:
                    names.setdefault(each.about, name)
            if not names:
                break
            tried |= {(name, number) for name in names.values()}
            began = time.monotonic()
            found = hunt.together(list(names.values()), number)
            seconds = time.monotonic() - began
            print(f"group {number}: {len(names)} defects, shown: {[*found]} ({seconds:.0f} s)", flush=True)
            keep(found)


def known() -> dict[str, Any]:
    """The defects that are found, each with the seed that found it."""
    return dict(json.loads(FOUND.read_text())) if FOUND.exists() else {}


def keep(found: dict[str, dict[str, Any]]) -> None:
    every = known() | found
    kept = {each: every[each] for each in MUTATIONS if each in every}
    FOUND.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        hunt = Hunt(Path(folder))
        streams = wanted[:1] == ["--streams"]
        if streams:
            of_streams(hunt, int(wanted[1]) if wanted[1:] else 2)
        for name in MUTATIONS if not streams else ():
            if not any(text in name for text in wanted) if wanted else name in known():
                continue
            began = time.monotonic()
            result = hunt.first(name)
            print(f"{name}: {result and result['seed']} ({time.monotonic() - began:.0f} s)", flush=True)
            if result:
                keep({name: result})
        hunt.spark.stop()
        hunt.broker.end()


if __name__ == "__main__":
    main()
