"""What documents, hints and help texts give a user to type is understood by the installed program."""

from pathlib import Path

import pytest

from support import commandlines, doctext, pythoncode

SOURCES = sorted(
    [
        *(doctext.ROOT / "src" / "headwater").rglob("*.py"),
        *(path for path in (doctext.ROOT / "deploy").iterdir() if path.is_file()),
    ]
)
PAGES = [pytest.param(page, id=doctext.name(page)) for page in doctext.pages()]
NO_COMMANDS = {
    "headwater sink X": "the name under which a PostgreSQL shows the connection of a sink",
}


def shell_faults(page: Path) -> list[str]:
    """What a shell or the command line would refuse of a page."""
    faults = []
    for block in doctext.blocks(page):
        if block.language in {"", "sh", "console"}:
            lines = block.text.replace("\\\n", " ").splitlines()
            found = [
                fault
                for line in lines
                if commandlines.is_command(line)
                for fault in commandlines.line_faults(line)
            ]
            faults += [f"{block.place}: {fault}" for fault in found]
    for span in doctext.spans(page):
        if span.text.startswith("headwater "):
            faults += [
                f"{span.place}: {fault}" for fault in commandlines.mention_faults(span.text, closed=True)
            ]
    return faults


def python_faults(page: Path) -> list[str]:
    """What Python, or Headwater, would refuse of a page."""
    code = pythoncode.Code()
    faults = []
    for block in doctext.blocks(page):
        if block.language == "python":
            faults += [f"{block.place}: {fault}" for fault in code.faults(block.text)]
    for span in doctext.spans(page):
        if span.text.startswith(("hw.", "headwater.")):
            faults += [f"{span.place}: {fault}" for fault in pythoncode.mention_faults(span.text)]
    return faults


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_can_be_typed(page):
    assert not shell_faults(page)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_of_a_page_fits_the_package(page):
    assert not python_faults(page)


def test_every_command_that_a_hint_names_exists():
    faults = [
        f"{doctext.name(source)}:{line}: {fault}"
        for source in SOURCES
        for line, text, closed in commandlines.hints(source)
        if text not in NO_COMMANDS
        for fault in commandlines.mention_faults(text, closed=closed)
    ]

    assert not faults


def test_no_message_to_a_user_names_make():
    """Who has Headwater by pip has no Makefile."""
    known = commandlines.targets(doctext.ROOT / "Makefile")
    modules = [path for path in SOURCES if path.suffix == ".py"]
    assert {"setup", "demo", "test"} <= known
    assert not [(doctext.name(path), *found) for path in modules for found in commandlines.made(path, known)]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('hint = "run make setup"', ["setup"]),
        ('hint = f"{what}: make demo or make test"', ["demo", "test"]),
        ('"""Drawn by make setup."""\nhint = "make it a view"', []),
    ],
)
def test_a_planted_target_of_make_is_found(tmp_path, source, found):
    module = tmp_path / "module.py"
    module.write_text(f"{source}\n")
    assert [name for _, name in commandlines.made(module, {"setup", "demo", "test"})] == found


def test_every_example_of_help_can_be_typed():
    faults = [
        f"{path} --help: {fault}"
        for path, example in commandlines.shown()
        for fault in commandlines.line_faults(example)
    ]

    assert not faults


PLANTED = {
    "an option that produce does not have": "headwater produce orders --key 1 '{}'",
    "a command that does not exist": "headwater topic config orders max.message.bytes=1",
    "an unquoted &": "curl localhost:8080/views/revenue?country=DE&limit=10",
    "a required argument that is missing": "headwater view check revenue",
    "a required option that is missing": "headwater wait revenue",
    "a description after the arguments": "headwater graph app.py    what feeds what",
    "a quote that is not closed": "headwater produce orders < 'a",
    "a fault inside a substitution": 'headwater wait revenue --at-least "$(headwater produced orders)"',
    "a fault after a pipe": "echo 1 | headwater produce",
    "a value that is not a number": "headwater view scale revenue --shards many",
}


