# ruff: noqa: T201
"""Looks for each defect of ``mutations.py``: ``python tests/pipeline/differential/hunt.py [TEXT…]``; writes ``found.json``.

Only programs that may find it are run, each in the history of its group; the seed that is written down counts all.
"""

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import msgspec  # noqa: E402

from headwater.config import Settings  # noqa: E402
from headwater.pipeline import session  # noqa: E402
from ordershop import Shop  # noqa: E402
from pipeline.differential.generate import TOGETHER, group  # noqa: E402
from pipeline.differential.mutations import MUTATIONS, mutated  # noqa: E402
from pipeline.differential.run import Compared, compared  # noqa: E402
from pipeline.driver import JAVA  # noqa: E402
from servers import BrokerProcess  # noqa: E402

FOUND = HERE / "found.json"
PROGRAMS = 500
AT_ONCE = 3
STREAMING = {"window|hw.s|hw.match"}
CRASH = "An error occurred while calling"
"""What a view says that a Python worker has ended: that is no wrong row."""


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


def main() -> None:
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        hunt = Hunt(Path(folder))
        for name in MUTATIONS:
            found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
            if not any(text in name for text in wanted) if wanted else name in found:
                continue
            began = time.monotonic()
            result = hunt.first(name)
            print(f"{name}: {result and result['seed']} ({time.monotonic() - began:.0f} s)", flush=True)
            if result:
                found[name] = result
                kept = {each: found[each] for each in MUTATIONS if each in found}
                FOUND.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        hunt.spark.stop()
        hunt.broker.end()


if __name__ == "__main__":
    main()
