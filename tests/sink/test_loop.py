"""The loop of sinks on real logs."""

import json
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from headwater.change import Change
from headwater.client.client import Client
from headwater.declare.spec import SINK_GROUP
from headwater.errors import UnavailableError, UsageError
from headwater.health.pauses import Pauses
from headwater.sink import Sqlite
from headwater.sink.effects.call import Caller
from headwater.sink.effects.effect_store import EffectStore
from headwater.sink.loop import membership
from headwater.sink.loop.loop import Loop
from headwater.sink.store import Batch, SinkFeed
from headwater.testing import SettableClock
from sink.running import Running
from support.servers import both_logs, wait_until
from support.viewlog import ViewLog

COLUMNS = {"id": "STRING", "n": "BIGINT"}


def feed(topic: str, **more) -> SinkFeed:
    return SinkFeed(f"{topic}.out", topic, ("id",), COLUMNS, **more)


@pytest.fixture
def start(bootstrap, tmp_path):
    """Starts a loop into a file of the test's own; all are stopped at the end."""
    running: list[Running] = []

    def begin(
        topic: str, target=None, address: str = bootstrap, of: SinkFeed | None = None, **options
    ) -> Running:
        target = target or Sqlite(tmp_path / "out.db")
        made = Loop(
            address, f"{topic}.out", topic, target, lambda: of or feed(topic), session_ms=6000, **options
        )
        running.append(Running(made))
        return running[-1]

    yield begin
    for each in running:
        each.stop()


@pytest.fixture
def rows(tmp_path):
    def found(topic: str, path: Path | None = None) -> dict:
        connection = sqlite3.connect(path or tmp_path / "out.db")
        try:
            return dict(connection.execute(f'SELECT id, n FROM "{topic}"').fetchall())
        except sqlite3.OperationalError:
            return {}
        finally:
            connection.close()

    return found


def put(log: ViewLog, topic: str, values: dict, **place) -> None:
    log.put(topic, {key: None if n is None else {"id": key, "n": n} for key, n in values.items()}, **place)


@both_logs
def test_a_table_follows_its_topic_and_continues_at_its_position(log, start, rows):
    topic = log.create()
    first = start(topic)
    put(log, topic, {f"k{n}": n for n in range(100)})
    wait_until(lambda: len(rows(topic)) == 100, 20, "the first rows")
    first.stop()
    put(log, topic, {"k1": None, "k2": 200})

    second = start(topic)

    wait_until(lambda: rows(topic).get("k2") == 200 and "k1" not in rows(topic), 20, "the others")
    assert second.loop.counters.applied == 2
    wait_until(lambda: sum(_committed(log, topic).values()) == 102, 20, "offsets for those who measure lag")


def _committed(log: ViewLog, topic: str) -> dict:
    from confluent_kafka import TopicPartition

    from headwater.client.client import consumer

    reader = consumer(log.log, group=SINK_GROUP + f"{topic}.out")
    try:
        return {
            p.partition: p.offset for p in reader.committed([TopicPartition(topic, n) for n in (0, 1)], 10)
        }
    finally:
        reader.close()


@both_logs
def test_two_loops_share_the_partitions_and_one_takes_over(log, start, rows):
    topic = log.create(partitions=4)
    one, two = start(topic), start(topic)
    wait_until(lambda: len(one.loop.positions) == len(two.loop.positions) == 2, 30, "two partitions each")
    put(log, topic, {f"k{n}": n for n in range(400)})
    wait_until(lambda: len(rows(topic)) == 400, 20, "all rows")
    assert one.loop.counters.applied + two.loop.counters.applied == 400

    one.stop()
    put(log, topic, {f"k{n}": n + 1 for n in range(400)})

    wait_until(lambda: rows(topic) == {f"k{n}": n + 1 for n in range(400)}, 30, "all from one")
    assert len(two.loop.positions) == 4


