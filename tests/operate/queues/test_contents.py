"""The messages of a queue are seen without being locked, and what is said of each is true."""

import threading
import uuid

import pytest

import headwater as hw
from headwater.client.share.session import AckKind
from headwater.errors import UsageError
from headwater.operate.queues.peek import peek
from headwater.operate.queues.status import statuses
from operate.queues.shares import Queue
from support.servers import both_logs, wait_until
from worker.running import running, wait_empty


def seen(queue, state=None, limit=100):
    return [(one.offset, one.state, one.attempts) for one in peek(queue.bootstrap, queue.name, state, limit)]


def status(queue):
    (found,) = statuses(queue.bootstrap, queue.name)
    return found


def test_what_waits_is_held_and_is_settled_is_told_apart(queue):
    queue.produce(*"abcdef")
    queue.settle(1)
    with queue.member() as member:
        member.hold(2)
        assert seen(queue) == [
            (1, "held", 1),
            (2, "held", 1),
            (3, "waiting", 0),
            (4, "waiting", 0),
            (5, "waiting", 0),
        ]
        assert seen(queue, "held") == [(1, "held", 1), (2, "held", 1)]
        assert seen(queue, "waiting", limit=2) == [(3, "waiting", 0), (4, "waiting", 0)]
        found = status(queue)
        assert (found.members, found.unsettled, found.waiting, found.held) == (1, 5, 3, 2)
        assert found.partitions[0].members == 1
        assert 0 <= found.oldest_s < 3600


def test_peeking_locks_nothing_and_counts_no_delivery(queue):
    queue.produce(*"abc")
    queue.settle(1)
    for _ in range(10):
        assert seen(queue) == [(1, "waiting", 0), (2, "waiting", 0)]
    with queue.member() as member:
        assert member.hold(2) == [1, 2]
        assert {delivery.deliveries for delivery in member.held} == {1}
        member.say(AckKind.ACCEPT)
    assert seen(queue) == []


def test_key_headers_time_and_the_beginning_of_the_value_are_shown(queue):
    queue.produce("first")
    queue.settle(1)
    queue.produce("ü" * 300, key="ada", headers={"trace": "1", "none": None}, timestamp=1_700_000_000_000)

    (message,) = peek(queue.bootstrap, queue.name)
    assert (message.id, message.key, message.headers) == (
        f"{queue.topic}-0-1",
        "ada",
        (("trace", "1"), ("none", None)),
    )
    assert message.value == "ü" * 200 + "…"
    assert message.time.timestamp() == 1_700_000_000


def test_a_delayed_message_says_when_it_is_due(queue):
    queue.produce("a")
    with queue.member() as member:
        member.hold(1)
        member.say(AckKind.RELEASE, delay_ms=3_600_000)
    (message,) = peek(queue.bootstrap, queue.name, "delayed")
    assert message.attempts == 1
    assert 3500 < message.due.timestamp() - message.time.timestamp() < 3700
    assert (status(queue).delayed, status(queue).waiting) == (1, 0)


def test_dead_letters_are_counted_one_by_one_and_are_a_queue_of_their_own(queue):
    app = hw.App("post")

    @app.worker(topic=queue.topic, group=queue.name, order_by="key")
    def handle(message: bytes) -> None:
        raise hw.RejectError("no address")

    queue.produce(*"abc", key="ada")
    with running(queue.bootstrap, app) as loop:
        wait_empty(loop)
    assert status(queue).dead == 3
    letters = peek(queue.bootstrap, f"{queue.name}.dead")
    assert [(letter.key, letter.value) for letter in letters] == [("ada", "a"), ("ada", "b"), ("ada", "c")]
    assert "RejectError: no address" in dict(letters[0].headers)["headwater-letter-reason"]
    (of_letters,) = statuses(queue.bootstrap, f"{queue.name}.dead")
    assert of_letters.waiting == 3
    assert [one.queue for one in statuses(queue.bootstrap) if queue.name in one.queue] == [queue.name]


@both_logs
def test_every_partition_has_its_members_and_what_is_left(bootstrap):
    queue = Queue(bootstrap, 2)
    queue.produce("a", partition=0)
    queue.produce("b", "c", partition=1)
    with queue.member() as member:
        member.settle(3)
        queue.produce("d", partition=1)
        wait_until(lambda: status(queue).unsettled == 1, what="a queue with one message")
        found = status(queue)
    assert found.members == 1
    assert [(part.partition, part.members, part.unsettled, part.end_offset) for part in found.partitions] == [
        (0, 1, 0, 1),
        (1, 1, 1, 3),
    ]


@both_logs
def test_the_rate_is_what_was_settled_between_two_looks(queue):
    queue.produce(*"abcdef")
    queue.settle(1)
    before = status(queue)
    queue.settle(4)
    wait_until(lambda: status(queue).unsettled == 1, what="a queue with one message")
    assert status(queue).since(before, 2.0).settled_per_s == 2.0


@both_logs
def test_a_queue_that_does_not_exist_is_named(queue):
    name = f"nosuch-{uuid.uuid4().hex[:8]}"
    for look in (lambda: statuses(queue.bootstrap, name), lambda: peek(queue.bootstrap, name)):
        with pytest.raises(UsageError, match=f"there is no queue '{name}'"):
            look()


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_apache_kafka_says_nothing_of_single_messages(queue):
    queue.produce("a", "b")
    queue.settle(1)
    wait_until(lambda: status(queue).unsettled == 1, what="a queue with one message")
    assert (status(queue).waiting, status(queue).oldest_s) == (None, None)
    with pytest.raises(UsageError, match="expected the embedded log"):
        peek(queue.bootstrap, queue.name)


def test_looks_while_members_work_lose_nothing(queue):
    """A member settles everything while others look at all of it."""
    queue.produce(*map(str, range(60)))
    over = threading.Event()

    def look():
        while not over.is_set():
            peek(queue.bootstrap, queue.name, limit=100)

    queue.settle(1)
    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert sorted(queue.settle(59)) == list(range(1, 60))
    finally:
        over.set()
        looking.join()
