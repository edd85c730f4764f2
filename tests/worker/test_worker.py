"""A running worker on the embedded log and on Apache Kafka: each message is handled until its handler has returned."""

import asyncio
import logging
import os
import threading
import time
from collections import Counter

import pytest

import headwater as hw
from headwater.record import Record
from headwater.worker.letter import open_letter
from support.servers import both_logs, wait_until
from worker.running import (
    Mail,
    application,
    fresh,
    made,
    numbers,
    produce,
    read,
    running,
    started,
    wait_empty,
)

pytestmark = both_logs
SOON = {"jitter": False, "factor": 1}


@pytest.fixture
def topic(bootstrap):
    return made(bootstrap, fresh(), retention_ms="-1")  # a test writes records of another year


@pytest.fixture
def app(topic):
    return application(topic)


@pytest.fixture
def options(topic):
    """A group of its own."""
    return {"group": f"group-{topic}"}


def test_each_message_is_handled_once_in_its_type_and_is_then_settled(bootstrap, topic, app, options):
    seen = Counter()

    @app.worker("mails", concurrency=4, **options)
    def send(mail: Mail):
        assert isinstance(mail, Mail)
        seen[mail.number] += 1

    numbers(bootstrap, topic, *range(200))
    with running(bootstrap, app) as loop:
        wait_until(lambda: len(seen) == 200)
        wait_empty(loop)
        assert (loop.counts.handled, loop.counts.retried, loop.counts.dead) == (200, 0, 0)
    assert set(seen.values()) == {1}


def test_so_many_handlers_run_at_once(bootstrap, topic, app, options):
    together = threading.Barrier(3, timeout=60)
    done = []

    @app.worker("mails", concurrency=3, **options)
    def send(mail):
        together.wait()
        done.append(mail.number)

    numbers(bootstrap, topic, 1, 2, 3)
    with running(bootstrap, app):
        wait_until(lambda: len(done) == 3)


def test_coroutines_run_at_once_on_one_thread(bootstrap, topic, app, options):
    threads, done = set(), []

    @app.worker("mails", concurrency=50, **options)
    async def send(mail, ctx: hw.Work):
        threads.add(threading.current_thread())
        await asyncio.sleep(0.2)
        done.append(ctx.id)

    numbers(bootstrap, topic, *range(50))
    with running(bootstrap, app) as loop:
        wait_until(lambda: len(done) == 50)
        wait_empty(loop)
    assert len(threads) == 1
    assert len(set(done)) == 50


def test_a_handler_knows_its_message(bootstrap, topic, app, options):
    known = []

    @app.worker("mails", retry=hw.backoff("10ms", attempts=2), **options)
    def send(mail, ctx):
        known.append(
            (ctx.id, ctx.topic, ctx.partition, ctx.offset, ctx.key, ctx.headers, ctx.attempt, ctx.attempts)
        )
        if ctx.attempt == 1:
            raise ValueError("first")

    produce(bootstrap, topic, b'{"number": 1}', key=b"ada", partition=1, headers={"trace": b"t1"})
    with running(bootstrap, app):
        wait_until(lambda: len(known) == 2)
    same = (f"{topic}-1-0", topic, 1, 0, b"ada", (("trace", b"t1"),))
    assert known == [(*same, 1, 2), (*same, 2, 2)]


def test_a_message_that_fails_is_tried_again_after_its_pause_and_never_before(bootstrap, topic, app, options):
    tried = []

    @app.worker("mails", retry=hw.backoff("300ms", factor=2, jitter=False, attempts=3), **options)
    def send(mail):
        tried.append(time.monotonic())
        if len(tried) < 3:
            raise ConnectionError("the mail server is away")

    numbers(bootstrap, topic, 1)
    with running(bootstrap, app) as loop:
        wait_until(lambda: len(tried) == 3)
        wait_empty(loop)
        assert (loop.counts.handled, loop.counts.retried) == (1, 2)
    assert tried[1] - tried[0] >= 0.3
    assert tried[2] - tried[1] >= 0.6


def test_others_are_handled_while_one_waits_for_its_next_attempt(bootstrap, topic, app, options):
    handled, failed = [], threading.Event()

    @app.worker("mails", concurrency=1, retry=hw.backoff("1 hour"), timeout="1 hour", **options)
    def send(mail):
        if mail.number == 0:
            failed.set()
            raise ValueError
        handled.append(mail.number)

    numbers(bootstrap, topic, 0)
    with running(bootstrap, app):
        wait_until(failed.is_set)
        numbers(bootstrap, topic, 1, 2)
        wait_until(lambda: len(handled) == 2)


