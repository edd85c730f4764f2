"""Requests to workers and their replies, and messages that a handler wants later."""

import itertools
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.queue_headers import REPLY_TO_HEADER
from headwater.record import Record
from support.servers import both_logs, wait_until
from worker.running import Mail, application, fresh, made, numbers, read, running, wait_empty


class Receipt(hw.Event):
    number: int
    note: str


@pytest.fixture
def topic(bootstrap):
    return made(bootstrap, fresh())


@pytest.fixture
def app(topic):
    return application(topic)


@pytest.fixture
def options(topic):
    return {"group": f"group-{topic}", "retry": hw.backoff("10ms", attempts=2)}


@pytest.fixture
def requester(bootstrap, topic):
    with hw.Requester(bootstrap, replies=f"{topic}-replies") as one:
        yield one


# ---- requests --------------------------------------------------------------------------------------------


@both_logs
def test_a_request_gets_the_reply_of_its_message_in_its_type(bootstrap, topic, app, options, requester):
    mails = app.graph().streams["mails"]

    @app.worker("mails", concurrency=8, **options)
    def send(mail, ctx):
        assert ctx.wants_reply
        ctx.reply(Receipt(number=mail.number, note=f"attempt {ctx.attempt}"))
        if mail.number == 3 and ctx.attempt == 1:
            raise ValueError("what a failed attempt replies is not there")

    receipts = {}

    def ask(number):
        receipts[number] = requester.request(mails, Mail(number=number), Receipt, timeout="2 minutes")

    with running(bootstrap, app) as loop:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_empty(loop)
    assert {number: receipt.number for number, receipt in receipts.items()} == {n: n for n in range(6)}
    assert {receipts[number].note for number in range(6) if number != 3} == {"attempt 1"}
    assert receipts[3].note == "attempt 2"
    assert len(read(bootstrap, f"{topic}-replies")) == 6


def test_a_request_without_a_reply_ends_with_its_time_and_a_late_reply_disturbs_no_other(
    bootstrap, topic, app, options, requester
):
    mails = app.graph().streams["mails"]

    @app.worker("mails", concurrency=1, **options)
    def send(mail, ctx):
        ctx.reply(b"reply to %d" % mail.number)

    with pytest.raises(hw.NoReplyError) as raised:
        requester.request(mails, Mail(number=1), bytes, timeout="300ms")
    assert str(raised.value).startswith("no reply to a request to 'mails' within 300ms; is a worker running")
    with running(bootstrap, app):
        assert requester.request(mails, Mail(number=2), bytes, timeout="2 minutes") == b"reply to 2"


@both_logs
def test_a_request_that_becomes_a_dead_letter_says_so_at_once(bootstrap, topic, app, options, requester):
    mails = app.graph().streams["mails"]

    @app.worker("mails", **options)
    def send(mail, ctx):
        raise hw.RejectError("no such address")

    with running(bootstrap, app), pytest.raises(hw.NoReplyError) as raised:
        requester.request(mails, Mail(number=1), Receipt, timeout="2 minutes")
    assert str(raised.value) == "the request was given up; got RejectError: no such address"


def test_a_reply_of_another_type_is_refused_with_the_field(bootstrap, topic, app, options, requester):
    mails = app.graph().streams["mails"]

    @app.worker("mails", **options)
    def send(mail, ctx):
        ctx.reply(b'{"number": "seven"}')

    with running(bootstrap, app), pytest.raises(hw.NoReplyError, match="field 'number': got \"seven\""):
        requester.request(mails, Mail(number=1), Receipt, timeout="2 minutes")


def test_wrong_replies_are_one_clear_line():
    work = hw.Work()
    assert not work.wants_reply
    with pytest.raises(hw.UsageError, match="is no request: it says not where to reply"):
        work.reply(b"x")
    asked = hw.Work("t", 0, Record(None, b"", ((REPLY_TO_HEADER, b"replies"),), offset=0))
    asked.reply(b"x")
    with pytest.raises(hw.UsageError, match="replies twice"):
        asked.reply(b"y")
    bad = hw.Work("t", 0, Record(None, b"", ((REPLY_TO_HEADER, b"no topic!"),), offset=0))
    assert not bad.wants_reply


