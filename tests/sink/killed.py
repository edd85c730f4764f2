"""A writer that is killed again and again: it leaves exactly the records of its log in a store.

The log is a story that follows from its seed, so that a writer in a process of its own and the test know
the same one.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

from headwater.sink.store import Batch, SinkFeed, Store
from sink.contract import COLUMNS, batch, change

PARTITIONS = (0, 1)
NURSERY = """
import json, os, signal, sys
sys.path[:0] = {path!r}
import headwater.sink, deltalake, opensearchpy, pyarrow.parquet, redis, tantivy
from sink.killed import Story, run
import headwater as hw
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # one write: a kill leaves no half line
for line in sys.stdin:
    target, seed, records = json.loads(line)
    child = os.fork()
    if not child:
        say(os.getpid())  # by itself: its parent may come later than its first batch
        run(eval(target), Story(seed, records), lambda: say("applied"), largest=20)
        say("done")
        signal.pause()
    say("ended", os.waitpid(child, 0)[1])
"""
"""Starts writers, each a process of its own, without the second that an interpreter takes to start and to
load the libraries. One that is done waits for its end."""


class Story:
    """Changes and deletions of 40 keys in two partitions."""

    def __init__(self, seed: int, records: int) -> None:
        self.seed = seed
        self.records = records

    def changes(self, partition: int) -> list:
        source = random.Random(self.seed * 100 + partition)
        return [
            change(
                f"{partition}-{source.randrange(20)}",
                None if source.random() < 0.2 else float(offset),
                offset,
                partition,
            )
            for offset in range(self.records)
        ]

    def ending(self) -> dict[str, float]:
        """What a store holds that has taken in all of it."""
        rows: dict[str, float] = {}
        for partition in PARTITIONS:
            for offset, each in enumerate(self.changes(partition)):
                rows.pop(each.key, None)
                if each.value is not None:
                    rows[each.key] = float(offset)
        return rows


def feed() -> SinkFeed:
    return SinkFeed("orders.killed", "orders", ("id",), COLUMNS)


def run(target, story: Story, applied=lambda: None, *, largest: int = 200) -> Store:
    """Applies the story from the store's offset on, in batches of every size up to the largest."""
    store = target.open(feed())
    at = dict.fromkeys(PARTITIONS, 0) | dict(store.claim(PARTITIONS))
    source = random.Random()
    log = {number: story.changes(number) for number in PARTITIONS}
    while any(at[number] < story.records for number in PARTITIONS):
        parts = {n: log[n][at[n] : at[n] + source.randrange(1, largest)] for n in PARTITIONS}
        made = batch(*(each for part in parts.values() for each in part))
        store.apply(Batch(made.changes, made.upto))
        at.update(made.upto)
        applied()
    return store


def start_nursery() -> subprocess.Popen[str]:
    code = NURSERY.format(path=sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Killed:
    """For a store's tests, in addition to `Contract`; ``place.expression`` is the target as Python."""

    records = 400
    kills = 4
    seed = 8
    longest_s = 0.03
    """About what a batch takes."""

    def test_a_writer_that_is_killed_loses_and_doubles_nothing(self, place, nursery):
        story = Story(self.seed, self.records)
        source = random.Random(self.seed)
        for _ in range(self.kills):
            self.run_and_kill(nursery, place, story, source)
        run(place.target, story).close()

        self.compare(place, story)

    def compare(self, place, story):
        assert {key: row["total"] for key, row in place.rows(feed()).items()} == story.ending()

    def run_and_kill(self, nursery, place, story, source):
        """Lets a writer apply some batches, and kills it at any moment after the last of them."""
        nursery.stdin.write(json.dumps([place.expression, story.seed, story.records]) + "\n")
        nursery.stdin.flush()
        child = int(nursery.stdout.readline())
        for _ in range(source.randrange(1, 4)):
            line = nursery.stdout.readline()
            if line == "done\n":
                break  # those before it were quick and left little
            assert line == "applied\n", line
        time.sleep(source.random() * self.longest_s)  # the moment of the kill
        os.kill(child, signal.SIGKILL)
        while line in ("applied\n", "done\n"):
            line = nursery.stdout.readline()
        assert line == f"ended {signal.SIGKILL.value}\n"
