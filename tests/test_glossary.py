"""docs/glossary.md defines the words that are used in a special sense, and no others."""

import re

import pytest

from support import doctext

PAGE = doctext.ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \| \[.+?\]\(.+?\) \|$", re.MULTILINE)
DEFINED = dict(ROW.findall(PAGE.read_text()))
REQUIRED = """
account, capture, census, chain, changelog, claim, complete, correction, dead letter, definition, delay, effect, failed record,
fenced, generation, horizon, idle, invalid record, journal, late record, ledger, lineage, log, origin, position, real-time view,
rebuild, result, retract, revision, run, segment, settlement, shadow, shard, shed, sink, spill, straggler, stream, swap, table, tick,
tombstone, version, view, watermark, weight
"""


@pytest.mark.parametrize("word", REQUIRED.replace("\n", " ").split(","))
def test_a_word_with_a_special_sense_is_defined(word):
    assert word.strip() in DEFINED


def test_words_are_in_order_and_defined_once():
    words = ROW.findall(PAGE.read_text())

    assert [word for word, *_ in words] == sorted(DEFINED, key=str.casefold)
    assert len(words) == PAGE.read_text().count("\n| **")


def used() -> str:
    """All text in which a word of the glossary may be used: source, and documents other than the glossary."""
    sources = (doctext.ROOT / "src").rglob("*.py")
    pages = (page for page in doctext.pages() if page != PAGE)
    return "\n".join(file.read_text().casefold() for file in [*sources, *pages])


def test_every_word_is_used_in_the_source_or_the_documents():
    text = used()

    unused = [word for word in DEFINED if not re.search(rf"\b{re.escape(word.casefold())}", text)]
    assert not unused