def test_a_record_for_a_topic_that_cannot_be_is_refused_when_it_is_written():
    with pytest.raises(hw.UsageError, match="topic of that name; got 'no topic!'"):
        hw.Work().write("no topic!", b"x")


def test_a_topic_of_replies_keeps_them_for_a_day(bootstrap, requester, topic):
    client = Client(bootstrap)
    try:
        assert client.config(f"{topic}-replies")["retention.ms"] == "86400000"
    finally:
        client.close()


# ---- messages for later ----------------------------------------------------------------------------------


def test_a_deferred_message_comes_later_and_that_is_no_attempt(bootstrap, topic, app, options):
    seen = []

    @app.worker("mails", **options)
    def send(mail, ctx):
        seen.append((ctx.attempt, time.monotonic()))
        if len(seen) < 4:  # more often than there are attempts
            return ctx.defer(delay="200ms")
        if len(seen) == 4:
            return ctx.defer(until=datetime.now(UTC) + timedelta(milliseconds=200))
        return None

    numbers(bootstrap, topic, 1)
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.handled == 1)
        wait_empty(loop)
        assert (loop.counts.retried, loop.counts.dead) == (0, 0)
    assert [attempt for attempt, _ in seen] == [1] * 5
    assert all(later - earlier >= 0.2 for (_, earlier), (_, later) in itertools.pairwise(seen))


def test_a_deferred_message_keeps_the_later_ones_of_its_key_waiting_and_no_other(
    bootstrap, topic, app, options
):
    deferred, handled = [], []

    @app.worker("mails", order_by="key", **options)
    def send(mail, ctx):
        if (mail.to, mail.number) == ("ada", 1):
            deferred.append(ctx.id)
            return ctx.defer(delay="1 hour")
        return handled.append((mail.to, mail.number))

    numbers(bootstrap, topic, 1, 2, to="ada")
    with running(bootstrap, app) as loop:
        wait_until(lambda: deferred)
        for number in range(5):
            numbers(bootstrap, topic, number, to="bob")
        wait_until(lambda: len(handled) == 5)
        assert loop.lag_records
    assert handled == [("bob", number) for number in range(5)]
    assert len(deferred) == 1


def test_a_deferred_message_is_handled_before_the_later_ones_of_its_key(bootstrap, topic, app, options):
    handled = []

    @app.worker("mails", order_by="key", **options)
    def send(mail, ctx):
        handled.append(mail.number)
        if len(handled) == 1:
            ctx.defer(delay="100ms")

    numbers(bootstrap, topic, 1, 2, 3, to="ada")
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.handled == 3)
    assert handled == [1, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "a message is deferred by delay= or until=; expected one of them"),
        ({"delay": "-1s"}, "delay=: '-1s' is not a duration"),
        (
            {"delay": "9999 days"},
            "a message is deferred for too long; got 9999 days; expected at most a year",
        ),
        ({"until": datetime(2030, 1, 1)}, "until= has no time zone"),  # noqa: DTZ001
    ],
)
def test_a_deferral_that_cannot_be_is_one_clear_line(options, line):
    with pytest.raises(hw.UsageError) as raised:
        hw.Work().defer(**options)
    assert line in str(raised.value)


def test_a_handler_that_defers_writes_nothing():
    work = hw.Work()
    work.defer(delay="1s")
    with pytest.raises(hw.UsageError, match="has deferred it, and can only return"):
        work.write("t", b"x")
    work = hw.Work()
    work.write("t", b"x")
    with pytest.raises(hw.UsageError, match="has written, and cannot defer it any more"):
        work.defer(delay="1s")