def test_poison_goes_to_the_dead_letters_and_the_rest_continues(log, start, rows, caplog):
    topic = log.create(partitions=1, policy="delete")
    values = {
        "a": {"id": "a", "n": 1},
        "b": {"id": "b", "n": "my secret"},
        "c": b"{no json",
        None: {"id": "d", "n": 1},
    }
    log.put(topic, values)
    running = start(topic)
    put(log, topic, {"z": 9})

    wait_until(lambda: rows(topic) == {"a": 1, "z": 9}, 20, "what can be taken in")
    letters = list(Client(log.log).read([f"{topic}.dead"]))
    about = [dict(letter.headers()) for letter in letters]
    assert sorted(int(each["offset"]) for each in about) == [1, 2, 3]
    assert {each["sink"] for each in about} == {f"{topic}.out".encode()}
    assert {letter.key() for letter in letters} == {b"b", b"c", None}
    reasons = {int(each["offset"]): each["reason"].decode() for each in about}
    assert "does not fit" in reasons[1]
    assert "not a row" in reasons[2]
    assert running.loop.counters.dead == 3
    assert f"{topic}-0 offset 1 goes to {topic}.dead: the record does not fit" in caplog.text
    assert "my secret" not in caplog.text


def test_a_topic_that_comes_later_is_waited_for(log, start, rows, caplog):
    caplog.set_level("INFO")
    topic = log.name("late")
    start(topic)
    wait_until(lambda: "waiting for topic" in caplog.text, 20, "the word")
    log.create(topic)
    put(log, topic, {"a": 1})

    wait_until(lambda: rows(topic) == {"a": 1}, 30, "the row")


def test_a_topic_that_was_created_again_fills_the_store_again(log, start, rows, caplog):
    topic = log.create(partitions=1)
    first = start(topic)
    put(log, topic, {f"old{n}": n for n in range(5)})
    wait_until(lambda: len(rows(topic)) == 5, 20, "the old rows")
    first.stop()
    log.delete(topic)
    wait_until(lambda: topic not in Client(log.log).partitions(), 20, "the deletion")
    again = ViewLog(log.log)
    again.create(topic, partitions=1)
    put(again, topic, {f"new{n}": n for n in range(9)})  # more than before: only the id differs

    start(topic)

    wait_until(lambda: rows(topic) == {f"new{n}": n for n in range(9)}, 30, "the new rows alone")
    assert "deleted and created again" in caplog.text


def test_offsets_that_the_log_does_not_have_fill_the_store_again(log, start, rows, tmp_path, caplog):
    topic = log.create(partitions=1)
    first = start(topic)
    put(log, topic, {"a": 1, "b": 2})
    wait_until(lambda: len(rows(topic)) == 2, 20, "rows")
    first.stop()
    _write(tmp_path / "out.db", "UPDATE headwater_position SET next_offset = 1000")
    _write(tmp_path / "out.db", f"INSERT INTO \"{topic}\" VALUES ('ghost', 1)")

    start(topic)

    wait_until(lambda: rows(topic) == {"a": 1, "b": 2}, 30, "rows without the ghost")
    assert "no longer has offset 1000" in caplog.text


def test_a_store_older_than_the_deletions_of_its_topic_is_filled_again(log, start, rows, tmp_path, caplog):
    topic = log.create(partitions=1)
    first = start(topic)
    put(log, topic, {"a": 1})
    wait_until(lambda: rows(topic) == {"a": 1}, 20, "the row")
    first.stop()
    _write(tmp_path / "out.db", f"INSERT INTO \"{topic}\" VALUES ('ghost', 1)")
    _write(tmp_path / "out.db", "UPDATE headwater_position SET at_ms = at_ms - 86400000 - 60000")

    start(topic)

    wait_until(lambda: rows(topic) == {"a": 1}, 20, "rows without the ghost")
    assert "older than the time for which" in caplog.text


