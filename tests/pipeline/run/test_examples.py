"""The examples do what their READMEs say."""

import importlib.util
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater import testing
from headwater.client.client import Client
from headwater.follow.results import results
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.topics import Topics
from headwater.sketches import merge
from headwater.testing import SettableClock
from headwater.write.writer import Writer
from support.servers import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

pytestmark = pytest.mark.spark


def module(path: str):
    spec = importlib.util.spec_from_file_location(f"example_{Path(path).stem}", EXAMPLES / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def five_minutes(at: datetime) -> str:
    return f"{at - timedelta(seconds=at.timestamp() % 300):%Y-%m-%dT%H:%M}"


def test_telephones_with_wrong_clocks(shop):
    phones, app = module("clocks/phones.py"), hw.App.load(str(EXAMPLES / "clocks" / "app.py"))
    taps = phones.taps(BEGIN)
    Topics(shop.bootstrap).ensure(["taps"], 2, compact=False)
    writer = Writer(shop.log)
    half = len(taps) // 2
    ends = [taps[-1]._replace(phone=f"end-{n}", received=taps[-1].received + n * MINUTE) for n in range(1, 9)]
    sent = 0
    with shop.running(app):
        for part in (taps[:half], taps[half:], ends):  # the ends move the watermark
            writer.put("taps", ((tap.phone, tap.json()) for tap in part))
            sent += len(part)
            for view in app.graph().views:
                shop.taken(view, "taps", sent)
        wait_until(lambda: "right" in {row["phone"] for row in shop.table("phones").values()}, 60, "phones")
        wait_until(lambda: len(shop.table("corrected_taps")) >= len(taps), 120, "all taps")
        total = lambda: sum(row["taps"] for row in shop.table("taps_per_5_minutes").values())  # noqa: E731
        wait_until(lambda: total() >= len(taps), 120, "all taps in windows")

    found = {
        (row["phone"], row["n"]): row
        for row in shop.table("corrected_taps").values()
        if not row["phone"].startswith("end")
    }
    assert len(found) == len(taps)
    errors = {
        (tap.phone, tap.n): datetime.fromisoformat(found[tap.phone, tap.n]["corrected"]) - tap.truth
        for tap in taps
    }
    bad = {(tap.phone, tap.n) for tap in taps if tap.sent - tap.occurred < timedelta(0)}
    assert bad
    assert {found[each]["correction"]["done"] for each in bad} <= {"clamped", "unsure"}
    good = sorted(abs(error) for each, error in errors.items() if each not in bad)
    assert good[-1] <= timedelta(seconds=30)
    assert good[len(good) * 98 // 100] <= timedelta(seconds=2)

    answer = rows(app, shop.settings)
    batch = {(row["phone"], row["n"]): row for row in answer["corrected_taps"].values()}
    assert all(batch[each] == row for each, row in found.items())
    offsets = {row["phone"]: row["seconds"] for row in shop.table("phones").values()}
    wanted = {"right": 0, "slow": 420, "fast": -7200, "last-year": 365 * 86_400, "set-right": 0}
    assert all(0 <= offsets[phone] - seconds < 2 for phone, seconds in wanted.items())

    truth = Counter(five_minutes(tap.truth) for tap in taps)
    counted = {key[:16]: row["taps"] for key, row in shop.table("taps_per_5_minutes").items()}
    by_phone = Counter(five_minutes(tap.occurred) for tap in taps)
    off = {
        name: sum(abs(of.get(at, 0) - truth[at]) for at in truth)
        for name, of in (("ours", counted), ("theirs", by_phone))
    }
    assert off["ours"] <= 2 * len(bad) + 0.01 * len(taps)
    assert off["theirs"] > 0.3 * len(taps)
    moved = sum(five_minutes(tap.truth) != five_minutes(tap.occurred) for tap in taps)
    assert moved > 0.7 * len(taps)


def test_a_redeploy_makes_no_false_spike_in_event_time(shop):
    traffic, draw = module("redeploy/traffic.py"), module("redeploy/draw.py")
    app = hw.App.load(str(EXAMPLES / "redeploy" / "app.py"))
    Topics(shop.bootstrap).ensure(["requests"], 2, compact=False)
    writer, clock = Writer(shop.log), SettableClock(int(BEGIN.timestamp() * 1000))

    def sends(minutes: range) -> Iterator[int]:
        for minute in minutes:
            writer.put("requests", traffic.requests(BEGIN + minute * MINUTE, 60))
            clock.advance(59)
            yield 60 * (minute + 1)
            clock.advance(1)

    with shop.running(app, clock):
        for sent in sends(range(4)):
            shop.taken("rate", "requests", sent)
    list(sends(range(4, 9)))  # the pipeline is down
    writer.put("requests", traffic.requests(BEGIN + 9 * MINUTE, 60))
    clock.advance(59)
    with shop.running(app, clock):
        shop.taken("rate", "requests", 600)
        clock.advance(1)
        for sent in sends(range(10, 12)):
            shop.taken("rate", "requests", sent)

    client = Client(shop.bootstrap)
    by_count = draw.counted(results(client, "rate"))
    by_time = draw.made(shop.table("rate").values())
    at = [BEGIN + minute * MINUTE for minute in range(12)]
    assert [by_time.get(each, 0) for each in at] == [60] * 12
    assert [by_count.get(each, 0) for each in at] == [60] * 4 + [0] * 5 + [360, 60, 60]
    assert results(client, "rate")[-1].late == 0
    assert draw.draw(client) == (EXAMPLES / "redeploy" / "redeploy.svg").read_text()


def test_visits_join_and_end_without_an_event_that_says_so():
    app = hw.App.load(str(EXAMPLES / "sessions" / "app.py"))

    def click(user: str, minute: int, page: str) -> dict:
        return {"user": user, "page": page, "at": BEGIN + minute * MINUTE}

    with testing.views(app, now=BEGIN) as t:
        t.send("clicks", click("ann", 0, "/"), click("ann", 50, "/shoes"), click("bob", 10, "/"))
        assert [(row["user"], row["clicks"]) for row in t.rows("visits")] == [
            ("ann", 1),
            ("ann", 1),
            ("bob", 1),
        ]
        t.send("clicks", click("ann", 25, "/tunnel"))
        (visit,) = [row for row in t.rows("visits") if row["user"] == "ann"]
        assert (visit["clicks"], visit["landing"], visit["exit"]) == (3, "/", "/shoes")
        assert visit["window"] == {"start": BEGIN, "end": BEGIN + 80 * MINUTE}
        assert [row["pages"] for row in t.rows("long_visits")] == [3]
        assert t.rows("ended") == []
        t.advance("40 minutes")
        assert [(row["user"], row["clicks"]) for row in t.rows("ended")] == [("ann", 3)]
        for view in app.graph().views:
            t.check(view)


def test_searches_without_a_click_count_when_none_can_come_any_more():
    app = hw.App.load(str(EXAMPLES / "clickthrough" / "app.py"))

    def search(number: int, minute: int) -> dict:
        return {"search_id": number, "query": f"q{number}", "at": BEGIN + minute * MINUTE}

    def click(number: int, of: int, minute: int) -> dict:
        return {"click_id": number, "search_id": of, "at": BEGIN + minute * MINUTE}

    with testing.views(app, now=BEGIN) as t:
        t.send("searches", *(search(n, n) for n in range(10)))
        t.send("clicks", click(1, 0, 10), click(2, 0, 3), click(3, 1, 12), click(4, 7, 8))
        assert [(row["search_id"], row["click_id"], row["seconds"]) for row in t.rows("found")] == [
            (0, 1, 600),
            (0, 2, 180),
            (7, 4, 60),
        ]
        assert t.rows("nothing_found") == t.rows("click_through") == []
        t.advance("1 hour")
        t.advance("1 minute")
        assert [row["search_id"] for row in t.rows("nothing_found")] == [1, 2, 3, 4, 5, 6, 8, 9]
        rates = [(row["searches"], row["without_click"], row["rate"]) for row in t.rows("click_through")]
        assert rates == [(5, 4, 0.2), (5, 4, 0.2)]
        for view in app.graph().views:
            t.check(view)


def test_an_act_has_the_profile_of_its_own_time_whichever_comes_first():
    app = hw.App.load(str(EXAMPLES / "activity" / "app.py"))

    def act(number: int, minute: int, user: int = 1) -> dict:
        return {"act_id": number, "user_id": user, "page": "/", "at": BEGIN + minute * MINUTE}

    def profile(plan: str, minute: int) -> dict:
        return {"user_id": 1, "country": "de", "plan": plan, "changed_at": BEGIN + minute * MINUTE}

    with testing.views(app, now=BEGIN) as t:

        def plans() -> list[str | None]:
            return [row["plan"] for row in t.rows("activity")]

        t.send("acts", act(1, 5), act(2, 30), act(3, 30, user=2))
        assert plans() == [None, None, None]
        t.send("profiles", profile("free", 0))
        t.send("profiles", profile("paid", 20))
        assert plans() == ["free", "paid", None]
        t.send("acts", act(4, 10), act(5, 50))
        assert plans() == ["free", "paid", None, "free", "paid"]
        t.advance("2 hours")
        t.advance("1 minute")
        counted = {row["plan"]: row["acts"] for row in t.rows("acts_by_plan")}
        assert counted == {"free": 1, "paid": 2, "none": 1}  # the fourth came too late to be counted
        for view in app.graph().views:
            t.check(view)


def test_percentiles_of_minutes_are_merged_to_those_of_an_hour():
    app = hw.App.load(str(EXAMPLES / "percentiles" / "app.py"))
    times = {minute: [float(minute * 100 + n) for n in range(100)] for minute in range(5)}
    with testing.views(app) as t:
        for minute, found in times.items():
            at = BEGIN + minute * MINUTE
            t.send(
                "requests",
                *(
                    {"service": "web", "user": f"u{n % 30}", "milliseconds": ms, "at": at}
                    for n, ms in enumerate(found)
                ),
            )
        minutes = t.rows("minutes")
    assert [row["requests"] for row in minutes] == [100] * 5
    assert all(abs(row["users"]["estimate"] - 30) <= 1 for row in minutes)
    first, *rest = (row["times"]["sketch"] for row in minutes)
    hour = merge.begin(first)
    for sketch in rest:
        merge.add(hour, sketch)
    every = sorted(ms for found in times.values() for ms in found)
    for name, rank in (("p50", 0.5), ("p99", 0.99)):
        found = hour.estimate(minutes[0]["times"]["estimate"])[name]
        assert abs(every.index(found) / len(every) - rank) <= 2 * hour.error


@pytest.mark.skipif(not hasattr(hw.App, "table"), reason="needs tables")
def test_timelines_move_with_both_tables():
    app = hw.App.load(str(EXAMPLES / "timeline" / "app.py"))

    def tweet(number: int, author: str, text: str, minute: int | None = None) -> dict:
        at = BEGIN + (number if minute is None else minute) * MINUTE
        return {"tweet_id": number, "author": author, "text": text, "at": at}

    def follow(follower: str, followee: str) -> dict:
        return {"follower": follower, "followee": followee}

    with testing.views(app) as t:

        def shown() -> dict[str, list[str]]:
            return {row["follower"]: [each["text"] for each in row["tweets"]] for row in t.rows("timelines")}

        t.send("tweets", tweet(1, "bob", "one"), tweet(2, "cid", "two"), tweet(3, "bob", "three"))
        assert shown() == {}
        t.send("follows", follow("ann", "bob"), follow("ann", "cid"), follow("dan", "cid"))
        assert shown() == {"ann": ["three", "two", "one"], "dan": ["two"]}
        t.send("tweets", tweet(2, "cid", "two, edited", 9))
        assert shown() == {"ann": ["two, edited", "three", "one"], "dan": ["two, edited"]}
        t.send("tweets", tweet(4, "cid", "same time", 3))
        assert shown()["ann"] == ["two, edited", "same time", "three", "one"]
        t.delete("follows", ("ann", "cid"))
        t.delete("tweets", 4, 77)
        assert shown() == {"ann": ["three", "one"], "dan": ["two, edited"]}
        t.send("tweets", tweet(2, "bob", "of another author", 9))
        assert shown() == {"ann": ["of another author", "three", "one"]}
        many = [tweet(n, "bob", f"{n}") for n in range(100, 202)]
        t.send("tweets", *many)
        assert shown()["ann"] == [f"{n}" for n in range(201, 101, -1)]
        t.delete("tweets", 201, 150)
        assert shown()["ann"] == [f"{n}" for n in range(200, 99, -1) if n != 150]
        t.check("timelines")
