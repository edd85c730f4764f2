"""The pages in a real browser."""

import json
import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from headwater.health.condition import PartStatus, State
from headwater.result import LeftOut
from headwater.testing import SettableClock
from headwater.view.hub import Hub
from support.resultlog import Driver
from support.servers import wait_until

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(timezone_id="UTC")
    errors = []
    page.on("pageerror", lambda error: errors.append(error))  # noqa: PLW0108  the client writes on it
    page.set_default_timeout(15_000)
    yield page
    assert errors == []
    page.close()


def row(country, revenue, minute=0):
    window = {
        "start": f"2026-01-05T09:{minute:02}:00.000000Z",
        "end": f"2026-01-05T09:{minute + 5:02}:00.000000Z",
    }
    return {"window": window, "country": country, "revenue": revenue, "orders": 1}


def test_a_number_changes_without_reloading(console, log, revenue, page):
    log.put(revenue, {"DE": row("DE", 1)})
    page.goto(f"{console.url}/live/{revenue}")
    page.evaluate("window.same = true")
    cell = page.get_by_test_id("cell-revenue").first
    expect(cell).to_have_text("1")
    expect(page.get_by_test_id("connection")).to_have_text("Live")

    log.put(revenue, {"DE": row("DE", 4321)})
    expect(cell).to_have_text("4,321")
    log.put(revenue, {"FR": row("FR", 7)})
    expect(page.get_by_test_id("row-count")).to_have_text("2")
    log.put(revenue, {"FR": None})
    expect(page.get_by_test_id("row-count")).to_have_text("1")

    assert page.evaluate("window.same")


def test_of_a_sketch_the_estimate_is_shown(console, log, revenue, page):
    log.put(
        revenue, {"DE": row("DE", 1) | {"users": {"estimate": 4711, "error": 0.01625, "sketch": "CgEHDA"}}}
    )
    page.goto(f"{console.url}/live/{revenue}")
    expect(page.get_by_test_id("cell-users")).to_have_text("≈ 4,711")


def test_the_first_page_lists_views_and_follows_them(console, log, revenue, page):
    page.goto(console.url)
    view = page.get_by_test_id(f"view-{revenue}")
    expect(view.get_by_test_id("row-count")).to_have_text("0")

    log.put(revenue, {"DE": row("DE", 1), "FR": row("FR", 2)})
    expect(view.get_by_test_id("row-count")).to_have_text("2")
    expect(page.get_by_test_id("position")).to_have_text("2 records applied")

    view.get_by_role("link").click()
    expect(page.get_by_test_id("cell-country")).to_have_count(2)
    expect(page.locator("#chart path")).to_have_count(2)


def test_the_page_comes_back_after_the_console_was_away(console, log, revenue, page):
    log.put(revenue, {"DE": row("DE", 1)})
    page.goto(f"{console.url}/live/{revenue}")
    expect(page.get_by_test_id("cell-revenue").first).to_have_text("1")

    console.stop()
    expect(page.get_by_test_id("connection")).to_have_text("Reconnecting")
    log.put(revenue, {"DE": row("DE", 2), "FR": row("FR", 3)})
    console.start()

    expect(page.get_by_test_id("connection")).to_have_text("Live")
    expect(page.get_by_test_id("row-count")).to_have_text("2")


def test_what_a_view_holds_is_shown_as_text_only(console, log, revenue, page):
    attack = '<img src=x onerror="window.harmed = true"><script>window.harmed = true</script>'
    log.put(revenue, {attack: row(attack, 5)})
    page.goto(f"{console.url}/live/{revenue}")

    expect(page.get_by_test_id("cell-country")).to_have_text(attack)
    expect(page.locator("#legend")).to_contain_text("onerror")
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img").count() == 0


def test_rows_can_be_filtered_and_sorted_with_the_keyboard(console, log, revenue, page):
    log.put(revenue, {c: row(c, n) for n, c in enumerate(["DE", "FR", "GB"])})
    page.goto(f"{console.url}/live/{revenue}")
    expect(page.get_by_test_id("cell-country")).to_have_count(3)

    page.get_by_role("button", name="revenue").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("cell-country").first).to_have_text("GB")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("cell-country").first).to_have_text("DE")

    page.get_by_role("searchbox").fill("fr")
    expect(page.get_by_test_id("cell-country")).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator("#empty")).to_have_text("No row matches the filter.")


