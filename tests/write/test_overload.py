"""A writer for which there is no room: it waits, keeps, or leaves out, and every record is accounted for."""

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections import Counter

import msgspec
import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.testing import SettableClock
from headwater.write.outlet import CallTally, ProducerRecord
from headwater.write.shedding import RecordQueue
from headwater.write.writer import Counts
from support.servers import answers, both_logs, free_port, wait_until


@pytest.fixture
def topic(bootstrap):
    name = f"overload-{uuid.uuid4().hex[:8]}"
    Client(bootstrap).ensure_topics([name], 3)
    return name


def values(bootstrap, topic) -> list[int]:
    return [int(record.value()) for record in Client(bootstrap).read([topic])]


def numbers(first: int, last: int):
    """Each with one of seven keys."""
    return [(b"k%d" % (n % 7), b"%d" % n) for n in range(first, last)]


def assert_in_order(bootstrap, topic, count: int) -> None:
    """Each number is there once, and those of a key are in their order."""
    found = [(r.key(), int(r.value())) for r in Client(bootstrap).read([topic])]
    assert Counter(n for _, n in found) == Counter(range(count))
    for key in {key for key, _ in found}:
        of_key = [n for each, n in found if each == key]
        assert of_key == sorted(of_key)


class Caller(threading.Thread):
    """One call of a writer in a thread of its own, and what came of it."""

    def __init__(self, call) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.error = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except hw.HeadwaterError as error:
            self.error = error

    def end(self) -> None:
        self.join(120)
        assert not self.is_alive()


# ---- the limit -----------------------------------------------------------------------------------------


def test_a_limit_holds_records_back_until_their_time_has_come(bootstrap, topic):
    clock = SettableClock()
    with hw.Writer(bootstrap, limit="10/s burst 5", clock=clock) as writer:
        calling = Caller(lambda: writer.put(topic, numbers(0, 18)))
        for count in (5, 8, 13, 18):
            wait_until(lambda count=count: len(values(bootstrap, topic)) == count, 20, f"{count} records")
            clock.advance(0.3 if count == 5 else 0.5)
        calling.end()
        assert writer.counts() == Counts(18, 18, 0, 0, 0)


# ---- block ---------------------------------------------------------------------------------------------


