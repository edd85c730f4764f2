"""Sinks in several processes, killed and suspended, with their database killed below them: the table is what the log says, always.

SINK_SEED and SINK_KILLS choose a longer run (``make test-faults KIND=sink``); a failing seed prints itself.
"""

import os
import random
import signal
import threading
import time
from collections import Counter

import psycopg
import pytest

from databases import PostgresProcess
from headwater.change import Change
from headwater.operate.ledger import check
from headwater.sink.loop import Loop
from headwater.sink.store import Batch, Feed
from servers import wait_until
from sink.sinkprocess import SinkProcess, appended, faults
from viewlog import ViewLog

SEED = int(os.environ.get("SINK_SEED", "0"))
KILLS = int(os.environ.get("SINK_KILLS", "10"))
PER_SEED = 10
AUDIT = """
CREATE TABLE IF NOT EXISTS headwater_position (sink text, topic text, partition integer, next_offset bigint, claim bigint NOT NULL,
    at_ms bigint, PRIMARY KEY (sink, topic, partition));
CREATE TABLE IF NOT EXISTS audit (what text);
CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.next_offset < OLD.next_offset OR NEW.claim < OLD.claim THEN
        INSERT INTO audit VALUES (format('%s-%s went from %s to %s', NEW.topic, NEW.partition, OLD.next_offset, NEW.next_offset));
    END IF; RETURN NEW; END $$;
CREATE OR REPLACE TRIGGER looking AFTER UPDATE ON headwater_position FOR EACH ROW EXECUTE FUNCTION look();
"""


@pytest.fixture(scope="module")
def database():
    """A PostgreSQL that may be killed."""
    process = PostgresProcess()
    process.start()
    with psycopg.connect(process.url) as connection:
        connection.execute(AUDIT)
    yield process
    process.end()


class Traffic:
    """Rows that change and go, written until the end."""

    def __init__(self, log: ViewLog, topic: str, seed: int) -> None:
        self._log, self._topic, self._chance = log, topic, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._stop.wait(0.02):
            rows = {}
            for _ in range(60):
                key = f"k{self._chance.randrange(500)}"
                rows[key] = None if self._chance.random() < 0.1 else {"id": key, "n": count}
                count += 1
            self._log.put(self._topic, rows)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)


def query(database: PostgresProcess, text: str) -> list:
    with psycopg.connect(database.url, connect_timeout=5) as connection:
        return connection.execute(text).fetchall()


def table(database: PostgresProcess, topic: str) -> dict:
    try:
        return dict(query(database, f'SELECT id, n FROM "{topic}"'))
    except psycopg.Error:
        return {}


def expected(log: ViewLog, topic: str) -> dict:
    return {key: row["n"] for key, row in log.expected(topic).items()}


def waiting(log: ViewLog, topic: str) -> int:
    """How many records wait for the sink; its account adds up, wherever it is."""
    (found,) = check(log.log, [f"{topic}.out"])
    assert found.processed + found.waiting == found.produced
    return found.waiting


