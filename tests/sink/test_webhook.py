"""Webhooks at a real HTTP receiver: signatures, answers, order, and an endpoint that is gone."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import threading
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from headwater.clock import SystemClock
from headwater.errors import UnavailableError, UsageError
from headwater.sink import Webhook
from headwater.sink.effects.effect import make_effect
from headwater.sink.effects.webhook import Poster
from headwater.sink.store import Batch
from headwater.testing import SettableClock
from sink.contract import batch, change
from sink.receivers import effect_feed, failed, idle, opening, web_receiver
from support.servers import free_port, wait_until

SECRET = "whsec_" + base64.b64encode(b"the one that is in use now, 32 b").decode()
NEXT = "whsec_" + base64.b64encode(b"the one that will be used, 32 by").decode()
DAY = 86_400


@pytest.fixture
def receiver():
    with web_receiver() as receiver:
        yield receiver


@pytest.fixture
def clock():
    return SettableClock(SystemClock().now_ms())


@pytest.fixture
def opened(bootstrap, receiver, clock):
    def make(url=None, **settings):
        return Webhook(url or receiver.url, clock=clock, **settings)

    with opening(bootstrap, make) as start:
        yield start


def test_a_call_says_what_happened_and_its_signature_holds(opened, receiver):
    store = opened(secret=SECRET)
    store.apply(batch(change("é", 1.5, 0)))
    idle(store)

    (call,) = receiver.taken
    event = Verifier(SECRET).verify(call.body, call.headers)
    assert event["type"] == f"{opened.feed.topic}.changed"
    assert event["timestamp"] == "2026-01-31T10:00:00Z"
    assert event["mode"] == "live"
    assert event["data"] == {
        "id": "é",
        "total": 1.5,
        "at": "2026-01-31T10:00:00.000001Z",
        "items": ["a", 'b"'],
    }
    assert call.headers["content-type"] == "application/json"
    with pytest.raises(WebhookVerificationError):
        Verifier(NEXT).verify(call.body, call.headers)


def test_the_signature_is_that_of_the_specification_and_there_is_one_for_each_secret(opened, receiver):
    store = opened(secret=[SECRET, NEXT])
    store.apply(batch(change("a", 1, 0)))
    idle(store)

    (call,) = receiver.taken
    signed = f"{call.id}.{call.headers['webhook-timestamp']}.".encode() + call.body
    keys = [base64.b64decode(secret.removeprefix("whsec_")) for secret in (SECRET, NEXT)]
    by_hand = [base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys]
    assert call.headers["webhook-signature"] == f"v1,{by_hand[0]} v1,{by_hand[1]}"
    for secret in (SECRET, NEXT):
        Verifier(secret).verify(call.body, call.headers)


def test_every_attempt_has_the_same_id_and_body_and_a_timestamp_of_its_own(opened, receiver, clock):
    receiver.answer = lambda _: 500 if len(receiver.calls) == 1 else 200
    store = opened(secret=SECRET)
    store.apply(batch(change("a", 1, 0)))
    failed(store, a=1)
    clock.advance(6)
    idle(store)

    first, second = receiver.calls
    assert (first.id, first.body) == (second.id, second.body)
    assert int(second.headers["webhook-timestamp"]) == int(first.headers["webhook-timestamp"]) + 6


def test_only_a_2xx_is_a_success_and_no_redirect_is_followed(opened, receiver, clock):
    statuses = [301, 400, 404, 503]

    def answer(call):
        first = sum(call.id == each.id for each in receiver.calls) == 1
        return (statuses[int(call.data["total"])], {"location": receiver.url}) if first else 202

    receiver.answer = answer
    store = opened()
    store.apply(batch(*(change(f"k{n}", n, n) for n in range(4))))
    failed(store, k0=1, k1=1, k2=1, k3=1)
    clock.advance(6)
    idle(store)

    assert len(receiver.calls) == 8
    assert len(receiver.taken) == 4
    assert "webhook-signature" not in receiver.calls[0].headers


def test_a_receiver_that_asks_for_time_is_given_it(opened, receiver, clock):
    receiver.answer = lambda call: (
        (429, {"retry-after": "3600"}) if call.data["id"] == "a" and len(receiver.calls) == 1 else 200
    )
    store = opened()
    store.apply(batch(change("a", 1, 0)))
    failed(store, a=1)
    clock.advance(3590)
    store.apply(batch(change("b", 2, 1)))
    wait_until(lambda: receiver.totals() == [("b", 2)], 10, "the other key")
    clock.advance(20)
    idle(store)

    assert receiver.totals() == [("b", 2), ("a", 1)]


def test_keys_keep_their_order_while_others_continue(opened, receiver, clock):
    down = {"k1", "k2"}
    receiver.answer = lambda call: 503 if call.data["id"] in down else 200
    store = opened()
    changes = [change(f"k{n % 5}", n, n) for n in range(50)]
    store.apply(batch(*changes))
    wait_until(lambda: len(receiver.taken) == 30, 10, "all of the other keys")
    failed(store, k1=1, k2=1)
    down.clear()
    clock.advance(400)
    idle(store)

    for key in range(5):
        assert [total for name, total in receiver.totals() if name == f"k{key}"] == list(range(key, 50, 5))
    assert len(set(receiver.ids())) == len(receiver.ids()) == 50


def test_calls_of_several_keys_go_side_by_side_but_never_more_than_agreed(opened, receiver):
    together = threading.Barrier(4, timeout=10)
    flying, most = [], []

    def answer(_):
        flying.append(1)
        most.append(len(flying))
        together.wait()
        flying.pop()
        return 200

    receiver.answer = answer
    store = opened(concurrency=4)
    store.apply(batch(*(change(f"k{n}", n, n) for n in range(12))))
    idle(store)

    assert max(most) == 4


def test_an_endpoint_that_is_gone_is_called_no_more_and_keeps_what_waits(opened, receiver, clock, caplog):
    receiver.answer = lambda _: 410
    store = opened(concurrency=1)
    store.apply(batch(change("a", 1, 0), change("b", 2, 1)))
    wait_until(lambda: store.disabled, 10, "the end of the calls")
    store.apply(batch(change("c", 3, 2)))
    clock.advance(DAY)
    store.close()

    assert len(receiver.calls) == 1
    assert sum("is disabled: it answered 410 Gone" in line for line in caplog.messages) == 1
    receiver.answer = lambda _: 200
    again = opened()
    idle(again)
    assert sorted(receiver.totals()) == [("a", 1), ("b", 2), ("c", 3)]


def test_an_endpoint_that_failed_for_five_days_is_called_no_more(opened, receiver, clock, caplog):
    receiver.answer = lambda _: 500
    store = opened(concurrency=1)
    for day in range(6):
        store.apply(batch(change(f"day{day}", day, day)))
        if day < 5:
            failed(store, **{f"day{day}": 1})
        if day == 3:  # the next process knows how long it has failed
            store.close()
            store = opened(concurrency=1)
        clock.advance(DAY)
    wait_until(lambda: store.disabled, 10, "the end of the calls")
    waits = store.waiting()
    store.close()

    assert waits > 0
    assert sum("failed for five days" in line for line in caplog.messages) == 1


def test_an_endpoint_that_was_disabled_gets_one_effect_every_ten_hours_until_it_takes_one(
    opened, receiver, clock, caplog
):
    hours, well = [], threading.Event()
    began_ms = clock.now_ms()

    def answer(_):
        hours.append((clock.now_ms() - began_ms) / 3_600_000)
        return 200 if well.is_set() else 500

    receiver.answer = answer
    store = opened(concurrency=4)
    for day in range(6):
        store.apply(batch(*(change(f"day{day} {n}", day, 3 * day + n) for n in range(3))))
        if day < 5:
            failed(store, **{f"day{day} {n}": 1 for n in range(3)})
            clock.advance(DAY)
    wait_until(lambda: store.disabled, 10, "the end of the calls")
    wait_until(lambda: not store._courier.queues()[0].in_flight, 10, "the last calls")
    hours.clear()
    for probes in (1, 2):
        clock.advance(9.9 * 3600)
        assert not store._courier._health.may_call()
        clock.advance(1.2 * 3600)
        wait_until(lambda n=probes: len(hours) == n, 10, "one call")
        wait_until(lambda: not store._courier.queues()[0].in_flight, 10, "its end")
    well.set()
    clock.advance(11.1 * 3600)
    idle(store)

    assert [round(hour - 120) for hour in hours[:2]] == [11, 22]
    assert not store.disabled
    assert sorted(key for key, _ in receiver.totals())[-3:] == ["day5 0", "day5 1", "day5 2"]
    assert sum("one effect every 10 hours" in line for line in caplog.messages) == 1
    assert sum("accepts effects again" in line for line in caplog.messages) == 1


def test_one_success_begins_the_five_days_again(opened, receiver, clock):
    receiver.answer = lambda call: 200 if call.data["id"] == "day3" else 500
    store = opened(concurrency=1)
    for day in range(6):
        store.apply(batch(change(f"day{day}", day, day)))
        if day == 3:
            wait_until(lambda: len(receiver.taken) == 1, 10, "the success")
        else:
            failed(store, **{f"day{day}": 1})
        clock.advance(DAY)

    assert not store.disabled


def test_an_endpoint_that_is_away_or_silent_is_tried_again(opened, receiver, clock, caplog):
    store = opened(url=f"http://127.0.0.1:{free_port()}/x?token=t0psecret")
    store.apply(batch(change("a", 1, 0)))
    failed(store, a=1)
    store.close()
    silent = threading.Event()
    receiver.answer = lambda _: silent.wait(5) + 200
    slow = opened(timeout_s=0.2)
    clock.advance(6)
    failed(slow, a=2)
    silent.set()
    clock.advance(400)
    idle(slow)

    assert {call.id for call in receiver.calls} == set(receiver.ids())
    assert "t0psecret" not in caplog.text


def test_nothing_secret_is_ever_printed(opened, receiver, caplog):
    caplog.set_level(logging.DEBUG)
    user = "http://joe:pa55@127.0.0.1:1/t0ken?key=t0psecret"
    target = Webhook(user, secret=SECRET)
    said = [repr(target), str(target)]
    for wrong in ("whsec_not base64 é", "whsec_"):
        with pytest.raises(UsageError) as caught:
            Webhook(receiver.url, secret=wrong).check(opened.feed)
        said += [str(caught.value), repr(caught.value), str(caught.value.__cause__)]
    with pytest.raises(UsageError) as caught:
        Webhook("ftp://joe:pa55@host/t0ken")
    said.append(str(caught.value))
    receiver.answer = lambda call: 410 if call.data["id"] == "b" else 204
    store = opened(secret=[SECRET, NEXT])
    store.apply(batch(change("a", 1, 0), change("b", 1, 1)))
    wait_until(lambda: store.disabled, 10, "the end of the calls")
    with pytest.raises(UnavailableError) as refusal:
        store._courier.wait_for_room(list(store._courier.queues().values()), 1, 0.01)
    said.append(str(refusal.value))

    everything = "\n".join([*said, caplog.text])
    for secret in ("pa55", "t0psecret", "t0ken", "not base64", SECRET[6:], NEXT[6:]):
        assert secret not in everything
    assert "127.0.0.1 is disabled" in caplog.text


def test_the_key_of_a_deleted_row_is_sent_by_its_columns(bootstrap, receiver):
    feed = effect_feed(bootstrap)
    from msgspec.structs import replace

    store = Webhook(receiver.url).open(replace(feed, key=("country", "day")))
    store.claim([0])
    gone = replace(change("x", None, 0), key=json.dumps(["DE", "2026-01-31"]))
    store.apply(Batch([gone], {0: 1}))
    idle(store)
    store.close()

    assert receiver.taken[0].type == f"{feed.topic}.deleted"
    assert receiver.taken[0].data == {"country": "DE", "day": "2026-01-31"}


def test_the_receiver_of_the_documentation_takes_a_double_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "effects.md").read_text()
    (code,) = re.findall(r"^```python\n(import sqlite3.*?)^```", page, re.MULTILINE | re.DOTALL)
    taken: list[dict] = []
    names = {"SECRET": SECRET, "take": taken.append}
    exec(code, names)  # noqa: S102
    effect = make_effect(effect_feed("nowhere:1"), change("a", 1, 0), "live")
    poster = Poster("http://receiver/hook", SECRET, 5, 1, SystemClock())

    async def post():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(names["app"])) as client:
            return [(await client.send(poster._request(effect))).status_code for _ in range(3)]

    assert asyncio.run(post()) == [204, 204, 204]
    assert [row["id"] for row in taken] == ["a"]
    names["database"].close()
    poster.close()
