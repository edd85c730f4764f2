"""A queue delivers again from an earlier place on, or the chosen messages alone."""

import time

import pytest

from headwater.client.share.session import AckKind
from headwater.errors import UsageError
from headwater.operate.log.replay import parse_point
from headwater.operate.queues.peek import peek
from headwater.operate.queues.predicate import chooser
from headwater.operate.queues.reset import reset
from operate.queues.shares import Queue
from support.servers import both_logs, wait_until

BASE_MS = (time.time_ns() // 10**9 - 3600) * 1000


def done(bootstrap, count=6, **settings):
    """A queue that has settled so many messages, of two keys and one second apart, and has one more."""
    queue = Queue(bootstrap, **settings)
    for number in range(count + 1):
        value = f'{{"number": {number}, "country": "{"DE" if number % 3 else "FR"}"}}'
        queue.produce(value, key="ada" if number % 2 else "bob", timestamp=BASE_MS + number * 1000)
    queue.settle(count)
    return queue


def offsets(queue):
    return [one.offset for one in peek(queue.bootstrap, queue.name, limit=1000)]


@both_logs
@pytest.mark.parametrize(
    ("to", "again"),
    [
        ("earliest", [0, 1, 2, 3, 4, 5, 6]),
        ("4", [4, 5, 6]),
        ("TIME", [3, 4, 5, 6]),
    ],
)
def test_all_messages_from_a_place_on_come_again(bootstrap, to, again):
    queue = done(bootstrap)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(BASE_MS / 1000 + 3)) if to == "TIME" else to

    def moved():
        try:
            return reset(bootstrap, queue.name, parse_point(at))
        except UsageError:  # Apache Kafka removes a member a moment after it has left
            return None

    found = []
    wait_until(lambda: found.extend(moved() or ()) or found, what="a queue without members")
    assert [(one.partition, one.target) for one in found] == [(0, again[0])]
    assert queue.settle(len(again)) == again


@both_logs
def test_latest_leaves_out_what_waits(bootstrap):
    queue = done(bootstrap)
    wait_until(lambda: _moves(queue, "latest"), what="a queue without members")
    queue.produce("new")
    assert queue.settle(1) == [7]


def _moves(queue, to):
    try:
        return reset(queue.bootstrap, queue.name, to)
    except UsageError:
        return None


def test_only_messages_of_a_key_come_again_and_what_waits_comes_in_any_case(bootstrap):
    queue = done(bootstrap)

    (found,) = reset(bootstrap, queue.name, "earliest", choice=chooser("ada", None))

    assert (found.start, found.target, found.again) == (6, 0, 3)
    assert offsets(queue) == [1, 3, 5, 6]
    assert queue.settle(4) == [1, 3, 5, 6]
    assert offsets(queue) == []


def test_only_messages_that_a_predicate_fits_come_again(bootstrap):
    queue = done(bootstrap)
    reset(bootstrap, queue.name, 1, choice=chooser(None, "country = FR"))
    assert queue.settle(2) == [3, 6]


def test_what_was_not_settled_between_is_delivered_in_any_case(bootstrap):
    queue = Queue(bootstrap)
    queue.produce(*map(str, range(6)))
    with queue.member() as member:
        member.hold(2)
        member.say(AckKind.RELEASE, delay_ms=3_600_000)
        member.settle(2)

    reset(bootstrap, queue.name, "earliest", choice=lambda record: record.offset == 3)

    assert queue.settle(5) == [0, 1, 3, 4, 5]


def test_a_dry_run_changes_nothing(bootstrap):
    queue = done(bootstrap)
    (found,) = reset(bootstrap, queue.name, "earliest", choice=chooser("ada", None), dry_run=True)
    assert found.again == 3
    assert offsets(queue) == [6]


@both_logs
def test_a_queue_with_members_is_not_moved(bootstrap):
    queue = done(bootstrap)
    with queue.member() as member:
        member.hold(1)
        with pytest.raises(UsageError, match="moves only without any; stop its workers first"):
            reset(bootstrap, queue.name, "earliest")


def test_a_choice_that_is_too_scattered_changes_nothing(bootstrap):
    queue = Queue(bootstrap)
    queue.produce(*map(str, range(2300)))
    queue.settle(1500)
    queue.settle(800)
    with pytest.raises(
        UsageError, match=r"too scattered; got 1,1\d\d ranges between them; expected at most 1,000"
    ):
        reset(bootstrap, queue.name, "earliest", choice=lambda record: record.offset % 2 == 0)
    assert offsets(queue) == []


def test_one_of_several_topics_is_moved_alone(bootstrap):
    queue = done(bootstrap)
    with pytest.raises(UsageError, match=f"reads no topic 'nosuch'; its topics are: {queue.topic}"):
        reset(bootstrap, queue.name, "earliest", topic="nosuch")
    assert len(reset(bootstrap, queue.name, "earliest", topic=queue.topic)) == 1


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_apache_kafka_does_not_choose_messages(bootstrap):
    queue = done(bootstrap)

    def refused():
        try:
            reset(bootstrap, queue.name, "earliest", choice=chooser("ada", None))
        except UsageError as error:
            return "members" not in str(error) and str(error)
        return None

    wait_until(refused, what="a refusal that is not about members")
    assert "expected the embedded log" in refused()
