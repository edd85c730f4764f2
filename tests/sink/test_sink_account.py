"""The accounts of real sinks, and of sinks that lose or duplicate a record on the way to their store."""

import threading

import pytest

from headwater.operate.log.ledger import accounts
from headwater.sink import Call, Reject, Sqlite
from headwater.sink.loop.loop import Loop
from headwater.sink.store import SinkFeed
from sink.running import Running
from support.servers import both_logs, wait_until

RECORDS = 40


class Losing(Loop):
    """Drops one record that it was given."""

    def _handle(self, messages):
        messages.records = [each for each in messages.records if each.offset() != 7]
        super()._handle(messages)


class Doubling(Loop):
    """Takes one record for two."""

    def _handle(self, messages):
        messages.records += [each for each in messages.records if each.offset() == 7]
        super()._handle(messages)


@pytest.fixture
def follow(log, tmp_path):
    """A sink that follows a topic until the test looks away."""
    ending = []

    def start(topic: str, kind: type[Loop] = Loop):
        feed = SinkFeed(f"{topic}.out", topic, ("id",), {"id": "STRING", "n": "BIGINT"}, append=True)
        running = kind(log.log, feed.sink, topic, Sqlite(tmp_path / "out.db"), lambda: feed)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()

        def stop() -> None:
            running.stop()
            thread.join(120)

        ending.append(stop)
        return stop

    yield start
    for stop in ending:
        stop()


def account(log, topic):
    return next((each for each in accounts(log.log, [topic]) if each.consumer == f"{topic}.out"), None)


def wait_for_all(log, topic):
    """Until the sink has committed that it is at the end."""

    def is_done() -> bool:
        found = account(log, topic)
        return found is not None and found.waiting == 0

    wait_until(is_done, 30, "the sink's last offsets")
    return account(log, topic)


@both_logs
def test_a_sink_counts_what_it_applies_over_restarts_and_dead_letters(log, follow):
    topic = log.create(partitions=2, policy="delete")
    rows = {f"k{n}": {"id": f"k{n}", "n": n} for n in range(RECORDS)} | {"bad": b"{no json"}
    log.put(topic, rows)
    stop = follow(topic)
    first = wait_for_all(log, topic)
    stop()
    log.put(topic, rows)
    follow(topic)
    second = wait_for_all(log, topic)

    assert [(each.produced, each.processed, each.dead, each.fault) for each in (first, second)] == [
        (RECORDS + 1, RECORDS, 1, ""),
        (2 * RECORDS + 2, 2 * RECORDS, 2, ""),
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Losing, f"1 of {RECORDS} records are missing"),
        (Doubling, f"1 records more than the {RECORDS} that were produced"),
    ],
)
def test_a_record_that_is_lost_or_doubled_on_the_way_is_named(log, follow, kind, said):
    topic = log.create(partitions=1, policy="delete")
    log.put(topic, {f"k{n}": {"id": f"k{n}", "n": n} for n in range(RECORDS)})
    follow(topic, kind)

    found = wait_for_all(log, topic)

    assert found.fault == f"{topic} → {topic}.out: {said}"


@both_logs
def test_an_effect_is_delivered_or_waits_or_is_dead_and_in_one_term_only(log):
    topic = log.create(partitions=1, policy="delete")
    gate = threading.Event()

    def deliver(effect):
        if effect.row["n"] == 1:
            raise Reject("it is not wanted")
        if effect.row["n"] == 2:
            gate.wait(30)

    feed = SinkFeed(f"{topic}.out", topic, ("id",), {"id": "STRING", "n": "BIGINT"})
    running = Running(Loop(log.log, feed.sink, topic, Call(deliver, start="beginning"), lambda: feed))
    log.put(topic, {f"k{n}": {"id": f"k{n}", "n": n} for n in range(4)})

    def has(**terms: int) -> bool:
        found = account(log, topic)
        return found is not None and {name: getattr(found, name) for name in terms} == terms

    try:
        wait_until(lambda: has(produced=4, processed=1, dead=1, waiting=2), 30, "the second effect is dead")
        assert account(log, topic).fault == ""
        gate.set()
        wait_until(lambda: has(produced=4, processed=3, dead=1, waiting=0), 30, "the others are delivered")
        assert account(log, topic).fault == ""
    finally:
        gate.set()
        running.stop()
    assert running.error is None
