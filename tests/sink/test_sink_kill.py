"""Sinks in several processes: whatever is killed or suspended, each store has exactly the rows of the log.

SINK_SEED and SINK_KILLS choose a longer run (``make test-faults KIND=sink``); a failing seed prints itself.
"""

import json
import os
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis

from headwater.change import Change
from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.operate.log.ledger import check
from headwater.sink.changes import parse_messages
from headwater.sink.effects.effect import make_effect
from headwater.sink.loop.loop import Loop
from headwater.sink.store import Batch, SinkFeed
from sink.sinkprocess import ReceiverProcess, SinkProcess, appended, faults
from sink.watching import Watcher
from support.databases import PostgresProcess, RedisProcess
from support.servers import BrokerProcess, wait_until
from support.viewlog import ViewLog

SEED = int(os.environ.get("SINK_SEED", "0"))
KILLS = int(os.environ.get("SINK_KILLS", "10"))
PER_SEED = 10
KILLED = {"sink": 6, "database": 2, "redis": 2, "receiver": 2, "broker": 2}
"""What may be killed, and with which weight."""
SUSPENDED = "suspended"
"""Done to a sink once in each seed, and no kill."""
LIVE_KEYS = 40
AUDIT = """
CREATE TABLE IF NOT EXISTS headwater_position (sink text, topic text, partition integer,
    next_offset bigint, claim bigint NOT NULL, at_ms bigint, PRIMARY KEY (sink, topic, partition));
CREATE TABLE IF NOT EXISTS audit (what text);
CREATE OR REPLACE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.next_offset < OLD.next_offset OR NEW.claim < OLD.claim THEN
        INSERT INTO audit VALUES (
            format('%s-%s went from %s to %s', NEW.topic, NEW.partition, OLD.next_offset, NEW.next_offset)
        );
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

    def __init__(self, log: ViewLog, topic: str, seed: int, rows: int) -> None:
        self._log, self._topic, self._rows, self._chance = log, topic, rows, random.Random(seed)
        self._count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._log.put(self._topic, self._next())

    def _next(self) -> dict:
        rows = {}
        for _ in range(self._rows):
            key = f"k{self._chance.randrange(500)}"
            rows[key] = None if self._chance.random() < 0.1 else {"id": key, "n": self._count}
            self._count += 1
        return rows

    def end(self) -> None:
        self._stop.set()
        self._thread.join(120)


class LiveTraffic(Traffic):
    """Rows with versions, like a real-time view's; now and then it repeats some, as after a crash."""

    def _next(self) -> dict:
        if self._chance.random() < 0.1:
            self._count = max(self._count - self._chance.randrange(1, 15), 0)
        self._count += 1
        rows = {}
        for key in (f"k{n}" for n in range(self._count % self._rows, LIVE_KEYS, self._rows)):
            rows[key] = {"id": key, "n": self._count, "_version": self._count}
        return rows


def query(database: PostgresProcess, text: str) -> list:
    with psycopg.connect(database.url, connect_timeout=5) as connection:
        return connection.execute(text).fetchall()


def table(database: PostgresProcess, topic: str) -> dict:
    try:
        return dict(query(database, f'SELECT id, n FROM "{topic}"'))
    except psycopg.Error:
        return {}


def filed(path: Path, topic: str) -> dict:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)) as connection:
        return dict(connection.execute(f'SELECT id, n FROM "{topic}"').fetchall())


def expected(log: ViewLog, topic: str) -> dict:
    return {key: row["n"] for key, row in log.expected(topic).items()}


def newest(log: ViewLog, topic: str) -> dict:
    """The greatest version of each key, at any offset."""
    found: dict[str, int] = {}
    for message in Client(log.log).read([topic]):
        row = json.loads(message.value())
        found[row["id"]] = max(row["_version"], found.get(row["id"], 0))
    return found


def waiting(log: ViewLog, *sinks: str) -> bool:
    """Whether records wait for the sinks, or a sink has committed nothing yet.

    Their accounts add up, wherever they are.
    """
    try:
        found = check(log.log, sinks)
    except UsageError:  # one that has committed no offsets is not known
        return True
    assert len(found) == len(sinks)
    assert all(each.processed + each.waiting == each.produced for each in found)
    return any(each.waiting for each in found)


