"""Dead letters go back to their topic: whole, in order, each once."""

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

import headwater as hw
from headwater.client.client import Client, producer
from headwater.client.topic_defaults import FULL
from headwater.errors import MachineError, UsageError
from headwater.operate.queues.edit import parse_edit
from headwater.operate.queues.redrive import Wanted, dead_letters, redrive
from headwater.operate.queues.status import statuses
from headwater.worker.letter import FACTS, PREFIX
from headwater.write.rate_limit import Limit
from operate.queues.shares import Queue
from support.servers import both_logs, create_topic, wait_settled, wait_until
from worker.running import read, running, wait_empty


def buried(queue, *values, **options):
    """A worker makes dead letters of messages."""
    app = hw.App("post")

    @app.worker(topic=queue.topic, group=queue.name, name="bury")
    def bury(message: bytes) -> None:
        raise hw.RejectError("no address")

    queue.produce(*values, **options)
    with running(queue.bootstrap, app) as loop:
        wait_empty(loop)
    return queue


def posted(queue, *letters):
    """Writes letters as workers do, much faster: value, key, and further headers."""
    create_topic(AdminClient({"bootstrap.servers": queue.bootstrap}), f"{queue.name}.dead", 1, **FULL)
    sender = producer(queue.bootstrap)
    for value, key, *headers in letters:
        facts = dict.fromkeys(FACTS, "1") | {
            "group": queue.name,
            "topic": queue.topic,
            "partition": "0",
            "reason": "no",
        }
        own = [(f"{PREFIX}{name}", facts[name]) for name in FACTS]
        sender.produce(f"{queue.name}.dead", value, key, headers=[*headers, *own])
    assert sender.flush(60) == 0


def dead(queue):
    (found,) = statuses(queue.bootstrap, f"{queue.name}.dead")
    return found.unsettled if found.waiting is None else found.waiting


def moved(queue, **wanted):
    return [one.letter.rpartition("-")[2] for one in redrive(queue.bootstrap, queue.name, Wanted(**wanted))]


def values(queue):
    return [record.value().decode() for record in read(queue.bootstrap, queue.topic)]


def test_a_message_comes_back_as_it_was_written(bootstrap):
    queue = Queue(bootstrap, 3)
    buried(
        queue,
        '{"to": "x"}',
        key="ada",
        partition=2,
        headers={"trace": "1", "none": None},
        timestamp=1_700_000_000_000,
    )
    buried(queue, "keyless", partition=1)

    assert len(moved(queue)) == 2

    first, again = (record for record in read(bootstrap, queue.topic) if record.key())
    assert (again.partition(), again.key(), again.value()) == (2, b"ada", b'{"to": "x"}')
    assert (again.headers(), again.timestamp()) == (first.headers(), first.timestamp())
    assert [record.partition() for record in read(bootstrap, queue.topic) if not record.key()] == [1, 1]
    wait_until(lambda: dead(queue) == 0, what="the end of the transaction")
    with queue.member() as member:
        member.hold(2)
        assert {delivery.deliveries for delivery in member.held} == {1}


@both_logs
def test_letters_keep_their_order_and_only_their_key_comes(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, *((str(number), "ada" if number % 2 else "bob") for number in range(1200)))

    moved(queue, key="ada")

    assert values(queue) == [str(number) for number in range(1200) if number % 2]
    wait_until(lambda: dead(queue) == 600, what="600 letters that are left")
    moved(queue)
    assert values(queue)[600:] == [str(number) for number in range(1200) if not number % 2]


def test_no_more_letters_are_moved_than_is_said(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, *((str(number), "ada" if number % 2 else "bob") for number in range(10)))

    assert moved(queue, key="ada", limit=3) == ["1", "3", "5"]
    assert moved(queue, limit=2) == ["0", "2"]
    assert moved(queue) == ["4", "6", "7", "8", "9"]
    assert moved(queue) == []


def test_a_dry_run_says_what_would_be_moved_and_moves_nothing(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, ("a", "ada"), ("b", "bob"), ("c", "ada"))

    found = dead_letters(bootstrap, queue.name, Wanted(key="ada", limit=5))

    assert [(one.letter, one.topic, one.key, one.reason) for one in found] == [
        (f"{queue.name}.dead-0-0", queue.topic, "ada", "no"),
        (f"{queue.name}.dead-0-2", queue.topic, "ada", "no"),
    ]
    assert values(queue) == []
    assert dead(queue) == 3


def test_messages_are_edited_on_their_way(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, ('{"to": "x", "n": 1}', "ada"))
    moved(queue, edit=parse_edit('{"to": "ada@example.org"}'))
    assert values(queue) == ['{"to":"ada@example.org","n":1}']


def test_a_letter_that_the_edit_leaves_stays(bootstrap, tmp_path):
    queue = Queue(bootstrap)
    posted(queue, ("a", None), ("b", None))
    (tmp_path / "repair.py").write_text(
        "def only_b(record):\n    return record if record.value == b'b' else None\n"
    )
    assert moved(queue, edit=parse_edit(f"{tmp_path}/repair.py:only_b")) == ["1"]
    assert dead(queue) == 1


def test_a_letter_that_cannot_be_edited_is_named_and_stays(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, ("text", None))
    with pytest.raises(UsageError, match=f"letter {queue.name}.dead-0-0: its value is not JSON"):
        moved(queue, edit=parse_edit('{"a": 1}'))
    assert dead(queue) == 1
    assert values(queue) == []


