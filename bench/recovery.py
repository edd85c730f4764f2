"""make bench-recovery: how long a view is away when its machine, its copies or its checkpoint are lost, beside computing it again from the log.

A view counts the records of each key, in state of ours. Each way ends when a record that was written last is in the view. Spark runs all the
time, as a standby would have it; its own start comes on top of every way. KEYS and RECORDS say how much there is.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import headwater as hw
from embedded import embedded, write
from headwater.client.client import Client
from headwater.config import Settings
from headwater.operate.views.backup import backup, restore
from headwater.operate.views.reset import reset
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from results import Figure
from results import save as publish
from support.servers import wait_until

ROUNDS = 3
KEYS = int(os.environ.get("KEYS", "200000"))
RECORDS = int(os.environ.get("RECORDS", "2000000"))
VIEW = "counted"
STREAM = "words"


class Event(hw.Event):
    word: str
    at: datetime


def app() -> hw.App:
    made = hw.App("recovery")
    made.stream(STREAM, Event, key="word", time="at")

    @made.view(name=VIEW, key=["word"])
    def _(words: Any) -> Any:
        return hw.count(words, "word", column="n")

    return made


def records(count: int) -> Iterator[tuple[bytes, bytes]]:
    for n in range(count):
        word = b"word-%d" % (n % KEYS)
        yield word, b'{"word":"%b","at":"2026-01-05T09:00:00Z"}' % word


def catch_up(settings: Settings) -> None:
    """Starts the view and waits until it has published all that is in the log; then it is stopped."""
    runner = Runner(app(), settings)
    runner.start()
    try:
        wait_until(lambda: runner.wait(0.01) or runner.caught_up(), 600, "catching up")
    finally:
        runner.stop()


def main() -> None:
    with embedded(partitions=2, trigger_ms=50) as (broker, settings), tempfile.TemporaryDirectory() as place:
        Client(broker.bootstrap).ensure_topics([STREAM], 2)
        session.start(settings)
        write(broker.bootstrap, STREAM, records(RECORDS))
        catch_up(settings)
        checkpoint, copies = settings.data / "checkpoints" / VIEW, session.copies(settings)

        def away(prepare: Callable[[], None], act: Callable[[], object] = lambda: None) -> float:
            """Seconds until a new record is in the view."""
            prepare()
            write(broker.bootstrap, STREAM, records(1))
            began = time.monotonic()
            act()
            catch_up(settings)
            return time.monotonic() - began

        def forget_copies() -> None:
            shutil.rmtree(copies)

        def lose() -> None:
            backup(settings, VIEW, place)
            # Whatever comes from now on, a new machine has neither of them.
            shutil.rmtree(checkpoint)
            forget_copies()

        ways: dict[str, Callable[[], float]] = {
            "from its checkpoint": lambda: away(lambda: None),
            "from its checkpoint, without copies": lambda: away(forget_copies),
            "from a backup": lambda: away(lose, lambda: restore(settings, VIEW, place)),
            "from the log": lambda: away(lambda: reset(settings, VIEW)),
        }
        found: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(ROUNDS + 1):
            for name, way in ways.items():
                seconds = way()
                if turn:
                    found[name].append(seconds)
                print(f"{name}: {seconds:.2f} s", flush=True)
        made = backup(settings, VIEW, place)
    seconds = {name: statistics.median(each) for name, each in found.items()}
    replay = seconds.pop("from the log")
    size = f"{KEYS:,} keys, {made.size_bytes / 1e6:.0f} MB of files"
    figures = [
        Figure(
            f"a view is back {name} ({size})",
            each,
            replay,
            f"replay of {RECORDS:,} records",
            "s",
            None,
            higher_is_better=False,
        )
        for name, each in seconds.items()
    ]
    publish("recovery", figures)


if __name__ == "__main__":
    main()
