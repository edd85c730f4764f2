"""docs/workers.md: its example runs, and the tests that it names exist."""

import re
from datetime import datetime
from pathlib import Path

from headwater.declare.spec import WorkerOptions
from headwater.worker.letter import FACTS, PREFIX
from support.servers import wait_until
from worker.running import read, running

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "workers.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_sends_its_mails_and_its_requests_get_replies(own_broker, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    host, _, port = own_broker.bootstrap.rpartition(":")
    monkeypatch.setenv("HEADWATER_LOG", f"kafka://{host}:{port}")
    monkeypatch.setenv("HEADWATER_VIEW_TABLES", f"sqlite:{tmp_path}/views")
    names = {}
    declared, tested, written, asked = BLOCKS
    exec(declared, names)  # noqa: S102
    exec(tested, names)  # noqa: S102
    exec(asked.partition("with hw.Requester")[0], names)  # noqa: S102
    app = names["app"]
    with (
        running(own_broker.bootstrap, app, "send") as send,
        running(own_broker.bootstrap, app, "receipts"),
    ):
        exec(written, names)  # noqa: S102
        exec("with hw.Requester" + asked.partition("with hw.Requester")[2], names)  # noqa: S102
        assert names["receipt"].address == "ada@example.org"
        wait_until(lambda: send.counts.handled == 2)
    assert "to bob@example.org: urgent" in capsys.readouterr().out
    assert len(read(own_broker.bootstrap, "sent")) == 2
    assert datetime.now().year < 2030, "the mail of that morning waits"  # noqa: DTZ005


def test_the_headers_of_a_letter_are_those_that_the_page_lists():
    listed = set(re.findall(r"`headwater-letter-(\w+)`|`-(\w+)`", PAGE))
    assert {first or second for first, second in listed} == set(FACTS)
    assert PREFIX == "headwater-letter-"


def test_the_tests_that_the_page_names_exist():
    named = re.findall(r"`(\w+(?:/\w+)*\.py)::(test_\w+)`", PAGE)
    assert len(named) >= 8
    assert not [
        (file, test)
        for file, test in named
        if not re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE)
    ]


def test_the_options_of_a_worker_are_on_the_page():
    options = WorkerOptions.__annotations__
    assert not [name for name in options if f"{name}=" not in PAGE and f"`{name}`" not in PAGE]