def test_provisional_rows_are_drawn_apart_until_the_view_is_complete(console, bootstrap, revenue, page):
    driver = Driver(bootstrap, revenue, partitions=2)
    nine_us = 1_767_603_600_000_000
    rows = {f"{c}{m}": json.dumps(row(c, m + 1, m)).encode() for c in ("DE", "FR") for m in range(0, 30, 5)}
    driver.publish({"orders": {0: 1}}, rows)
    driver.publish({"orders": {0: 2}}, complete=nine_us + 20 * 60_000_000)
    page.goto(f"{console.url}/live/{revenue}")
    head, marks = page.get_by_test_id("complete"), page.locator("#body .mark:visible")

    expect(page.get_by_test_id("cell-country")).to_have_count(12)
    expect(head).to_contain_text(re.compile(r"Complete up to .*09:20:00.* ago"))
    expect(page.locator("#body tr.provisional")).to_have_count(4)
    expect(marks).to_have_text(["provisional"] * 4)
    expect(page.locator("#chart path.provisional")).to_have_count(2)
    expect(page.locator("#chart path:not(.provisional)")).to_have_count(2)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        colors = [
            page.locator(f"#body tr{which} .number").first.evaluate("e => getComputedStyle(e).color")
            for which in (".provisional", ":not(.provisional)")
        ]
        assert colors[0] != colors[1]

    driver.publish({"orders": {0: 3}}, complete=nine_us + 25 * 60_000_000)
    expect(head).to_contain_text("09:25:00")
    expect(page.locator("#body tr.provisional")).to_have_count(2)
    driver.publish({"orders": {0: 4}}, complete=nine_us + 30 * 60_000_000)
    expect(head).to_contain_text("09:30:00")
    expect(page.locator(".provisional")).to_have_count(0)
    expect(marks).to_have_count(0)


def test_a_view_that_does_not_say_what_is_complete_looks_as_ever(console, log, revenue, page):
    log.put(revenue, {"DE": row("DE", 1)})
    page.goto(f"{console.url}/live/{revenue}")

    expect(page.get_by_test_id("cell-country")).to_have_count(1)
    expect(page.get_by_test_id("complete")).to_be_hidden()
    expect(page.locator(".provisional")).to_have_count(0)
    expect(page.locator("#body .mark:visible")).to_have_count(0)
    assert re.fullmatch(r"now|\d+s ago", page.locator("#body td").last.inner_text())


def test_the_number_of_rows_is_that_of_the_view_whatever_the_page_was_sent(
    console, log, revenue, page, monkeypatch
):
    monkeypatch.setattr("headwater.view.events.SNAPSHOT_ROWS", 2)
    for country in ("DE", "FR", "GB", "IT", "US"):
        log.put(revenue, {country: row(country, 1)})
    wait_until(lambda: len(console.rows(revenue)) == 5, 20, "the rows")
    page.goto(f"{console.url}/live/{revenue}")
    count = page.get_by_test_id("row-count")
    expect(count).to_have_text("5")

    log.put(revenue, {"DE": row("DE", 2), "FR": row("FR", 2)})
    expect(page.get_by_test_id("cell-revenue")).to_have_count(4)
    expect(count).to_have_text("5")
    log.put(revenue, {"GB": None})
    expect(count).to_have_text("4")
    log.put(revenue, {"NO": row("NO", 1)})
    expect(count).to_have_text("5")


def failing(name, error):
    return PartStatus("view", name, State.STOPPED, 1_767_603_600_000, lag_records=1_204, error=error)


def test_a_part_that_fails_is_shown_on_every_page_and_no_page_says_that_all_is_well(console, revenue, page):
    connection, parts = page.get_by_test_id("connection"), page.get_by_test_id("parts")
    works = PartStatus("view", revenue, State.RUNNING, 1_767_603_600_000, lag_records=0)
    for path in ("/", f"/live/{revenue}"):
        console.parts = (works,)
        page.goto(f"{console.url}{path}")
        expect(connection).to_have_text("Live")
        expect(parts).to_be_hidden()
        console.parts = (failing("visits", "rebuild it"), works)
        expect(connection).to_have_text("1 part fails")
        assert connection.get_attribute("data-state") == "failing"
        expect(parts).to_contain_text(re.compile(r"view visits stopped since .*: rebuild it"))
        console.parts = (works,)
        expect(connection).to_have_text("Live")
        expect(parts).to_be_hidden()


def test_beside_each_view_are_its_state_its_lag_and_what_it_has_left_out(console, bootstrap, revenue, page):
    console.parts = (failing(revenue, "rebuild it"),)
    driver = Driver(bootstrap, revenue, partitions=2)
    taken = {"orders": [10, 2, 30, {}, 4], "visits": [10, 1, 1_000, {}, 0]}
    driver.publish({"orders": {0: 1}}, {"DE": json.dumps(row("DE", 1)).encode()}, late=3, taken=taken)
    page.goto(console.url)
    view = page.get_by_test_id(f"view-{revenue}")
    expect(view.get_by_test_id("state")).to_have_text("stopped")
    expect(view.get_by_test_id("lag")).to_have_text("1,204")
    expect(view.get_by_test_id("left-out")).to_have_text("3 late, 1,030 invalid, 4 failed")


