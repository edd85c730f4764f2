"""Queues over HTTP, which changes nothing of them."""

import pytest

from operate.queues.shares import Queue


@pytest.fixture
def queue(bootstrap):
    """One that has settled its first message; two more wait."""
    found = Queue(bootstrap)
    found.produce("first", "second", "third", key="ada")
    found.settle(1)
    return found


def test_queues_are_listed_with_what_waits(console, queue):
    status, found = console.get("/queues")

    assert status == 200
    (one,) = (each for each in found if each["queue"] == queue.name)
    assert (one["waiting"], one["held"], one["dead"]) == (2, 0, 0)


def test_one_queue_has_its_partitions(console, queue):
    status, found = console.get(f"/queues/{queue.name}")

    assert status == 200
    assert [(part["topic"], part["waiting"]) for part in found["partitions"]] == [(queue.topic, 2)]


def test_messages_are_shown_without_locking_them(console, queue):
    for _ in range(2):
        status, found = console.get(f"/queues/{queue.name}/messages?state=waiting&limit=1")
        assert status == 200
        assert [(one["id"], one["key"], one["value"]) for one in found] == [
            (f"{queue.topic}-0-1", "ada", "second")
        ]
    assert queue.settle(2) == [1, 2]


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/queues/NAMEx", 404, "unknown queue 'NAMEx'; did you mean 'NAME'?"),
        ("/queues/nosuch/messages", 404, "unknown queue 'nosuch'"),
        ("/queues/NAME/messages?limit=0", 400, "limit is wrong; got '0'; expected 1 to 1000"),
        ("/queues/NAME/messages?limit=x", 400, "limit is wrong; got 'x'"),
        ("/queues/NAME/messages?state=lost", 400, "there is no such state; got 'lost'"),
    ],
)
def test_a_wrong_question_is_answered_with_one_line(console, queue, path, status, message):
    answered, found = console.get(path.replace("NAME", queue.name))

    assert answered == status
    assert message.replace("NAME", queue.name) in found["error"]