def cached(server: RedisProcess, topic: str) -> dict:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        keys = list(client.scan_iter(f"{topic}:*", 1_000))
        found = client.mget(keys) if keys else []
        rows = [json.loads(text) for text in found if text is not None]  # some go while we look
    return {row["id"]: row["n"] for row in rows}


def effect_ids(log: ViewLog, topic: str) -> set[str]:
    """The id of each record, as a receiver gets it."""
    changes, _, refused = parse_messages(list(Client(log.log).read([topic])), keyless=False)
    assert not refused
    feed = SinkFeed("", topic, ("id",), {})
    return {make_effect(feed, change, "live").id for change in changes}


@dataclass
class Scene:
    """All that can be killed.

    Two processes run the sinks: two tables and a cache of one topic, the same of one with versions, and
    calls for each record of a third.
    """

    broker: BrokerProcess
    database: PostgresProcess
    cache: RedisProcess
    receiver: ReceiverProcess
    sinks: list[SinkProcess]

    def fault(self, kind: str, chance: random.Random) -> None:
        sink = chance.choice(self.sinks)
        if kind == "sink":
            sink.kill()
            sink.start()
        elif kind == SUSPENDED:
            sink.signal(signal.SIGSTOP)
            time.sleep(chance.uniform(1.6, 2.5))  # past its session
            sink.signal(signal.SIGCONT)
        else:
            server, end = {
                "database": (self.database, self.database.kill),
                "redis": (self.cache, self.cache.end),
                "receiver": (self.receiver, self.receiver.kill),
                "broker": (self.broker, lambda: self.broker.end(signal.SIGKILL)),
            }[kind]
            end()
            time.sleep(chance.uniform(0, 0.3))
            server.start()


def plan(seed: int) -> list[str]:
    """What a seed kills, in order: everything once, and the sinks most often. One sink is suspended once."""
    chance = random.Random(seed)
    kinds = [*KILLED, *chance.choices(list(KILLED), list(KILLED.values()), k=PER_SEED - len(KILLED))]
    kinds.append(SUSPENDED)
    chance.shuffle(kinds)
    return kinds