def test_a_handler_names_its_own_pause(bootstrap, topic, app, options):
    tried = []

    @app.worker("mails", retry=hw.backoff("1 hour"), **options)
    def send(mail):
        tried.append(time.monotonic())
        if len(tried) == 1:
            raise hw.RetryError("200ms", "not yet")

    numbers(bootstrap, topic, 1)
    with running(bootstrap, app) as loop:
        wait_until(lambda: len(tried) == 2)
        wait_empty(loop)
    assert tried[1] - tried[0] >= 0.2


def letters(bootstrap, group):
    return [(each.key(), each.value(), dict(each.headers())) for each in read(bootstrap, f"{group}.dead")]


OWN = ("group", "topic", "partition", "offset", "timestamp", "attempts", "reason", "stack", "at")
"""Names of headers that a user may choose, of which a letter has facts of its own."""


def test_a_poison_message_becomes_a_dead_letter_that_has_all_of_it_and_why(bootstrap, topic, app, options):
    handled = []

    @app.worker("mails", retry=hw.backoff("10ms", attempts=3, **SOON), **options)
    def send(mail):
        if mail.number == 13:
            raise ValueError("thirteen")
        handled.append(mail.number)

    headers = [*((name, b"theirs") for name in OWN), ("twice", b"1"), ("twice", None)]
    headers.append(("headwater-letter-reason", b"of an earlier letter"))
    at_ms = 1_600_000_000_000
    produce(bootstrap, topic, b'{"number": 13}', key=b"k", partition=0, headers=headers, timestamp=at_ms)
    numbers(bootstrap, topic, 1, 2)
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 1)
        wait_empty(loop)
    assert sorted(handled) == [1, 2]
    (record,) = read(bootstrap, f"{options['group']}.dead")
    assert record.timestamp()[1] == at_ms
    message, facts = open_letter(
        Record(record.key(), record.value(), tuple(record.headers()), record.timestamp()[1])
    )
    assert (message.key, message.value) == (b"k", b'{"number": 13}')
    assert message.headers == tuple(headers)
    assert facts.pop("stack").endswith(', in send: raise ValueError("thirteen")')
    assert facts.pop("at").startswith("20")
    assert facts == {
        "group": options["group"],
        "topic": topic,
        "partition": "0",
        "offset": "0",
        "attempts": "3",
        "reason": "ValueError: thirteen",
    }


def test_a_message_that_is_rejected_or_does_not_fit_its_type_is_a_dead_letter_at_once(
    bootstrap, topic, app, options
):
    calls = []

    @app.worker("mails", **options)
    def send(mail):
        calls.append(mail.number)
        raise hw.RejectError("no such address")

    produce(bootstrap, topic, b'{"number": 1}', b'{"number": "one"}', b"garbage", None, partition=0)
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 4)
        wait_empty(loop)
    assert calls == [1]
    reasons = {
        headers["headwater-letter-offset"]: headers["headwater-letter-reason"].decode()
        for *_, headers in letters(bootstrap, options["group"])
    }
    assert reasons[b"0"] == "RejectError: no such address"
    assert reasons[b"1"].startswith("invalid: field 'number': got \"one\"")
    assert reasons[b"2"].startswith("invalid: ")
    assert reasons[b"3"] == "invalid: the value is null; expected one JSON object"


def test_a_topic_that_is_no_stream_has_bytes_or_objects(bootstrap, topic, options):
    app, got = hw.App("raw"), []

    @app.worker(topic=topic, **options)
    def take(message: bytes | None):
        got.append(message)

    @app.worker(topic=topic, group=f"{options['group']}-2")
    def parse(message: dict):
        got.append(message)

    produce(bootstrap, topic, b'{"a": 1}')
    with running(bootstrap, app, "take"), running(bootstrap, app, "parse"):
        wait_until(lambda: len(got) == 2)
    assert sorted(got, key=str) == [b'{"a": 1}', {"a": 1}]


def test_what_a_handler_writes_is_there_when_its_message_is_settled(bootstrap, topic, app, options):
    sent = app.stream("sent", Mail, key="to", time=hw.ARRIVAL, topic=f"{topic}-sent")

    @app.worker("mails", retry=hw.backoff("10ms", attempts=5), **options)
    def send(mail, ctx):
        ctx.write(sent, Mail(number=mail.number, to="ada"), headers={"from": ctx.id})
        if ctx.attempt < 2:
            raise ValueError("what a failed attempt writes is not there")

    numbers(bootstrap, topic, *range(20))
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.handled == 20)
        wait_empty(loop)
    written = read(bootstrap, f"{topic}-sent")
    assert sorted(each.value() for each in written) == sorted(
        b'{"number":%d,"to":"ada"}' % n for n in range(20)
    )
    assert {each.key() for each in written} == {b"ada"}
    assert all(each.headers()[0][0] == "from" for each in written)


