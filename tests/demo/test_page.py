"""The demo as a visitor sees it: a page whose numbers move by themselves, and a verdict at the end."""

import re
import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from support.demoprocess import DemoProcess

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHANGE_MS = 240_000


@pytest.fixture
def page():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser.new_page()
        browser.close()


@pytest.mark.timeout(1600)
@pytest.mark.spark
@pytest.mark.own_spark
def test_a_number_on_the_page_changes_without_reloading_and_the_demo_ends_with_every_number_right(
    page, tmp_path
):
    with DemoProcess(tmp_path / "demo", seconds=20) as demo:
        demo.wait_for_rows("page_views_per_minute", 1)
        loads = []
        page.on("load", lambda _: loads.append(page.url))
        page.goto(f"{demo.url}/live/page_views_per_minute")
        first = page.inner_text("body")
        page.wait_for_function("text => document.body.innerText !== text", arg=first, timeout=CHANGE_MS)
        assert re.findall(r"\d+", page.inner_text("body")) != re.findall(r"\d+", first)
        assert len(loads) == 1
        page.goto(demo.url)
        expect(page.locator("body")).to_contain_text("requests_per_second")
        assert demo.wait_for_end(900) == 0, demo.said()
        assert "All right" in demo.said()
        assert demo.parts() == []