def test_a_writer_that_blocks_says_when_it_has_waited_long_enough(own_broker):
    Client(own_broker.bootstrap).ensure_topics(["orders"], 1)
    with hw.Writer(own_broker.bootstrap, queue=10, wait=2) as writer:
        writer.put("orders", numbers(0, 1))  # connects, which takes its time
        writer.put("orders", numbers(1, 30))
        os.kill(own_broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(
                hw.OverloadedError, match=r"no room for a record for 'orders' within 2 s; .*larger queue"
            ):
                writer.put("orders", numbers(30, 100))
        finally:
            os.kill(own_broker.pid, signal.SIGCONT)
        assert writer.counts() == Counts(given=41, sent=30, shed=0, waiting=0, failed=11)


# ---- shed ----------------------------------------------------------------------------------------------


def test_of_too_many_the_newest_of_the_lowest_priority_goes_and_the_others_keep_their_order():
    waiting, tally = RecordQueue(4), CallTally()

    def offer(number: int, priority: int) -> int | None:
        out = waiting.offer(ProducerRecord("t", None, b"%d" % number, priority), tally, 0.0)
        return None if out is None else int(out.record.value)

    assert [offer(n, p) for n, p in [(0, 1), (1, 0), (2, 5), (3, 0)]] == [None] * 4
    assert offer(4, 0) == 4
    assert offer(5, 1) == 3
    assert offer(6, 9) == 1
    assert offer(7, 9) == 5
    left = []
    while (item := waiting.first()) is not None:
        left.append(int(item.record.value))
        waiting.take(item)
    assert left == [0, 2, 6, 7]


@both_logs
def test_every_record_is_sent_or_shed_and_named_and_the_least_important_go_first(bootstrap, topic):
    clock = SettableClock()
    with hw.Writer(bootstrap, full="shed", queue=100, limit="10/s burst 20", wait=5, clock=clock) as writer:
        given = [b"%d" % n for n in range(1000)]
        calling = Caller(
            lambda: writer.send(topic, given, key=lambda v: b"k" + v, priority=lambda v: int(v) % 3)
        )
        wait_until(lambda: len(list(Client(bootstrap).read([f"{topic}.shed"]))) == 880, 20, "880 names")
        clock.advance(2)
        wait_until(lambda: len(values(bootstrap, topic)) == 40, 20, "40 records")
        clock.advance(4)  # twenty more may go, and the others have waited for too long
        calling.end()
        assert calling.error is None
        assert writer.counts() == Counts(given=1000, sent=60, shed=940, waiting=0, failed=0)

    sent = values(bootstrap, topic)
    names = list(Client(bootstrap).read([f"{topic}.shed"]))
    shed = [int(name.key()[1:]) for name in names]
    assert Counter(sent + shed) == Counter(range(1000))
    notices = [msgspec.json.decode(name.value()) for name in names]
    assert {frozenset(each) for each in notices} == {frozenset({"key", "priority", "reason", "at_ms"})}
    assert all(
        each["key"] == f"k{n}" and each["priority"] == n % 3 for n, each in zip(shed, notices, strict=True)
    )
    assert Counter(notice["reason"] for notice in notices) == {"full": 880, "old": 60}
    # After the burst, for which there was room, only the most important have come into the queue.
    assert {n % 3 for n in sent if n >= 20} == {2}


def test_records_of_many_threads_are_shed_in_one_account(bootstrap, topic):
    with hw.Writer(bootstrap, full="shed", queue=50, limit="400/s burst 10", wait=0.5) as writer:
        callers = [
            Caller(lambda n=n: writer.put(topic, numbers(n * 500, n * 500 + 500), priority=n))
            for n in range(4)
        ]
        for caller in callers:
            caller.end()
            assert caller.error is None
        counts = writer.counts()
    sent = values(bootstrap, topic)
    names = list(Client(bootstrap).read([f"{topic}.shed"]))
    assert counts.given == counts.sent + counts.shed == 2000
    assert (len(sent), len(names)) == (counts.sent, counts.shed)
    assert len(set(sent)) == len(sent)


def test_a_record_that_cannot_be_named_is_not_shed_but_fails(own_broker):
    Client(own_broker.bootstrap).ensure_topics(["orders", "orders.shed"], 1)
    with hw.Writer(own_broker.bootstrap, full="shed", queue=4, wait=1, timeout=2) as writer:
        writer.put("orders", numbers(0, 3))
        os.kill(own_broker.pid, signal.SIGSTOP)
        try:
            with pytest.raises(hw.MachineError, match="of 7 records for 'orders' were not acknowledged"):
                writer.put("orders", numbers(3, 10))
        finally:
            os.kill(own_broker.pid, signal.SIGCONT)
        assert writer.counts().failed == 7


def test_a_wrong_declaration_is_refused(bootstrap, topic, tmp_path):
    with pytest.raises(hw.UsageError, match="full is wrong; got 'drop'; expected 'block', 'spill' or 'shed'"):
        hw.Writer(bootstrap, full="drop")
    with pytest.raises(hw.UsageError, match="needs a name"):
        hw.Writer(bootstrap, full="spill", folder=tmp_path)
    with pytest.raises(hw.UsageError, match="needs a folder"):
        hw.Writer(bootstrap, full="spill", name="till")
    with pytest.raises(hw.UsageError, match="queue is wrong"):
        hw.Writer(bootstrap, queue=0)
    with hw.Writer(bootstrap) as writer, pytest.raises(hw.UsageError, match="a priority is wrong; got 10"):
        writer.send(topic, b"x", priority=10)


# ---- spill ---------------------------------------------------------------------------------------------


@both_logs
def test_what_does_not_fit_waits_in_a_file_and_is_sent_in_order(bootstrap, topic, tmp_path):
    clock = SettableClock()
    with hw.Writer(
        bootstrap, full="spill", name="till", folder=tmp_path, limit="100/s burst 100", clock=clock
    ) as writer:
        position = writer.put(topic, numbers(0, 250))
        assert sum(position.of(topic).values()) == 100
        assert writer.counts() == Counts(given=250, sent=100, shed=0, waiting=150, failed=0)
        assert writer.put(topic, numbers(250, 300)) == hw.Position()
        clock.advance(1)
        wait_until(lambda: len(values(bootstrap, topic)) == 200, 20, "a second's worth of the file")
        clock.advance(1)
        wait_until(lambda: not writer.counts().waiting, 20, "an empty file")
        clock.advance(1)
        writer.put(topic, numbers(300, 310))
        assert writer.counts() == Counts(given=310, sent=310, shed=0, waiting=0, failed=0)
    assert_in_order(bootstrap, topic, 310)


def test_a_log_that_does_not_answer_fills_the_file_and_then_blocks(own_broker, tmp_path):
    Client(own_broker.bootstrap).ensure_topics(["orders"], 2)
    settings = {"full": "spill", "name": "till", "folder": tmp_path, "queue": 10, "wait": 0.5}
    with hw.Writer(own_broker.bootstrap, **settings, spill_bytes=10_000) as writer:
        os.kill(own_broker.pid, signal.SIGSTOP)
        with pytest.raises(hw.OverloadedError, match="no room for a record"):
            writer.put("orders", numbers(0, 10_000))
        kept = writer.counts().waiting
        assert 200 < kept < 1000
        os.kill(own_broker.pid, signal.SIGCONT)
        writer.flush(30)
        assert_in_order(own_broker.bootstrap, "orders", 10 + kept)


def test_after_a_failure_records_wait_in_the_file_until_the_log_answers(own_broker, tmp_path):
    Client(own_broker.bootstrap).ensure_topics(["orders"], 2)
    with hw.Writer(own_broker.bootstrap, full="spill", name="till", folder=tmp_path, timeout=2) as writer:
        writer.put("orders", numbers(0, 5))
        os.kill(own_broker.pid, signal.SIGSTOP)
        with pytest.raises(hw.MachineError, match="1 of 1 records for 'orders' were not acknowledged"):
            writer.put("orders", [(b"lost", b"1000")])
        assert writer.put("orders", numbers(5, 50)) == hw.Position()
        assert writer.counts() == Counts(given=51, sent=5, shed=0, waiting=45, failed=1)
        os.kill(own_broker.pid, signal.SIGCONT)
        writer.flush(30)
        assert sum(writer.put("orders", numbers(50, 60)).of("orders").values()) >= 60
        assert writer.counts() == Counts(given=61, sent=60, shed=0, waiting=0, failed=1)
    found = Counter(n for n in values(own_broker.bootstrap, "orders") if n < 1000)
    assert found == Counter(range(60))


PROGRAM = """
import sys
import headwater as hw
bootstrap, topic, folder, limit, first, last = sys.argv[1:]
with hw.Writer(bootstrap, full="spill", name="till", folder=folder, limit=limit or None) as writer:
    writer.put(topic, [(b"k%d" % (n % 7), b"%d" % n) for n in range(int(first), int(last))])
    print("returned", flush=True)
    writer.flush(60)
"""


def start(*arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait(120)
    process.stdout.close()


@both_logs
def test_a_killed_writer_leaves_its_file_to_the_next_one_of_the_name(bootstrap, topic, tmp_path):
    process = start(bootstrap, topic, tmp_path, "1/h burst 100", 0, 1000)
    assert process.stdout.readline() == "returned\n"
    kill(process)
    assert len(values(bootstrap, topic)) == 100

    with hw.Writer(bootstrap, full="spill", name="till", folder=tmp_path) as writer:
        assert writer.counts().given == 900
        writer.put(topic, numbers(1000, 1100))
        writer.flush(30)
        assert writer.counts() == Counts(given=1000, sent=1000, shed=0, waiting=0, failed=0)
    assert_in_order(bootstrap, topic, 1100)


@both_logs
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_while_the_file_is_sent_neither_lose_nor_double_a_record(bootstrap, topic, tmp_path, seed):
    chance = random.Random(seed)
    process = start(bootstrap, topic, tmp_path, "4000/s burst 400", 0, 20_000)
    for _ in range(4):
        assert process.stdout.readline() == "returned\n"
        reached = min(len(values(bootstrap, topic)) + chance.randrange(1, 3000), 20_000)
        wait_until(lambda reached=reached: len(values(bootstrap, topic)) >= reached, 30, f"{reached} records")
        kill(process)
        process = start(bootstrap, topic, tmp_path, "4000/s burst 400", 0, 0)
    assert process.stdout.readline() == "returned\n"
    assert process.wait(120) == 0
    process.stdout.close()
    assert_in_order(bootstrap, topic, 20_000)


# ---- the console -----------------------------------------------------------------------------------------

CONSOLE = """
import sys
from headwater.config import Settings
from headwater.node.node import serve_console
from headwater.view.web import Info
log, folder, port = sys.argv[1:]
settings = Settings(log=f"kafka://{log}", view_tables=f"sqlite:{folder}", console_port=int(port))
serve_console(settings, Info("shop", log, ()), connections_max=5)
"""


def test_a_console_with_too_many_connections_says_so_and_serves_again_when_they_have_gone(
    bootstrap, tmp_path
):
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", CONSOLE, bootstrap, str(tmp_path), str(port)])

    def status() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            return connection.getresponse().status

    try:
        wait_until(lambda: answers(port), 30, "the console's port")
        wait_until(lambda: status() == 200, 20, "an answer")
        with contextlib.ExitStack() as held:
            for _ in range(5):
                held.enter_context(socket.create_connection(("127.0.0.1", port)))
            wait_until(lambda: status() == 503, 20, "a refusal")
        wait_until(lambda: status() == 200, 20, "an answer again")
    finally:
        process.terminate()
        process.wait(120)
