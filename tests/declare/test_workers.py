"""Declarations of workers: what is checked before anything starts, and how they are drawn."""

from datetime import datetime

import pytest

import headwater as hw
from headwater.declare.drawing import drawing
from headwater.declare.worker_checks import handler_of, message_type, worker_topic


class Mail(hw.Event):
    address: str
    at: datetime


class Customer(hw.Row):
    id: int


@pytest.fixture
def app():
    app = hw.App("post")
    app.stream("mails", Mail, key="address", time="at", topic="raw.mails")
    app.table("customers", Customer, key="id")
    app.sql("sent", "SELECT address, count(*) AS n FROM mails GROUP BY address", key="address")
    app.sql("letters", "SELECT address, at FROM mails", key="address", append=True)
    return app


def declared(app, function, source="mails", **options):
    app.worker(source, **options)(function)
    return next(iter(app.graph().workers.values()))


def test_the_group_is_named_after_the_application_and_the_function(app):
    def send(mail): ...

    worker = declared(app, send)

    assert (worker.group, worker.concurrency, worker.retry.attempts) == ("post.send", 8, 5)
    assert worker_topic(worker, app.graph().sources) == "raw.mails"


def test_a_worker_can_be_called_like_its_function(app):
    @app.worker("mails")
    def send(mail, ctx):
        return mail, ctx

    assert send(1, 2) == (1, 2)


def test_messages_have_the_type_of_the_stream_or_of_the_annotation(app):
    def plain(mail): ...
    def typed(mail: Mail): ...
    def raw(mail: bytes | None, ctx: hw.Work): ...
    def parsed(mail: dict[str, object]): ...

    kinds = [
        message_type(declared(hw_app(app), each), app.graph().sources) for each in (plain, typed, raw, parsed)
    ]
    assert kinds == [Mail, Mail, bytes, dict]

    def row(letter): ...

    worker = declared(hw_app(app), row, "letters")
    assert message_type(worker, app.graph().sources) is dict


def hw_app(app):
    """The same declarations without workers."""
    app._workers.clear()
    return app


def test_a_handler_may_take_its_work_and_may_be_async(app):
    async def send(mail: Mail, ctx: hw.Work): ...

    handler = handler_of(declared(app, send))

    assert (handler.takes_work, handler.is_async) == (True, True)


def no_parameters(): ...
def too_many(mail, ctx, more): ...
def required_option(mail, *, more): ...
def wrong_type(mail: int): ...
def other_event(mail: Customer): ...
def unknown_type(mail: "Nothing"): ...  # noqa: F821
def good(mail): ...


@pytest.mark.parametrize(
    ("function", "source", "options", "said"),
    [
        (good, "mial", {}, "there is no stream, table or view 'mial'; did you mean 'mails'"),
        (good, "nothing.alike", {}, "for a topic write topic='nothing.alike'"),
        (good, "", {}, "has no source"),
        (good, "mails", {"topic": "raw.mails"}, "has both a source and topic="),
        (good, "customers", {}, "table 'customers' replaces and removes rows.*a queue needs every record"),
        (good, "sent", {}, "view 'sent' replaces and removes rows"),
        (good, "", {"topic": "other"}, "the type of the messages of topic 'other' is not known"),
        (good, "", {"topic": "sent.progress"}, "is reserved"),
        (no_parameters, "mails", {}, "takes other parameters than a message"),
        (too_many, "mails", {}, "takes other parameters than a message"),
        (required_option, "mails", {}, "takes other parameters than a message"),
        (wrong_type, "mails", {}, "of a type that no record has"),
        (other_event, "mails", {}, "takes another type than stream 'mails' has; got Customer; expected Mail"),
        (unknown_type, "mails", {}, "the types of its handler are not known"),
        (good, "mails", {"concurrency": 0}, "concurrency= is wrong; got 0; expected 1 to 1000"),
        (good, "mails", {"order_by": "value"}, "order_by= is wrong"),
        (good, "mails", {"park": True}, "park=True keeps the order of keys, which this worker does not"),
        (
            good,
            "mails",
            {"park": "key", "order_by": "key"},
            "park= is wrong; got 'key'; expected True or False",
        ),
        (good, "mails", {"timeout": "1m"}, "timeout= is not a duration"),
        (good, "mails", {"timeout": "0 seconds"}, "timeout= is wrong"),
        (good, "mails", {"retry": 3}, "retry= is wrong; got 3; expected hw.backoff"),
        (good, "mails", {"group": "a b"}, "group= is wrong"),
        (good, "mails", {"group": "headwater.sink.x"}, "is reserved"),
    ],
)
def test_a_wrong_worker_is_refused_before_anything_starts(app, function, source, options, said):
    with pytest.raises(hw.UsageError, match=said):
        declared(app, function, source, **options)


def test_two_workers_cannot_have_one_group_or_one_name(app):
    app.worker("mails", group="one", name="first")(good)
    app.worker("mails", group="one", name="second")(good)
    with pytest.raises(hw.UsageError, match="workers 'first' and 'second' have one group"):
        app.graph()

    hw_app(app).worker("mails", group="one")(good)
    app.worker("mails", group="two")(good)
    with pytest.raises(hw.UsageError, match="worker name 'good' is already used"):
        app.graph()


def test_an_option_with_a_wrong_name_is_refused_with_the_right_one(app):
    with pytest.raises(hw.UsageError, match=r"app.worker has no option 'atempts'.*|did you mean"):
        app.worker("mails", concurency=2)


def test_a_worker_without_parentheses_is_explained(app):
    with pytest.raises(
        hw.UsageError, match=r'worker .good. has no source; write @app.worker\("name of a stream"\)'
    ):
        app.worker(good)


def test_workers_are_drawn(app):
    app.worker("mails", order_by="key", retry=hw.backoff("1s", attempts=1), name="mailer")(good)
    app.worker(topic="other", name="raw")(wrong_bytes)

    text = drawing(app.graph())

    assert (
        "mailer  worker · mails ─► good() · group post.mailer · 8 at once · in order by key · 1 attempt"
        in text
    )
    assert "raw  worker · topic other ─► wrong_bytes() · group post.raw · 8 at once · 5 attempts" in text


def wrong_bytes(message: bytes): ...