@pytest.mark.parametrize("seed", range(SEED, SEED + max(KILLS // PER_SEED, 1)))
def test_whatever_is_killed_the_table_is_what_the_log_says(log, database, tmp_path, seed):
    chance = random.Random(seed)
    topic = log.create(partitions=4)
    sinks = [SinkProcess(log.log, topic, database.url, tmp_path) for _ in range(2)]
    traffic = Traffic(log, topic, seed)
    try:
        for sink in sinks:
            sink.start()
        wait_until(lambda: table(database, topic), 30, "the first rows")
        done = [_fault(chance, sinks, database) for _ in range(min(KILLS, PER_SEED))]
        traffic.end()
        what = f"seed {seed}: after {Counter(done)} the table equals the log"
        wait_until(lambda: table(database, topic) == expected(log, topic), 60, what)
        assert query(database, "SELECT what FROM audit") == [], f"seed {seed}"
        wait_until(
            lambda: not waiting(log, topic), 30, f"seed {seed}: the sinks have told that they are done"
        )
    finally:
        traffic.end()
        codes = [sink.end() for sink in sinks]
    assert codes == [0, 0], f"seed {seed}: {(tmp_path / 'sink.log').read_text()[-2000:]}"


def _fault(chance: random.Random, sinks: list[SinkProcess], database: PostgresProcess) -> str:
    """One fault in the midst of the traffic."""
    time.sleep(chance.uniform(0.1, 0.8))
    sink, kind = chance.choice(sinks), chance.choices(["kill", "suspend", "database"], [6, 2, 2])[0]
    if kind == "kill":
        sink.kill()
        sink.start()
    elif kind == "suspend":
        sink.signal(signal.SIGSTOP)
        time.sleep(chance.uniform(1.6, 2.5))  # past its session
        sink.signal(signal.SIGCONT)
    else:
        database.kill()
        time.sleep(chance.uniform(0, 0.3))
        database.start()
    return kind


def test_a_suspended_sink_writes_nothing_after_its_successor(log, database, tmp_path):
    topic = log.create(partitions=1)
    first, second = (SinkProcess(log.log, topic, database.url, tmp_path) for _ in range(2))
    log.put(topic, {"a": {"id": "a", "n": 1}})
    first.start()
    try:
        wait_until(lambda: table(database, topic) == {"a": 1}, 30, "the first row")
        claims = f"SELECT claim FROM headwater_position WHERE topic = '{topic}'"
        (before,) = query(database, claims)
        first.signal(signal.SIGSTOP)
        second.start()
        wait_until(lambda: query(database, claims)[0] > before, 30, "the successor's claim")
        log.put(topic, {"a": {"id": "a", "n": 2}, "b": {"id": "b", "n": 2}})
        wait_until(lambda: table(database, topic) == {"a": 2, "b": 2}, 30, "the successor's rows")
        first.signal(signal.SIGCONT)
        log.put(topic, {"a": {"id": "a", "n": 3}})
        wait_until(lambda: table(database, topic) == {"a": 3, "b": 2}, 30, "the last row")
        assert query(database, "SELECT what FROM audit") == []
    finally:
        assert [first.end(), second.end()] == [0, 0]


class Planted:
    """A store in memory that makes a mistake with one record of ten thousand; a target at the same time."""

    kind = "planted"

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.rows: list = []
        self.offsets: dict[int, int] = {}

    def check(self, feed: Feed) -> None:
        pass

    def open(self, feed: Feed) -> "Planted":  # noqa: ARG002
        return self

    def claim(self, partitions) -> dict[int, int]:
        return {p: self.offsets[p] for p in partitions if p in self.offsets}

    def apply(self, batch: Batch) -> None:
        for change in batch.changes:
            self.rows += [self._row(change)] * self._copies(change)
        self.offsets |= batch.upto

    def _copies(self, change: Change) -> int:
        if change.offset != 7_777:
            return 1
        return {"lose": 0, "double": 2, "": 1}[self.mistake]

    def _row(self, change: Change) -> tuple:
        return change.partition, change.offset, change.value.encode()

    def reset(self) -> None:
        self.rows, self.offsets = [], {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("mistake", "said"), [("", []), ("lose", ["lost"]), ("double", ["doubled"])])
def test_the_checker_catches_one_mistake_in_ten_thousand(log, mistake, said):
    topic = log.create(partitions=1, policy="delete")
    for n in range(10_000):
        log.producer.produce(topic, key=b"k", value=b'{"id":"k","n":%d}' % n)
    assert log.producer.flush(30) == 0
    store = Planted(mistake)
    feed = Feed("planted", topic, ("id",), {"id": "STRING", "n": "BIGINT"}, append=True)
    running = Loop(log.log, f"{topic}.planted", topic, store, lambda: feed)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_until(lambda: store.offsets.get(0) == 10_000, 30, "all records")
    running.stop()
    thread.join(10)

    found = faults(appended(log.log, topic), Counter(store.rows))

    assert [fault.split()[0] for fault in found] == said