def test_a_record_that_cannot_be_written_is_a_failure_of_the_handler(bootstrap, topic, app, options):
    @app.worker("mails", retry=hw.backoff("10ms", attempts=1), **options)
    def send(mail, ctx):
        ctx.write("mails", 7)

    numbers(bootstrap, topic, 1)
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 1)
    ((*_, headers),) = letters(bootstrap, options["group"])
    assert headers["headwater-letter-reason"].startswith(
        b"UsageError: a record cannot be written to 'mails'; got int"
    )


def test_a_record_that_the_log_refuses_makes_a_dead_letter_of_its_message_alone(
    bootstrap, topic, app, options
):
    small = made(bootstrap, f"{topic}-small", max_message_bytes="2000")

    @app.worker("mails", **options)
    def send(mail, ctx):
        # Random, because zeros fit once they are compressed.
        ctx.write(small, os.urandom(100_000) if mail.number == 1 else b"fits")

    numbers(bootstrap, topic, 0, 1, 2, 3)
    with running(bootstrap, app) as loop:
        wait_until(lambda: (loop.counts.handled, loop.counts.dead) == (3, 1))
        wait_empty(loop)
    assert [each.value() for each in read(bootstrap, small)] == [b"fits"] * 3
    ((_, value, headers),) = letters(bootstrap, options["group"])
    assert value == b'{"number": 1, "to": ""}'
    assert b"cannot be stored" in headers["headwater-letter-reason"]


def test_records_of_a_message_that_fit_one_by_one_are_written_though_together_they_would_not(
    bootstrap, topic, app, options
):
    small = made(bootstrap, f"{topic}-small", max_message_bytes="2000")

    @app.worker("mails", **options)
    def send(mail, ctx):
        for _ in range(3):
            ctx.write(small, os.urandom(1_500), key="k")

    numbers(bootstrap, topic, 0, 1)
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.handled == 2)
        wait_empty(loop)
    assert [len(each.value()) for each in read(bootstrap, small)] == [1_500] * 6


def test_what_a_handler_returns_is_ignored_with_one_warning(bootstrap, topic, app, options, caplog):
    @app.worker("mails", **options)
    def send(mail):
        return "garbage"

    numbers(bootstrap, topic, 1, 2, 3)
    with caplog.at_level(logging.WARNING, "headwater.worker"), running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.handled == 3)
    assert [each.message for each in caplog.records if "returns" in each.message] == [
        "worker send: its handler returns a str, which is ignored; ctx.write(...) writes"
    ]


def test_a_handler_that_wants_to_end_the_process_only_fails(bootstrap, topic, app, options):
    @app.worker("mails", retry=hw.backoff("10ms", attempts=1), **options)
    def send(mail):
        raise SystemExit(7)

    numbers(bootstrap, topic, 1)
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 1)


def test_a_stop_lets_running_handlers_end_and_gives_back_what_was_not_begun(bootstrap, topic, app, options):
    begun, may_end, handled = threading.Event(), threading.Event(), []

    @app.worker("mails", concurrency=1, **options)
    def send(mail, ctx):
        begun.set()
        assert may_end.wait(60)
        handled.append((mail.number, ctx.attempt))

    numbers(bootstrap, topic, 0)
    loop, thread, errors = started(bootstrap, app)
    wait_until(begun.is_set)
    numbers(bootstrap, topic, 1, 2)
    loop.stop()
    may_end.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not errors
    assert handled == [(0, 1)]
    with running(bootstrap, app) as second:
        wait_until(lambda: len(handled) == 3)
        wait_empty(second)
    assert sorted(number for number, _ in handled) == [0, 1, 2]


def test_two_processes_divide_the_messages(bootstrap, topic, app, options):
    seen = Counter()

    @app.worker("mails", concurrency=2, **options)
    def send(mail):
        seen[mail.number] += 1

    numbers(bootstrap, topic, *range(300))
    with running(bootstrap, app) as first, running(bootstrap, app) as second:
        wait_until(lambda: len(seen) == 300)
        wait_until(lambda: first.counts.handled + second.counts.handled == 300)
    assert set(seen.values()) == {1}


def test_a_compacted_topic_is_refused(bootstrap, options):
    compacted = made(bootstrap, fresh(), cleanup_policy="compact")
    app = hw.App("raw")

    @app.worker(topic=compacted, **options)
    def take(message: bytes): ...

    _, thread, errors = started(bootstrap, app)
    thread.join(60)
    assert "is compacted; a queue needs every record" in str(errors[0])