@pytest.fixture
def scene(own_broker, database, tmp_path):
    """Servers of a seed's own, but for the database; the log is empty."""
    cache, receiver = RedisProcess(tmp_path / "redis"), ReceiverProcess(tmp_path)
    cache.start()
    receiver.start()
    scene = Scene(own_broker, database, cache, receiver, [])
    yield scene
    for sink in scene.sinks:
        sink.end()
    cache.end()
    receiver.kill()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(SEED, SEED + max(KILLS // PER_SEED, 1)))
def test_whatever_is_killed_every_store_is_what_the_log_says(scene, tmp_path, seed):
    began, chance, kinds = time.monotonic(), random.Random(seed), plan(seed)
    log, database, file = ViewLog(scene.broker.bootstrap), scene.database, tmp_path / "out.db"
    topic, hooked, live = log.create(partitions=4), log.create(policy="delete"), log.create()
    stores = {"out": database.url, "cache": scene.cache.url, "file": str(file)}
    sinks = [
        (f"{of}.{kind}", of, where, of == live) for of in (topic, live) for kind, where in stores.items()
    ]
    sinks.append((f"{hooked}.hook", hooked, scene.receiver.url, False))
    scene.sinks = [SinkProcess(log.log, tmp_path, *sinks) for _ in range(2)]
    traffic = [
        Traffic(log, topic, seed, rows=60),
        Traffic(log, hooked, seed, rows=2),
        LiveTraffic(log, live, seed, rows=4),
    ]
    watcher = Watcher(
        {
            "PostgreSQL": lambda: dict(query(database, f'SELECT id, n FROM "{live}"')),
            "Redis": lambda: cached(scene.cache, live),
            "SQLite": lambda: filed(file, live),
        }
    )
    try:
        for sink in scene.sinks:
            sink.start()
        wait_until(lambda: table(database, topic) and cached(scene.cache, topic), 60, "the first rows")
        watcher.start()
        for kind in kinds:
            time.sleep(chance.uniform(0.1, 0.8))
            scene.fault(kind, chance)
        for each in traffic:
            each.end()
        what = f"seed {seed}: after {kinds}"
        assert watcher.faults == [], what
        rows, ids = expected(log, topic), effect_ids(log, hooked)
        wait_until(lambda: table(database, topic) == rows, 60, f"{what} the table equals the log")
        wait_until(lambda: cached(scene.cache, topic) == rows, 60, f"{what} Redis equals the log")
        wait_until(lambda: filed(file, topic) == rows, 60, f"{what} the file equals the log")
        versions = newest(log, live)
        wait_until(lambda: table(database, live) == versions, 60, f"{what} the table has the newest")
        wait_until(lambda: cached(scene.cache, live) == versions, 60, f"{what} Redis has the newest")
        wait_until(lambda: filed(file, live) == versions, 60, f"{what} the file has the newest")
        wait_until(lambda: ids <= set(scene.receiver.ids()), 60, f"{what} all is delivered")
        assert set(scene.receiver.ids()) == ids, what
        assert query(database, "SELECT what FROM audit") == [], f"seed {seed}"
        names = [name for name, *_ in sinks]
        try:
            wait_until(lambda: not waiting(log, *names), 30)
        except TimeoutError as error:
            left = [each for each in check(log.log, names) if each.waiting]
            raise AssertionError(f"{what} the sinks have not committed that they are done: {left}") from error
        watcher.end()
        assert watcher.faults == [], what
        assert min(watcher.looks[store] for store in ("PostgreSQL", "Redis", "SQLite")) > len(kinds)
    finally:
        watcher.end()
        for each in traffic:
            each.end()
        codes = [sink.end() for sink in scene.sinks]
    assert codes == [0, 0], f"seed {seed}: {(tmp_path / 'sink.log').read_text()[-2000:]}"
    tally(seed, kinds, began)


def tally(seed: int, kinds: list[str], began: float) -> None:
    if "CRASH_TALLY" in os.environ:
        line = {
            "seed": seed,
            "outcome": "passed",
            "kills": len(kinds) - kinds.count(SUSPENDED),
            "suspended": kinds.count(SUSPENDED),
            "killed": dict(sorted(Counter(kind for kind in kinds if kind != SUSPENDED).items())),
            "seconds": round(time.monotonic() - began),
        }
        with Path(os.environ["CRASH_TALLY"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


def test_every_seed_kills_each_of_them_and_the_sinks_most():
    plans = [plan(seed) for seed in range(30)]
    assert all(len(each) == PER_SEED + 1 and set(each) == {*KILLED, SUSPENDED} for each in plans)
    assert all(each.count(SUSPENDED) == 1 for each in plans)
    counts = Counter(kind for each in plans for kind in each)
    assert max(counts, key=counts.__getitem__) == "sink"


def test_a_watcher_names_a_value_that_becomes_older_or_goes():
    watcher = Watcher({})
    for rows in ({"a": 1}, {"a": 3, "b": 1}, {"a": 2, "b": 1}, {"a": 3}):
        watcher.look("store", rows)
    watcher.look("other", {"a": 1})

    assert watcher.faults == [
        "store has shown a as 3, and then as 2",
        "store has shown b as 1, and then as None",
    ]


def test_a_suspended_sink_writes_nothing_after_its_successor(log, database, tmp_path):
    topic = log.create(partitions=1)
    sink = (f"{topic}.out", topic, database.url, False)
    first, second = (SinkProcess(log.log, tmp_path, sink) for _ in range(2))
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

    def check(self, feed: SinkFeed) -> None:
        pass

    def open(self, feed: SinkFeed) -> "Planted":  # noqa: ARG002
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
    feed = SinkFeed("planted", topic, ("id",), {"id": "STRING", "n": "BIGINT"}, append=True)
    running = Loop(log.log, f"{topic}.planted", topic, store, lambda: feed)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    wait_until(lambda: store.offsets.get(0) == 10_000, 30, "all records")
    running.stop()
    thread.join(120)

    found = faults(appended(log.log, topic), Counter(store.rows))

    assert [fault.split()[0] for fault in found] == said
