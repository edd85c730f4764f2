"""A newcomer: from an empty folder with pip to a row on the live page, by the lines of README and guide as they are.

Ports are others than in the pages, since theirs may be taken here; ``headwater demo`` has tests of its own.
"""

import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from headwater.pipeline.spark import jars
from pipeline.driver import JAVA
from support import doctext
from support.plainvenv import PlainVenv
from support.servers import free_port, wait_until
from view.test_page import ARGUMENTS

pytestmark = [pytest.mark.own_spark, pytest.mark.timeout(900)]

LINE_S = 300
NOT_HERE = {"headwater demo": "tests/crash/test_demo_kill.py runs it"}
UP = "headwater up"


def lines(page: str, *, first: int, count: int = 1) -> list[str]:
    """The lines of some shell blocks of a page."""
    blocks = [block for block in doctext.blocks(doctext.ROOT / page) if block.language == "sh"]
    return [line for block in blocks[first : first + count] for line in block.text.splitlines()]


class Terminal:
    """A shell in which lines are typed: where it is, and what runs in it."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self.environ = folder, environ
        self.up: subprocess.Popen[bytes] | None = None
        self.seconds: dict[str, float] = {}

    def type(self, line: str) -> str:
        """What a line prints; it ends well. ``cd`` stays, ``headwater up`` runs on."""
        command = line.partition("  #")[0].strip()
        typed = command.replace("localhost:8080", f"localhost:{self.environ['HEADWATER_CONSOLE_PORT']}")
        began = time.monotonic()
        if command.startswith("cd "):
            self.folder /= command.removeprefix("cd ")
            return ""
        if command.startswith(UP):
            with (self.folder / "up.txt").open("wb") as out:
                self.up = subprocess.Popen(
                    typed.split(), cwd=self.folder, env=self.environ, stdout=out, stderr=out
                )
            wait_until(self._is_up, LINE_S, f"the line of {command}")
            output = (self.folder / "up.txt").read_text()
        else:
            run = ["bash", "-euo", "pipefail", "-c", typed]
            done = subprocess.run(
                run,
                cwd=self.folder,
                env=self.environ,
                capture_output=True,
                text=True,
                check=False,
                timeout=LINE_S,
            )
            output = done.stdout + done.stderr
            assert done.returncode == 0, f"{command}: {output}"
        self.seconds[command] = time.monotonic() - began
        return output

    def _is_up(self) -> bool:
        said = (self.folder / "up.txt").read_text()
        assert self.up is not None
        assert self.up.poll() is None, said
        return "logs " in said

    def end(self) -> None:
        if self.up is not None:
            self.up.send_signal(signal.SIGTERM)
            assert self.up.wait(LINE_S) == 0


@pytest.fixture
def terminal(tmp_path):
    """An empty folder; a cache that has the jars which ``doctor --prepare`` would fetch."""
    environment = PlainVenv(tmp_path / "python")
    cache = tmp_path / "cache" / "headwater" / "jars"
    shutil.copytree(jars.cache(), cache)
    (tmp_path / "empty").mkdir()
    shell = Terminal(
        tmp_path / "empty",
        environment.environ()
        | {
            "HEADWATER_BROKER_PORT": str(free_port()),
            "HEADWATER_CONSOLE_PORT": str(free_port()),
            "HEADWATER_SPARK_MEMORY": "1g",
            "JAVA_TOOL_OPTIONS": JAVA,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
    )
    try:
        yield shell
        shell.end()
    finally:
        if shell.up is not None:
            shell.up.kill()
        for large in ("python", "cache"):
            shutil.rmtree(tmp_path / large)


def is_there(terminal: Terminal, line: str, wanted: str) -> bool:
    """Whether a line prints something, as one who types it again would see it."""
    return wanted in terminal.type(line)


def test_from_an_empty_folder_to_a_row_on_the_live_page(terminal, capsys):
    began = time.monotonic()
    begin, application, second = (lines("README.md", first=number) for number in range(3))
    guide = lines("docs/guide.md", first=0)
    typed = {line.partition("  #")[0].strip() for line in begin}
    assert [line for line in guide if line not in typed] == ["headwater graph app.py"]
    for line in begin:
        if not any(line.startswith(other) for other in NOT_HERE):
            terminal.type(line)
    graph, up = application
    assert "revenue" in terminal.type(graph)
    assert up.startswith(f"{UP} app.py")
    produce, rows, status, curl = second
    assert produce in lines("docs/guide.md", first=2, count=2)

    terminal.type(produce)
    wait_until(lambda: is_there(terminal, rows, '"revenue":9.5'), LINE_S, "the row of the view")
    seconds = time.monotonic() - began
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page()
        page.goto(f"http://localhost:{terminal.environ['HEADWATER_CONSOLE_PORT']}/live/revenue")
        expect(page.get_by_test_id("cell-revenue").first).to_have_text("9.5")
        expect(page.get_by_test_id("connection")).to_have_text("Live")
        browser.close()
    assert "view revenue" in terminal.type(status)
    assert '"revenue":9.5' in terminal.type(curl)
    assert not (Path(terminal.environ["PATH"].partition(":")[0]) / "pytest").exists()
    for line in lines("docs/guide.md", first=1):
        terminal.type(line)
    with capsys.disabled():
        slowest = max(terminal.seconds, key=lambda line: terminal.seconds[line])
        print(f"\n{seconds:.0f} s to a row on the page; {slowest}: {terminal.seconds[slowest]:.0f} s")  # noqa: T201