def test_a_real_time_view_shows_what_it_has_left_out(console, log, revenue, page):
    def working(late):
        left_out = LeftOut(late, invalid=1_030)
        return PartStatus("view", revenue, State.RUNNING, 1_767_603_600_000, left_out=left_out)

    console.parts = (PartStatus("view", revenue, State.RUNNING, 1_767_603_600_000),)
    page.goto(console.url)
    shown = page.get_by_test_id(f"view-{revenue}").get_by_test_id("left-out")
    expect(shown).to_have_text("\N{EN DASH}")
    for late in (3, 4):
        console.parts = (working(late),)
        expect(shown).to_have_text(f"{late} late, 1,030 invalid")
    assert console.get("/views")[1][0]["left_out"] == {"late": 4, "invalid": 1_030, "failed": 0}


def test_changes_leave_the_last_minute_after_a_minute(console, log, revenue, page):
    """The clocks of the console and of the browser are set on; nothing else happens meanwhile."""
    clock = SettableClock()
    console.stop()
    console.start(Hub(clock))
    page.clock.install()
    log.put(revenue, {c: row(c, 1) for c in ("DE", "FR", "GB")})
    wait_until(lambda: len(console.rows(revenue)) == 3, 20, "the rows")
    page.goto(console.url)
    line, flat = page.locator(".spark-line"), re.compile(r"^(\S+,26\.0 ?)+$")
    peak = re.compile(r",2\.0$")
    expect(line).to_have_attribute("points", peak)
    page.clock.run_for(30_000)
    expect(line).to_have_attribute("points", re.compile(r",2\.0 (\S+,26\.0 ?)+$"))
    page.clock.run_for(31_000)
    expect(line).to_have_attribute("points", flat)
    clock.advance(30)
    page.reload()
    expect(line).to_have_attribute("points", re.compile(r",2\.0 (\S+,26\.0 ?){30}$"))
    clock.advance(31)
    page.reload()
    expect(page.get_by_test_id("row-count")).to_have_text("3")
    expect(line).to_have_attribute("points", flat)


def test_the_last_minute_is_there_when_the_page_opens(console, log, revenue, page):
    log.put(revenue, {c: row(c, 1) for c in ("DE", "FR", "GB")})
    wait_until(lambda: len(console.rows(revenue)) == 3, 20, "the rows")
    page.goto(console.url)
    line = page.locator(".spark-line")
    expect(line).to_have_attribute(
        "points", re.compile(r",26\.0 .*,2\.0")
    )  # at the top, where the most changes are


def test_ids_are_names_decimals_have_no_padding_and_text_is_not_a_measure(console, bootstrap, revenue, page):
    driver = Driver(bootstrap, revenue, partitions=2)
    shown = {
        "country": "DE",
        "customer_id": 1234567,
        "orders": 1234567,
        "total": "1234567890123456.5000",
        "mean": 2.5,
        "zip": "01234",
    }
    types = {"country": "STRING", "customer_id": "BIGINT", "orders": "BIGINT", "total": "DECIMAL(20,4)"}
    types |= {"mean": "DOUBLE", "zip": "STRING"}
    driver.publish({"orders": {0: 1}}, {"DE": json.dumps(shown).encode()}, columns=types)
    page.goto(f"{console.url}/live/{revenue}")
    for column, text in (
        ("customer_id", "1234567"),
        ("orders", "1,234,567"),
        ("total", "1,234,567,890,123,456.5"),
        ("mean", "2.5"),
        ("zip", "01234"),
    ):
        expect(page.get_by_test_id(f"cell-{column}")).to_have_text(text)
    assert page.locator("#measure option").all_inner_texts() == ["orders", "total", "mean"]


def test_times_are_of_the_readers_zone_or_of_utc_and_the_page_says_which(console, log, revenue, browser):
    log.put(revenue, {"DE": row("DE", 1)})
    page = browser.new_page(timezone_id="Asia/Tokyo")
    page.goto(f"{console.url}/live/{revenue}")
    zone, cell = page.get_by_test_id("zone"), page.get_by_test_id("cell-window")
    expect(zone).to_have_text("Times in Asia/Tokyo")
    expect(cell).to_contain_text(re.compile("0?6:00 PM"))
    zone.click()
    expect(zone).to_have_text("Times in UTC")
    expect(cell).to_contain_text(re.compile("0?9:00 AM"))
    zone.click()
    expect(zone).to_have_text("Times in Asia/Tokyo")
    page.close()
