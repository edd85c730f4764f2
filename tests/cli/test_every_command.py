"""Every command of the tree, with a name that nothing has and with paths of a wrong kind: one line, and not 0.

The tree itself says which arguments there are, so a new command is tried without a line here.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from headwater.cli.main import cli
from support.commandline import Outcome, headwater

APP = """
from datetime import datetime
import headwater as hw
app = hw.App("shop")
class Order(hw.Event):
    order_id: int
    at: datetime
app.stream("orders", Order, key="order_id", time="at")
app.sql("all_orders", "SELECT order_id FROM orders", key="order_id")
"""
NOSUCH = "nosuch"
FILLED = {
    "app": "app.py",
    "url": "backup",
    "--at-least": "0~orders:0=1",
    "--into": "other",
    "--shards": "2",
    "--to": "earliest",
    "--topic": NOSUCH,
}
"""What is right about a command whose name, or whose path, is wrong."""
NEW_NAMES = {"topic create", "produce"}
"""Commands that make what they name."""
WRONG_FILES = ["nosuch.py", "folder", "notes.txt", "notes.txt/app.py", "bytes.py", "latin.py", "empty.py"]
WRONG_FOLDERS = ["notes.txt", "notes.txt/data"]
OF_A_FOLDER = {"init": "folder", "demo": "data", "broker": "data"}


def commands(command=None, path=()) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    """Every command that help shows, with the words that call it."""
    command = command or typer.main.get_command(cli)
    if not isinstance(command, typer.core.TyperGroup):
        yield " ".join(path), command
        return
    for word, inner in command.commands.items():
        if not inner.hidden:
            yield from commands(inner, (*path, word))


def is_path(parameter) -> bool:
    return parameter.type_descriptor.annotation is Path or parameter.name == "app"


def is_name(parameter) -> bool:
    is_argument = parameter.param_type_name == "argument"
    return is_argument and not is_path(parameter) and parameter.name not in {"url", "key"}


def line(words: str, command: typer.core.TyperCommand, wrong: dict[str, str]) -> list[str]:
    """A command line with these wrong arguments, and whatever else the command needs."""
    arguments = words.split()
    for parameter in command.params:
        name = parameter.opts[0]
        text = wrong.get(parameter.name, FILLED.get(name) if parameter.required else None)
        if text is not None:
            arguments += [text] if parameter.param_type_name == "argument" else [name, text]
        assert text is not None or not parameter.required, f"{words} needs {name}: add it to FILLED"
    return arguments


TREE = dict(commands())
NAMED = [words for words, command in TREE.items() if any(map(is_name, command.params))]
FILES = [
    (words, file)
    for words, command in TREE.items()
    for parameter in command.params
    if parameter.name == "app" and parameter.param_type_name == "argument"
    for file in WRONG_FILES
]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "notes.txt").write_text("milk, bread\n")
    (tmp_path / "bytes.py").write_bytes(b"\0\1\2")
    (tmp_path / "latin.py").write_bytes("größe = 1".encode("latin-1"))
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "folder").mkdir()
    return tmp_path


def check_refused(outcome: Outcome) -> None:
    assert outcome.code != 0, outcome
    assert "Traceback" not in outcome.stderr
    (only,) = outcome.stderr.splitlines()
    assert only.startswith("headwater: ")


@pytest.mark.parametrize("words", [words for words in NAMED if words not in NEW_NAMES])
def test_a_name_that_nothing_has_is_refused(capsys, folder, bootstrap, words):
    host, _, port = bootstrap.rpartition(":")
    settings = {"HEADWATER_HOST": host, "HEADWATER_BROKER_PORT": port, "HEADWATER_LOG": f"embedded:{folder}"}
    command = TREE[words]
    names = {parameter.name: NOSUCH for parameter in command.params if is_name(parameter)}
    outcome = headwater(capsys, folder, *line(words, command, names), **settings)
    check_refused(outcome)
    assert NOSUCH in outcome.stderr


@pytest.mark.parametrize(("words", "file"), FILES)
def test_a_file_that_is_no_application_is_refused(capsys, folder, words, file):
    command = TREE[words]
    names = {
        parameter.name: NOSUCH for parameter in command.params if is_name(parameter) and parameter.required
    }
    check_refused(headwater(capsys, folder, *line(words, command, names | {"app": file})))
    assert not (folder / "data").exists()


@pytest.mark.parametrize("path", WRONG_FOLDERS)
@pytest.mark.parametrize("words", OF_A_FOLDER)
def test_a_file_in_place_of_a_folder_is_refused(capsys, folder, words, path):
    check_refused(headwater(capsys, folder, *line(words, TREE[words], {OF_A_FOLDER[words]: path})))
    assert (folder / "notes.txt").read_text() == "milk, bread\n"


def test_every_path_of_a_command_is_tried():
    """A command with a path that is neither an application nor in ``OF_A_FOLDER`` has no case above."""
    tried = {(words, "app") for words, _ in FILES} | set(OF_A_FOLDER.items())
    paths = {
        (words, parameter.name)
        for words, command in TREE.items()
        for parameter in command.params
        if is_path(parameter) and not parameter.hidden
    }
    assert paths == tried


def test_preparing_begins_once_the_application_is_right(capsys, folder):
    """What ``--prepare`` would print comes after the check of the file."""
    outcome = headwater(capsys, folder, "doctor", "--prepare", "nosuch.py")
    check_refused(outcome)
    assert outcome.stdout == ""
