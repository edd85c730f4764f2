"""Mail at a real SMTP receiver: the same id each time, and rows that cannot say more than a value."""

import pytest

from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.sink import Mail
from headwater.sink.effects.mail import render
from headwater.testing import SettableClock
from sink.contract import batch, change
from sink.receivers import attempts, effect_feed, idle, mail_receiver, opening
from support.servers import wait_until


@pytest.fixture
def receiver():
    with mail_receiver() as receiver:
        yield receiver


@pytest.fixture
def clock():
    return SettableClock()


@pytest.fixture
def opened(bootstrap, receiver, clock):
    def make(**settings):
        usual = {
            "to": "{id}@example.com",
            "subject": "Order {id}",
            "body": "It is {total:.2f} now.\n",
            "sender": "shop@example.com",
        }
        return Mail("127.0.0.1", receiver.port, clock=clock, **(usual | settings))

    with opening(bootstrap, make) as start:
        yield start


def test_a_row_becomes_a_mail_and_a_deletion_none(opened, receiver):
    store = opened()
    store.apply(batch(change("jo", 1.5, 0), change("jo", None, 1)))
    idle(store)

    ((sender, to, mail),) = receiver.mails
    assert (sender, to) == ("shop@example.com", ["jo@example.com"])
    assert (mail["To"], mail["Subject"]) == ("jo@example.com", "Order jo")
    assert mail.get_payload().strip() == "It is 1.50 now."
    assert mail["Message-ID"].startswith(f"<{opened.feed.topic}-0-0-")
    assert mail["Message-ID"].endswith("@example.com>")
    assert mail["X-Headwater-Mode"] == "live"


def test_a_mail_that_is_put_off_comes_later_with_the_same_id(opened, receiver, clock):
    asked = []
    receiver.answer = lambda address: (
        asked.append(address) or ("451 later" if len(asked) == 1 else "250 fine")
    )
    store = opened()
    store.apply(batch(change("jo", 1, 0)))
    wait_until(lambda: attempts(store) == {"jo": 1}, 10, "the first attempt")
    clock.advance(6)
    idle(store)

    assert len(asked) == 2
    assert len(receiver.mails) == 1


def test_a_recipient_that_does_not_exist_is_dead_at_once(opened, receiver):
    receiver.answer = lambda address: "550 unknown" if address.startswith("unknown") else "250 fine"
    store = opened()
    store.apply(batch(change("unknown", 1, 0), change("jo", 2, 1)))
    idle(store)

    assert [to for _, to, _ in receiver.mails] == [["jo@example.com"]]
    (letter,) = Client(opened.feed.log).read([f"{opened.feed.topic}.dead"])
    assert dict(letter.headers())["reason"] == b"a recipient is refused: answer 550"


def test_a_value_adds_no_recipient_and_no_header(opened, receiver):
    names = ["jo@example.com, all", "jo\r\nBcc: all", "<jo", "jo all", ""]
    store = opened()
    store.apply(batch(*(change(name, 1, n) for n, name in enumerate([*names, "jo"]))))
    idle(store)

    assert [to for _, to, _ in receiver.mails] == [["jo@example.com"]]
    letters = list(Client(opened.feed.log).read([f"{opened.feed.topic}.dead"]))
    assert len(letters) == len(names)
    assert all(b"it cannot be written" in dict(letter.headers())["reason"] for letter in letters)


def test_a_subject_with_a_line_break_is_not_sent(opened, receiver):
    store = opened(to="desk@example.com", subject="{id}", body="")
    store.apply(batch(change("a\r\nBcc: b@example.com", 1, 0)))
    idle(store)

    assert receiver.mails == []


def test_templates_name_columns_and_nothing_else():
    row = {"id": "a", "total": 2, "note": None}
    assert render("{id}: {total:.1f} {{{note}}}", row) == "a: 2.0 {}"
    for wrong in ("{id.__class__}", "{id[0]}", "{0}", "{}", "{id!r}", "{id:{total}}", "{id"):
        with pytest.raises(UsageError, match="template"):
            Mail("host", to="a@example.com", sender="b@example.com", body=wrong)


def test_what_cannot_be_mailed_is_refused_before_anything_starts(bootstrap):
    usual = {"to": "a@example.com", "sender": "b@example.com"}
    with pytest.raises(UsageError, match=r"unknown column; got prize; expected at, id"):
        Mail("host", **usual, body="{prize}").check(effect_feed(bootstrap))
    with pytest.raises(UsageError, match="a mail needs a recipient"):
        Mail("host", sender="b@example.com")
    with pytest.raises(UsageError, match="sender is not an address"):
        Mail("host", to="a@example.com", sender="shop")
    with pytest.raises(UsageError, match="only over TLS"):
        Mail("host", **usual, user="u", password="s3cret")
    assert "s3cret" not in repr(Mail("host", **usual, user="u", password="s3cret", tls="tls"))
