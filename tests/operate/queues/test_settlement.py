"""Messages that are cancelled or purged are not delivered; what a member holds is left to it."""

import pytest

from headwater.client.share.session import AckKind
from headwater.errors import UsageError
from headwater.operate.queues.peek import peek
from headwater.operate.queues.settlement import Cancelled, cancel, purge
from operate.queues.shares import Queue


def left(queue):
    return [one.offset for one in peek(queue.bootstrap, queue.name, limit=1000)]


def begun(bootstrap, *values, partitions=1, **settings):
    """A queue whose first message is settled."""
    queue = Queue(bootstrap, partitions, **settings)
    queue.produce("first", *values, partition=0)
    queue.settle(1)
    return queue


def test_a_cancelled_message_is_not_delivered(bootstrap):
    queue = begun(bootstrap, *"abcd")

    outcome = cancel(bootstrap, queue.name, [f"{queue.topic}-0-2", f"{queue.topic}-0-4"])

    assert outcome == [Cancelled(f"{queue.topic}-0-2", True), Cancelled(f"{queue.topic}-0-4", True)]
    assert queue.settle(2) == [1, 3]
    assert left(queue) == []


def test_a_message_is_cancelled_by_its_header(bootstrap):
    queue = begun(bootstrap, "a")
    queue.produce("b", headers={"headwater-id": "order-4711"})
    queue.produce("c", headers={"headwater-id": "order-4712"})

    outcome = cancel(bootstrap, queue.name, ["order-4711"])

    assert outcome == [Cancelled(f"{queue.topic}-0-2", True)]
    assert left(queue) == [1, 3]


def test_delayed_messages_are_cancelled(bootstrap):
    queue = begun(bootstrap, "a")
    with queue.member() as member:
        member.hold(1)
        member.say(AckKind.RELEASE, delay_ms=3_600_000)

    assert cancel(bootstrap, queue.name, [f"{queue.topic}-0-1"])[0].is_cancelled
    assert left(queue) == []


def test_a_message_that_is_held_is_left_to_its_member(bootstrap):
    queue = begun(bootstrap, *"ab")
    with queue.member() as member:
        member.hold(1)
        outcome = cancel(bootstrap, queue.name, [f"{queue.topic}-0-1", f"{queue.topic}-0-2"])
        assert [one.is_cancelled for one in outcome] == [False, True]
        member.say(AckKind.RELEASE)
    assert queue.settle(1) == [1]


@pytest.mark.parametrize("id_", ["TOPIC-0-0", "TOPIC-0-99", "TOPIC-7-0", "nosuch-0-1", "nosuch"])
def test_an_id_that_is_not_there_cancels_nothing(bootstrap, id_):
    queue = begun(bootstrap, *"ab")
    wrong = id_.replace("TOPIC", queue.topic)

    with pytest.raises(
        UsageError, match=f"queue '{queue.name}' has no message '{wrong}' that is not settled"
    ):
        cancel(bootstrap, queue.name, [f"{queue.topic}-0-1", wrong])
    assert left(queue) == [1, 2]


def test_a_purge_settles_what_waits_and_what_is_delayed_and_leaves_what_is_held(bootstrap):
    queue = begun(bootstrap, *"abcd", partitions=2)
    queue.produce("e", partition=1)
    with queue.member() as member:
        member.hold(1)
        member.say(AckKind.RELEASE, delay_ms=3_600_000)
        member.hold(1)
        outcome = purge(bootstrap, queue.name)
        assert sum(one.settled for one in outcome) == 4
        assert sum(one.held for one in outcome) == 1
        assert len(left(queue)) == 1
        member.say(AckKind.RELEASE)
    queue.produce("new")
    assert len(queue.settle(2)) == 2
    assert left(queue) == []


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_apache_kafka_settles_nothing_by_itself(bootstrap):
    queue = begun(bootstrap, "a")
    for act in (
        lambda: cancel(bootstrap, queue.name, [f"{queue.topic}-0-1"]),
        lambda: purge(bootstrap, queue.name),
    ):
        with pytest.raises(UsageError, match="expected the embedded log"):
            act()