def test_a_store_that_was_killed_while_old_records_filled_it_continues(log, start, rows, tmp_path, caplog):
    topic = log.create(partitions=1)
    old_ms = round(time.time() * 1000) - 10 * 86_400_000
    put(log, topic, {"a": 1, "b": 2}, timestamp=old_ms)
    killed = Sqlite(tmp_path / "out.db").open(feed(topic))
    killed.claim([0])
    killed.apply(Batch([Change("a", '{"id":"a","n":1}', 0, 0, old_ms)], {0: 1}))
    killed.close()
    _write(tmp_path / "out.db", f"INSERT INTO \"{topic}\" VALUES ('witness', 1)")

    start(topic)

    wait_until(lambda: "b" in rows(topic), 20, "the other row")
    assert rows(topic) == {"a": 1, "b": 2, "witness": 1}
    assert "filling the store again" not in caplog.text


def _write(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_a_paused_sink_rests_until_it_is_resumed(log, start, rows, tmp_path):
    topic = log.create()
    pauses = Pauses(tmp_path)
    running = start(topic, paused=lambda: pauses.is_paused(f"{topic}.out"))
    put(log, topic, {"a": 1})
    wait_until(lambda: rows(topic) == {"a": 1}, 20, "the row")
    pauses.pause(f"{topic}.out")
    wait_until(lambda: running.loop.resting, 10, "the rest")
    put(log, topic, {"b": 2})
    time.sleep(1)  # nothing may come
    assert rows(topic) == {"a": 1}

    pauses.resume(f"{topic}.out")

    wait_until(lambda: rows(topic) == {"a": 1, "b": 2}, 20, "the other row")


class Flaky:
    """A target whose store is away now and then, and not always without having done its work."""

    kind = "flaky"

    def __init__(self, inner, faults: list[str]) -> None:
        self.inner, self.faults = inner, faults

    def check(self, of: SinkFeed) -> None:
        self.inner.check(of)

    def open(self, of: SinkFeed):
        if self.faults and self.faults[0] == "open":
            self.faults.pop(0)
            raise UnavailableError("the store")
        self.store = self.inner.open(of)
        return self

    def apply(self, batch) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise UnavailableError("the store")
        self.store.apply(batch)
        if fault == "after":
            raise UnavailableError("the store")

    def claim(self, partitions):
        if self.faults and self.faults[0] == "claim":
            self.faults.pop(0)
            raise UnavailableError("the store")
        return self.store.claim(partitions)

    def reset(self) -> None:
        self.store.reset()

    def close(self) -> None:
        self.store.close()


def test_a_store_that_is_away_is_waited_for_and_nothing_is_doubled(log, start, tmp_path, caplog):
    caplog.set_level("INFO")
    topic = log.create(partitions=1, policy="delete")
    faults = ["open", "claim", "before", "after", "claim", "after"]
    target = Flaky(Sqlite(tmp_path / "out.db"), faults)
    put(log, topic, {f"k{n}": n for n in range(50)})
    running = start(topic, target, of=feed(topic, append=True))
    wait_until(lambda: running.loop.positions.get(0) == 50, 30, "all records")

    put(log, topic, {f"k{n}": n for n in range(50)})
    wait_until(lambda: running.loop.positions.get(0) == 100, 30, "all records")

    assert not faults
    connection = sqlite3.connect(tmp_path / "out.db")
    found = connection.execute(f'SELECT _offset, id FROM "{topic}" ORDER BY 1').fetchall()
    connection.close()
    assert found == [(n, f"k{n % 50}") for n in range(100)]
    said = [caplog.text.count("store is away"), caplog.text.count("continuing when it is back")]
    assert said[0] == said[1] >= 2
    wait_until(lambda: caplog.text.count("store is back") == said[0], 10, "the word that it is back")


def test_an_idle_loop_costs_next_to_nothing(log, start, rows):
    topic = log.create()
    start(topic)
    put(log, topic, {"a": 1})
    wait_until(lambda: rows(topic) == {"a": 1}, 20, "the row")
    before = time.process_time()
    time.sleep(2)

    assert time.process_time() - before < 0.2
    assert membership.IDLE_S <= 0.5
    assert json.dumps(rows(topic)) == '{"a": 1}'


class Slow(Flaky):
    """UnavailableError, after longer than the session of the group; once."""

    def __init__(self, inner, clock) -> None:
        super().__init__(inner, [])
        self.clock, self.slow = clock, True

    def apply(self, batch) -> None:
        if self.slow:
            self.slow = False
            self.clock.advance(7)
            raise UnavailableError("the slow store")
        super().apply(batch)


def test_a_store_that_answers_late_counts_as_away_too(log, start, tmp_path, rows, caplog):
    topic = log.create(partitions=1)
    clock = SettableClock()
    put(log, topic, {"a": 1})
    start(topic, Slow(Sqlite(tmp_path / "out.db"), clock), clock=clock)

    wait_until(lambda: rows(topic) == {"a": 1}, 20, "the row")
    assert "the store is away (the slow store)" in caplog.text


def test_a_stream_that_ends_before_its_rows_do_stops_the_sink(log, start, rows, tmp_path):
    topic = log.create(partitions=1, policy="delete")
    first = start(topic, of=feed(topic, append=True))
    put(log, topic, {"a": 1, "b": 2})
    wait_until(lambda: len(rows(topic)) == 2, 20, "rows")
    first.stop()
    _write(tmp_path / "out.db", "UPDATE headwater_position SET next_offset = 1000")

    second = start(topic, of=feed(topic, append=True))

    wait_until(lambda: second.error is not None, 20, "the refusal")
    assert isinstance(second.error, UsageError)
    assert "ends at offset 2, and the store is at 1000" in str(second.error)
    assert len(rows(topic)) == 2


def test_a_topic_created_again_under_a_running_sink_fills_any_store_again(log, start, rows, tmp_path, caplog):
    topic = log.create(partitions=1)
    start(topic, Flaky(Sqlite(tmp_path / "out.db"), []))  # it does not say of which topic it was filled
    put(log, topic, {f"old{n}": n for n in range(5)})
    wait_until(lambda: len(rows(topic)) == 5, 20, "the old rows")

    log.delete(topic)
    wait_until(lambda: "was deleted" in caplog.text, 20, "the word")
    again = ViewLog(log.log)
    again.create(topic, partitions=1)
    put(again, topic, {f"new{n}": n for n in range(9)})

    wait_until(lambda: rows(topic) == {f"new{n}": n for n in range(9)}, 30, "the new rows alone")


class Narrow:
    """Effects with room for few."""

    kind = "narrow"

    def __init__(self, function) -> None:
        self.function = function

    def check(self, of: SinkFeed) -> None:
        pass

    def open(self, of: SinkFeed) -> EffectStore:
        return EffectStore(of, Caller(self.function), start="beginning", waiting_max=10, room_s=0.2)


def test_a_receiver_that_was_slow_gets_all_of_it_in_order_when_it_is_not(log, start, caplog):
    caplog.set_level("INFO")
    topic = log.create(partitions=1)
    may_continue, delivered = threading.Event(), []

    def deliver(effect) -> None:
        may_continue.wait(30)
        delivered.append(effect.row["n"])

    running = start(topic, Narrow(deliver))
    for n in range(20):
        put(log, topic, {"a": n})
    wait_until(lambda: running.loop.positions.get(0, 0) >= 10, 20, "as many as there is room for")
    for n in range(20, 40):
        put(log, topic, {"a": n})
    wait_until(lambda: "no room" in caplog.text, 20, "the word that it waits")
    waiting = running.loop._store.waiting()
    may_continue.set()

    wait_until(lambda: len(delivered) == 40, 30, "all of them")
    assert delivered == list(range(40))
    assert 10 <= waiting < 40
    assert "store is away" not in caplog.text


def test_a_store_says_how_many_records_a_batch_has_at_most(log, start, rows, tmp_path):
    sizes = []

    class Small(Sqlite):
        batch_records = 7

        def open(self, feed):
            store = super().open(feed)
            apply = store.apply

            def counted(batch):
                sizes.append(len(batch.changes))
                apply(batch)

            store.apply = counted
            return store

    topic = log.create()
    put(log, topic, {f"k{n}": n for n in range(100)})

    start(topic, Small(tmp_path / "out.db"))
    wait_until(lambda: len(rows(topic)) == 100, 20, "the rows")
    assert max(sizes) == 7
