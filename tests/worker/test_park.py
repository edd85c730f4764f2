"""Parked keys: after a dead letter the later messages of its key become letters too, in order, until the key is redriven."""

import time
from collections import defaultdict
from datetime import UTC, datetime

import msgspec
import pytest
from confluent_kafka import Producer

import headwater as hw
from headwater.record import Record
from headwater.worker.letter import open_letter
from headwater.worker.parked import ParkedKey
from support.servers import wait_until
from worker.running import application, fresh, made, numbers, produce, read, running, started, wait_empty


@pytest.fixture
def topic(bootstrap):
    return made(bootstrap, fresh())


@pytest.fixture
def app(topic):
    return application(topic)


@pytest.fixture
def options(topic):
    return {
        "group": f"group-{topic}",
        "order_by": "key",
        "park": True,
        "retry": hw.backoff("10ms", attempts=2),
    }


def letters(bootstrap, group):
    opened = [
        open_letter(Record(each.key(), each.value(), tuple(each.headers())))
        for each in read(bootstrap, f"{group}.dead")
    ]
    return [(msgspec.json.decode(each.message.value)["number"], each.facts["reason"]) for each in opened]


def test_the_later_messages_of_a_key_follow_a_dead_letter_in_order_and_other_keys_do_not(
    bootstrap, topic, app, options
):
    seen = defaultdict(list)

    @app.worker("mails", concurrency=8, **options)
    def send(mail):
        seen[mail.to].append(mail.number)
        if (mail.to, mail.number) == ("ada", 1):
            raise ValueError("bad")

    for number in range(4):
        for to in ("ada", "bob"):
            numbers(bootstrap, topic, number, to=to)
    numbers(bootstrap, topic, 9)  # without a key
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 3)
        wait_empty(loop)
        assert loop.counts.handled == 6
    assert seen == {"ada": [0, 1, 1], "bob": [0, 1, 2, 3], "": [9]}
    (first, *later) = letters(bootstrap, options["group"])
    assert first == (1, "ValueError: bad")
    assert [number for number, _ in later] == [2, 3]
    assert {reason.partition(":")[0] for _, reason in later} == {"parked"}
    (parked,) = read(bootstrap, f"{options['group']}.parked")
    why = msgspec.json.decode(parked.value(), type=ParkedKey)
    assert parked.key() == b"ada"
    assert later[0][1] == f"parked: message {why.message} of its key is a dead letter"


def test_a_key_that_was_parked_by_another_process_is_parked_also_after_a_restart(
    bootstrap, topic, app, options
):
    seen = []

    @app.worker("mails", **options)
    def send(mail):
        seen.append(mail.number)
        raise hw.RejectError("never")

    numbers(bootstrap, topic, 1, to="ada")
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 1)
    numbers(bootstrap, topic, 2, 3, to="ada")
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 2)
    assert seen == [1]
    assert [number for number, _ in letters(bootstrap, options["group"])] == [1, 2, 3]


def test_two_processes_agree_on_what_is_parked(bootstrap, topic, app, options):
    """Each message of a key may be delivered to another one than the message before."""
    seen = defaultdict(list)

    @app.worker("mails", concurrency=2, **options)
    def send(mail):
        seen[mail.to].append(mail.number)
        time.sleep(0.002)
        if mail.number == 3:
            raise hw.RejectError("never")

    keys = [f"k{number}" for number in range(12)]
    sender = Producer({"bootstrap.servers": bootstrap})
    for number in range(8):
        for key in keys:
            sender.produce(topic, b'{"number": %d, "to": "%s"}' % (number, key.encode()), key)
    assert sender.flush(60) == 0
    with running(bootstrap, app) as first, running(bootstrap, app) as second:
        wait_until(lambda: first.counts.dead + second.counts.dead == 5 * len(keys))
        wait_empty(first)
    assert seen == {key: [0, 1, 2, 3] for key in keys}
    by_key = defaultdict(list)
    for each in read(bootstrap, f"{options['group']}.dead"):
        by_key[each.key().decode()].append(msgspec.json.decode(each.value())["number"])
    assert by_key == {key: [3, 4, 5, 6, 7] for key in keys}


def test_a_key_that_was_deleted_from_the_parked_ones_continues(bootstrap, topic, app, options):
    """As the redrive of its letters does."""
    seen = []

    @app.worker("mails", **options)
    def send(mail):
        seen.append(mail.number)
        if mail.number == 1:
            raise hw.RejectError("never")

    numbers(bootstrap, topic, 1, 2, to="ada")
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 2)
        produce(bootstrap, f"{options['group']}.parked", None, key=b"ada")
        numbers(bootstrap, topic, 3, to="ada")
        wait_until(lambda: loop.counts.handled == 1)
    assert seen == [1, 3]


def test_without_park_a_key_continues_after_a_dead_letter_and_no_topic_is_made(
    bootstrap, topic, app, options
):
    seen = []

    @app.worker("mails", **options | {"park": False})
    def send(mail):
        seen.append(mail.number)
        if mail.number == 1:
            raise hw.RejectError("never")

    numbers(bootstrap, topic, 1, 2, to="ada")
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.handled == 1)
        wait_empty(loop)
    assert seen == [1, 2]
    assert not read(bootstrap, f"{options['group']}.parked")


def test_a_parked_key_of_a_newer_version_is_refused(bootstrap, topic, app, options):
    @app.worker("mails", **options)
    def send(mail):
        raise AssertionError

    newer = ParkedKey("t", 0, 1, datetime.now(UTC), format=2)
    made(bootstrap, f"{options['group']}.parked", 1, cleanup_policy="compact")
    produce(bootstrap, f"{options['group']}.parked", msgspec.json.encode(newer), key=b"bob")
    numbers(bootstrap, topic, 1, to="ada")

    _, thread, errors = started(bootstrap, app)
    thread.join(60)

    assert "was written by a newer Headwater; got format 2; expected at most 1" in str(errors[0])
    (kept,) = read(bootstrap, f"{options['group']}.parked")
    assert kept.value() == msgspec.json.encode(newer)
