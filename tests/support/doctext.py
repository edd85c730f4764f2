"""The documents of this repository, cut into blocks of code, code spans and prose."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^\s*```(\w*)\s*$")
SPAN = re.compile(r"`([^`\n]+)`")


class Piece(NamedTuple):
    """Some text of a page: a block of code with its language, or a code span, with the line where it begins."""

    place: str
    language: str
    text: str


def pages() -> list[Path]:
    """Every document that says how things are; a changelog says how they were."""
    return sorted(
        {
            *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),
            *ROOT.glob("docs/**/*.md"),
            *ROOT.glob("examples/**/*.md"),
            *ROOT.glob("deploy/**/*.md"),
            *ROOT.glob("src/**/*.md"),
        }
    )


def name(page: Path) -> str:
    """A page as errors and test ids name it."""
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


def anchors(page: Path) -> set[str]:
    """What a link to a part of a page may name: its headings, as GitHub spells them, and marks in its text."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    spelled = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return spelled | set(re.findall(r'<a id="(.+?)">', text))


def blocks(page: Path) -> Iterator[Piece]:
    """The fenced blocks of a page; an empty language is one that the page does not give."""
    begin, language, lines = 0, "", []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if (fence := FENCE.match(line)) is None:
            lines.append(line)
        elif begin:
            yield Piece(f"{name(page)}:{begin}", language, "\n".join(lines))
            begin = 0
        else:
            begin, language, lines = number, fence[1], []


def spans(page: Path) -> Iterator[Piece]:
    """The code spans of a page, outside of its blocks."""
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            for span in SPAN.findall(line):
                yield Piece(f"{name(page)}:{number}", "", span)