def test_a_letter_of_a_topic_that_is_gone_is_named_and_stays(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, ("a", None))
    topic = queue.topic
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    with pytest.raises(UsageError, match=f"cannot go back: there is no topic '{topic}'"):
        moved(queue)
    assert dead(queue) == 1


def test_a_record_that_is_no_letter_is_left(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, ("a", None))
    sender = producer(bootstrap)
    sender.produce(f"{queue.name}.dead", "not a letter")
    assert sender.flush(60) == 0
    assert moved(queue) == ["0"]
    assert dead(queue) == 1


def test_headers_that_would_settle_a_message_do_not_stop_it(bootstrap):
    queue = Queue(bootstrap)
    later = str(time.time_ns() // 10**6 + 3_600_000)
    over = ("headwater-expires", "1000"), ("headwater-id", "order-1")
    posted(queue, ("over", None, *over), ("later", None, ("headwater-expires", later)))

    moved(queue)

    first, second = read(bootstrap, queue.topic)
    assert first.headers() == [
        ("headwater-id", b"order-1"),
        ("headwater-id", f"order-1#{queue.name}.dead-0-0".encode()),
    ]
    assert second.headers() == [("headwater-expires", later.encode())]


def parking(queue, handled, bad):
    """A worker that keeps the order of keys and parks them; it fails for good on what is bad."""
    app = hw.App("bank")

    @app.worker(
        topic=queue.topic, group=queue.name, order_by="key", park=True, retry=hw.backoff("10ms", attempts=1)
    )
    def book(message: bytes) -> None:
        if message.decode() in bad:
            raise ValueError("no such currency")
        handled.append(message.decode())

    return app


def test_a_parked_key_goes_back_whole_and_is_free_then(bootstrap):
    queue, handled, bad = Queue(bootstrap), [], {"a1"}
    app = parking(queue, handled, bad)
    with running(bootstrap, app) as loop:
        queue.produce("a0", "a1", "a2", key="a")
        queue.produce("b0", "b1", key="b")
        queue.produce("a3", key="a")
        wait_empty(loop)
        assert sorted(handled) == ["a0", "b0", "b1"]
        bad.clear()
        handled.clear()

        assert moved(queue, limit=2) == []
        assert dead_letters(bootstrap, queue.name, Wanted(limit=2)) == []
        assert len(dead_letters(bootstrap, queue.name, Wanted())) == 3
        assert len(moved(queue)) == 3

        wait_until(lambda: len(handled) == 3, what="the messages of the key")
        queue.produce("a4", key="a")
        wait_until(lambda: len(handled) == 4, what="a message of a free key")
    assert handled == ["a1", "a2", "a3", "a4"]
    assert dead(queue) == 0


def test_a_message_that_fails_again_parks_its_key_again_in_order(bootstrap):
    queue, handled = Queue(bootstrap), []
    with running(bootstrap, parking(queue, handled, {"a0"})) as loop:
        queue.produce("a0", "a1", "a2", key="a")
        wait_empty(loop)
        assert len(moved(queue)) == 3
        wait_until(lambda: dead(queue) == 3, what="letters again")
    letters = [record.value().decode() for record in read(bootstrap, f"{queue.name}.dead")]
    assert letters == ["a0", "a1", "a2"] * 2
    assert handled == []


def test_a_rate_is_kept(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, *((str(number), None) for number in range(12)))
    begun = time.monotonic()
    moved(queue, rate=Limit.parse("10/s burst 2"))
    assert time.monotonic() - begun >= 1.0
    assert len(values(queue)) == 12


@both_logs
def test_a_queue_without_letters_or_that_does_not_exist(bootstrap):
    queue = Queue(bootstrap)
    queue.produce("a")
    queue.settle(1)
    with pytest.raises(UsageError, match="there is no queue 'nosuch'"):
        list(redrive(bootstrap, "nosuch", Wanted()))
    assert moved(queue) == []


def test_each_letter_is_moved_once_though_the_command_is_killed_again_and_again(bootstrap):
    queue = Queue(bootstrap)
    posted(queue, *((str(number), None) for number in range(400)))
    command = [
        sys.executable,
        "-m",
        "headwater",
        "queue",
        "redrive",
        queue.name,
        "--log",
        bootstrap,
        "--json",
        "--rate",
    ]
    for seen in (1, 30, 75):
        process = subprocess.Popen([*command, "500/s burst 20"], stdout=subprocess.PIPE)
        for _ in range(seen):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    moved(queue)
    assert Counter(values(queue)) == Counter(str(number) for number in range(400))
    assert values(queue) == [str(number) for number in range(400)]
    assert dead(queue) == 0


def test_each_letter_is_moved_once_though_the_broker_is_killed(own_broker):
    queue = Queue(own_broker.bootstrap)
    posted(queue, *((str(number), None) for number in range(300)))
    pulled = redrive(own_broker.bootstrap, queue.name, Wanted(rate=Limit.parse("1000/s burst 50")))
    for _ in range(75):
        next(pulled)
    own_broker.end(signal.SIGKILL)
    own_broker.start()
    with contextlib.suppress(MachineError):  # what it says depends on what it was doing
        list(pulled)
    moved(queue)
    wait_settled(Client(queue.bootstrap), queue.topic)
    assert values(queue) == [str(number) for number in range(300)]
    assert dead(queue) == 0