@pytest.mark.parametrize("line", PLANTED.values(), ids=PLANTED)
def test_a_planted_fault_in_a_block_is_found(tmp_path, line):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```\n{line}\n```\n")

    assert len(shell_faults(page)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "headwater up app.py &",
        "curl 'localhost:8080/views/revenue?country=DE&limit=10' | head -3",
        "POSITION=$(headwater produce orders --position < orders.txt)",
        "echo '1:{\"a\": 1}' | headwater produce orders --key-separator :   # a comment & more",
        "echo '1|{}' | headwater produce orders --key-separator '|'",
        "the output of a command & a drawing",
    ],
)
def test_what_can_be_typed_passes(tmp_path, line):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```\n{line}\n```\n")

    assert not shell_faults(page)


@pytest.mark.parametrize(
    ("span", "faults"),
    [
        ("headwater view check", 0),
        ("headwater view check NAME app.py --plain", 0),
        ("headwater ledger orders revenue.postgres", 0),
        ("headwater view check NAME", 1),
        ("headwater view reset NAME now", 1),
        ("headwater view rows NAME --jsonl", 1),
        ("headwater topics", 1),
    ],
)
def test_a_mention_is_the_name_of_a_command_or_a_whole_command(tmp_path, span, faults):
    page = tmp_path / "page.md"
    page.write_text(f"Say `{span}` and wait.\n")

    assert len(shell_faults(page)) == faults


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        ('f"headwater topic config {name} max.message.bytes=…"', 1),
        ('f"start it again: headwater view rebuild {view}"', 1),
        ('f"`headwater view rebuild {view} APP` builds it again"', 0),
        ('"headwater topic list shows what there is"', 0),
        ('f"headwater view reset {view} --accept-los"', 1),
        ('"import headwater as hw"', 0),
    ],
)
def test_a_planted_hint_is_found(tmp_path, source, faults):
    module = tmp_path / "module.py"
    module.write_text(f"hint = {source}\n")

    found = [
        f
        for _, text, closed in commandlines.hints(module)
        for f in commandlines.mention_faults(text, closed=closed)
    ]
    assert len(found) == faults


WRONG_PYTHON = {
    "a keyword that does not exist": 'hw.distinct(clicks, "id", time="at", inside="1 hour")',
    "a name that does not exist": "hw.joined(orders, customers)",
    "a name of a stage that does not exist": 'hw.sink.Mongo("db")',
    "a method that an application does not have": 'app.topic("orders", Order)',
    "a keyword that a method does not have": 'app.stream("orders", Order, key="id", lateness="1 hour")',
    "a positional argument too many": 'hw.late.correct("1 day", "2 days")',
    "a module that is not imported": "headwater.testing.broker()",
    "a module that does not exist": "import headwater.tests",
    "a name that its module does not have": "from headwater.testing import brokers",
    "a decorator alone": "@app.view(key='id')",
    "a method of what a block made": "with hw.Writer() as w:\n    w.sendall(1)",
}


@pytest.mark.parametrize("source", WRONG_PYTHON.values(), ids=WRONG_PYTHON)
def test_a_planted_fault_in_python_is_found(tmp_path, source):
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```python\n{source}\n```\n")

    assert len(python_faults(page)) == 1


@pytest.mark.parametrize(
    ("span", "faults"),
    [
        ('hw.late.correct("1 day")', 0),
        ("hw.enrich(as_of=)", 0),
        ("hw.late.correct(...)", 0),
        ("hw.sink.Postgres(url, history=True)", 0),
        ("hw.corrected()", 1),
        ("hw.enrich(as_off=)", 1),
    ],
)
def test_python_in_a_sentence_is_checked(tmp_path, span, faults):
    page = tmp_path / "page.md"
    page.write_text(f"Say `{span}` and wait.\n")

    assert len(python_faults(page)) == faults
