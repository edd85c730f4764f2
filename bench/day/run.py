"""make soak: a day of the shop in an hour, on a whole installation that is paused, killed, suspended and rebuilt meanwhile.

A generator sends the traffic of 24 hours in MINUTES (60). Settings of all topics are scaled like the day, so that segments roll, retention
removes and compaction passes dozens of times, in the topics of users and in Headwater's own. In each third of the time the same faults happen
(``timeline.py``). In the end every view, table and store must say exactly what the generator counted by itself, and
memory, open files, threads, files, bytes and starts must have stayed flat (``samples.py``).

    python bench/day/run.py --minutes 6               a trial: one act, and nothing is said of flatness
    python bench/day/run.py --minutes 6 --plant lose  the same with a fault in the tally: it must be found
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import feed
import guests
from checks import Checks, tracebacks
from expected import Expected
from figures import keep_samples, say, store
from headwater.client.topic_defaults import FULL, ROWS
from headwater.demo.traffic import Emission
from installation import Installation
from plan import Plan
from samples import GROWS, Sampler, judge, judge_starts
from scaled import Scaled
from timeline import Timeline
from traffic import TOPICS, create, steps

HERE = Path(__file__).parent
DRAIN_LOOK_S = 10.0
DRAIN_STUCK_S = 600.0
"""Nothing has moved for so long: it never will."""
PARTITIONS = 2


class Day:
    """One run. ``run`` returns the faults."""

    def __init__(self, folder: Path, plan: Plan, plant: str) -> None:
        self.folder = folder
        self.plan = plan
        self.plant = plant
        self._begun = time.monotonic()
        self.installation = Installation(folder, self.elapsed)
        self.scaled = Scaled(self.installation.bootstrap, plan)
        self.sampler = Sampler(self.installation, self.scaled, self.elapsed)
        self.timeline = Timeline(self.installation, plan, self.elapsed)
        self._programs: list[subprocess.Popen] = []

    def elapsed(self) -> float:
        return time.monotonic() - self._begun

    def run(self) -> list[str]:
        create(self.folder / "warehouse.db")
        print("starting the installation", flush=True)
        self.installation.start()
        self._make_topics()
        self._begun = time.monotonic()
        self.installation.starts.clear()
        minutes, rate, seed = map(str, (self.plan.minutes, self.plan.rate, self.plan.seed))
        self._launch("feed.py", self.installation.bootstrap, str(self.folder), minutes, rate, seed)
        self._launch("guests.py", "visit", self.installation.bootstrap, str(self.folder))
        self._launch("guests.py", "count", self.installation.bootstrap, str(self.folder))
        self.sampler.start()
        progress = threading.Thread(target=say, args=(self,), daemon=True)
        progress.start()
        self.timeline.run()
        self._await_feed()
        self.sampler.end()
        keep_samples(self)
        self._drain()
        faults = self._check()
        self.installation.stop()
        return faults + tracebacks(self.installation.kept_logs)

    def close(self) -> None:
        for program in self._programs:
            if program.poll() is None:
                program.kill()
                program.wait()
        self.installation.close()

    def _make_topics(self) -> None:
        client = self.installation.client
        client.ensure_topics([*(set(TOPICS) - {"customers"}), guests.VISITS], PARTITIONS, FULL)
        client.ensure_topics(["customers"], PARTITIONS, ROWS)
        self.scaled.look()

    def _launch(self, program: str, *arguments: str) -> None:
        out = self.installation.kept_logs / f"{Path(program).stem}-{arguments[0].partition(':')[0]}.log"
        with out.open("wb") as log:
            argv = [sys.executable, str(HERE / program), *arguments]
            self._programs.append(subprocess.Popen(argv, stdout=log, stderr=log))

    def _await_feed(self) -> None:
        """The generator ends by itself; if the machine is slow, later."""
        while not feed.read(self.folder).ended:
            self.installation.check()
            if self._programs[0].poll() not in {None, 0}:
                raise RuntimeError("the generator has ended: see its log")
            time.sleep(1)

    def _drain(self) -> None:
        """Until no view and no sink has anything left to read, and the guests are gone."""
        print("the day is over; waiting until everything has been read", flush=True)
        (self.folder / "closing").touch()
        moved, before = time.monotonic(), None
        while True:
            self.installation.check()
            accounts = self.installation.accounts()
            consumers = [(each["consumer"], each["waiting"]) for each in accounts]
            gone = all(guests.read(self.folder, name).ended for name in ("visit", "count"))
            waiting = {
                name: count
                for name, count in consumers
                if count and not name.startswith(("visitor", "aside"))
            }
            if gone and not waiting:
                return
            if consumers != before:
                moved, before = time.monotonic(), consumers
            if time.monotonic() - moved > DRAIN_STUCK_S:
                raise RuntimeError(f"nothing moves any more; what waits: {waiting}, guests gone: {gone}")
            time.sleep(DRAIN_LOOK_S)

    def _check(self) -> list[str]:
        print("checking", flush=True)
        records = steps(self.plan)
        if self.plant == "lose":
            records = _without_one(records)
        checks = Checks(self.installation, Expected().add_all(records))
        faults = checks.run()
        for line in checks.lines:
            print(f"  {line}", flush=True)
        self.installation.keep_logs()
        judged = [
            judged
            for series in self.sampler.series()
            if series.thing not in GROWS and (judged := judge(series, self.plan.seconds)) is not None
        ] + judge_starts(self.installation.starts, self.plan.seconds)
        store(self, judged)
        if self.plan.acts > 1:
            faults += [f"not flat: {each}" for each in judged if not each.flat]
        return faults


def _without_one(records):
    """Leaves out the first record that is worth money."""
    lost = False
    for record in records:
        if not lost and isinstance(record, Emission) and record.topic == "orders":
            lost = True
            continue
        yield record


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=120, help="records a second, on average")
    parser.add_argument("--seed", type=int, default=23)
    parser.add_argument(
        "--plant", choices=["", "lose"], default="", help="a fault in the tally, to see it found"
    )
    parser.add_argument(
        "--folder", type=Path, help="keep everything here; else a temporary folder, kept when it fails"
    )
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="day-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    day = Day(folder, Plan(given.minutes, given.rate, given.seed), given.plant)
    try:
        faults = day.run()
    finally:
        day.close()
    for fault in faults:
        print(f"WRONG  {fault}", flush=True)
    print(
        "the day passed"
        if not faults
        else f"the day failed: {len(faults)} faults, everything is in {folder}",
        flush=True,
    )
    if not faults and given.folder is None:
        shutil.rmtree(folder)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
