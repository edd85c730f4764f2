"""What users can set or call is documented, and what is documented exists."""

import re
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
import typer.main
from pyspark.sql import DataFrame, functions

import headwater as hw
from headwater.cli.main import cli
from headwater.config import Settings
from headwater.door.kafka.handlers import HANDLERS
from support import doctext

DOCS = Path(__file__).parent.parent / "docs"


def commands() -> list[str]:
    """Every command that is shown, as typed."""

    def below(command, path):
        if command.hidden:
            return []
        if hasattr(command, "commands"):
            return [each for name, sub in command.commands.items() for each in below(sub, [*path, name])]
        return [" ".join(path)]

    return below(typer.main.get_command(cli), ["headwater"])


@pytest.mark.parametrize("command", commands())
def test_every_command_is_documented(command):
    assert f"`{command}" in (DOCS / "commands.md").read_text()


def test_settings_are_documented_with_their_defaults():
    rows = re.findall(r"^\| `(\w+)` \| `(.*?)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE)

    documented = dict(rows)
    defaults = {name: str(value) for name, value in msgspec.structs.asdict(Settings()).items()}
    assert documented == defaults


def claims() -> dict[str, str]:
    """The rows of the table beside other queues, and the last cell of each."""
    table = (DOCS / "queues.md").read_text().partition("## Beside other queues")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    rows = [line.strip("| ").split(" | ") for line in lines[1:]]
    return {row[0]: row[-1] for row in rows}


@pytest.mark.parametrize("claim", claims())
def test_every_claim_beside_other_queues_names_a_test_that_exists(claim):
    (test,) = re.findall(r"`(test_\w+)`", claims()[claim])

    sources = (DOCS.parent / "tests").rglob("test_*.py")
    assert any(re.search(rf"^(async )?def {test}\(", source.read_text(), re.MULTILINE) for source in sources)


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=lambda h: h.request.api.name)
def test_every_request_that_is_served_is_documented(handler):
    assert handler.request.api.name in (DOCS / "log.md").read_text()


def test_the_example_of_clocks_declares_a_view():
    code = re.findall(r"^```python\n(.*?)^```", (DOCS / "clocks.md").read_text(), re.MULTILINE | re.DOTALL)
    app = hw.App("clocks")
    names = {"hw": hw, "app": app, "F": functions, "DataFrame": DataFrame, "datetime": datetime}
    exec("\n".join(code), names)  # noqa: S102

    assert set(app.graph().views) == {"taps_per_5_minutes"}


@pytest.mark.skipif(not hasattr(hw.App, "table"), reason="needs tables")
def test_the_examples_of_joins_declare_views():
    code = re.findall(r"^```python\n(.*?)^```", (DOCS / "joins.md").read_text(), re.MULTILINE | re.DOTALL)
    app = hw.App("shop")
    names = {"hw": hw, "app": app, "F": functions, "DataFrame": DataFrame, "datetime": datetime}
    exec("\n".join(code), names)  # noqa: S102

    assert {"orders_with_names", "customers_now", "by_name"} <= set(app.graph().views)


@pytest.mark.parametrize("page", doctext.pages(), ids=doctext.name)
def test_links_between_documents_lead_to_a_page_and_a_heading(page):
    for path, anchor in re.findall(r"\]\(([^)#: ]*)#?([^): ]*)\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in doctext.anchors(target), f"{page.name} links to {path}#{anchor}"


def test_every_page_of_docs_is_listed_in_the_readme():
    readme = (DOCS.parent / "README.md").read_text()

    assert not [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in readme]


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=doctext.name)
def test_a_page_begins_with_a_paragraph_and_not_with_a_list_or_a_block(page):
    heading, paragraph, *_ = page.read_text().split("\n\n")

    assert heading.startswith("# ")
    assert re.match(r"[A-Z`]", paragraph), paragraph[:80]
