"""A newcomer's application: what ``headwater init`` writes is what README and guide show, and passes its checks."""

import pytest

from headwater.cli.new_application import APP, TEST
from support import doctext
from support.commandline import complaint, headwater


def test_init_writes_an_application_that_can_be_drawn_and_a_test(capsys, tmp_path):
    outcome = headwater(capsys, tmp_path, "init", "shop")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines() == [
        "wrote shop/app.py and shop/test_app.py; next:",
        "  headwater graph shop/app.py",
        "  pip install pytest && pytest shop/test_app.py",
        "  headwater up shop/app.py",
    ]
    assert (tmp_path / "shop" / "test_app.py").read_text() == TEST
    drawn = headwater(capsys, tmp_path, "graph", "shop/app.py")
    assert (drawn.code, drawn.stderr) == (0, "")
    assert "revenue" in drawn.stdout


def test_init_overwrites_nothing(capsys, tmp_path):
    (tmp_path / "app.py").write_text("mine")
    assert "app.py exists already" in complaint(headwater(capsys, tmp_path, "init"))
    assert (tmp_path / "app.py").read_text() == "mine"
    assert not (tmp_path / "test_app.py").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_first_example_of_a_page_is_that_application(page):
    blocks = doctext.blocks(doctext.ROOT / page)
    assert next(block.text for block in blocks if block.language == "python").strip() == APP.strip()


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_a_page_begins_with_pip_and_names_no_make(page):
    first = next(block for block in doctext.blocks(doctext.ROOT / page) if block.language == "sh")
    assert first.text.startswith("pip install headwater\n")
    assert "make" not in first.text


def test_the_version_and_the_completion_are_there(capsys, tmp_path):
    assert headwater(capsys, tmp_path, "--version").stdout.startswith("headwater ")
    assert "--install-completion" in headwater(capsys, tmp_path, "--help").stdout
