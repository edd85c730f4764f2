"""Command lines of documents, hints and help texts, checked against the real command tree; nothing is run."""

import ast
import re
import shlex
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer.main

from headwater.cli.main import cli

PROGRAMS = {
    "bin/headwater",
    "curl",
    "deploy/cluster",
    "echo",
    "headwater",
    "kcat",
    "make",
    "pip",
    "python",
    "sudo",
}
"""What a command of a block begins with; other lines of a block without a language are output or drawings."""
REDIRECTIONS = {"<", ">", ">>", "<<<"}
TOKEN = re.compile(
    r"""\s*(?:(?P<comment>\#.*)
      |(?P<operator>[|&;<>()]+)
      |(?P<word>(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"|&;<>()\\])+))""",
    re.VERBOSE,
)
ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
HINT = re.compile(r"(?<!import )(?<!from )(?<![\w./-])headwater ([a-z][^`;,()\"\n]*)")
WORD = "X"
"""Written in place of a value that is only known when the program runs."""


class Operator(NamedTuple):
    """What a shell does not take for a word: a pipe, a redirection, an end."""

    text: str


@cache
def root() -> Any:
    """The command tree as typer builds it."""
    return typer.main.get_command(cli)


def line_faults(line: str) -> list[str]:
    """What is wrong with a line as it is pasted into a shell."""
    line = line.strip().removeprefix("$ ")
    faults = []
    while inner := SUBSTITUTION.search(line):
        faults += line_faults(inner[1])
        line = line[: inner.start()] + WORD + line[inner.end() :]
    try:
        tokens = _tokens(line)
    except ValueError as error:
        return [*faults, f"the shell cannot read this: {error}: {line}"]
    if Operator("&") in tokens[:-1]:
        faults.append(f"the shell ends the command at the unquoted &: {line}")
    for command in _commands(tokens):
        if command[0].rpartition("/")[2] == "headwater":
            faults += command_faults(command[1:])
    return faults


def is_command(line: str) -> bool:
    """Whether a line of a block is something to type."""
    line = line.strip()
    if line.startswith("$ "):
        return True
    first = next((word for word in line.split() if not ASSIGNMENT.fullmatch(word)), line)
    return first in PROGRAMS or (ASSIGNMENT.match(line) is not None and "$(" in line)


def _tokens(line: str) -> list[Operator | str]:
    """The words of a line without their quotes, and the operators between them."""
    tokens: list[Operator | str] = []
    at = 0
    while rest := line[at:].strip():
        found = TOKEN.match(line, at)
        if found is None:
            raise ValueError(f"no closing quotation at {rest}")
        at = found.end()
        if found["operator"]:
            tokens.append(Operator(found["operator"]))
        elif found["word"]:
            tokens += shlex.split(found["word"], comments=False)
    return tokens


def _commands(tokens: list[Operator | str]) -> Iterator[list[str]]:
    """The simple commands of a line, without assignments and redirections."""
    command: list[str] = []
    skip = False
    for token in [*tokens, Operator(";")]:
        if skip:
            skip = False
        elif isinstance(token, Operator):
            skip = token.text in REDIRECTIONS
            if not skip and command:
                yield command
                command = []
        elif command or not ASSIGNMENT.fullmatch(token):
            command.append(token)


def command_faults(words: list[str]) -> list[str]:
    """What the command line would complain about: commands, options, values, and arguments that are missing."""
    try:
        command, rest = _found(words)
        if hasattr(command, "commands"):
            raise LookupError("it lacks a command below")
        command.make_context(command.name, rest)
    except (typer.exceptions.TyperException, LookupError) as error:
        return [f"headwater {shlex.join(words)}: {getattr(error, 'message', error)}"]
    except typer.Exit:
        return []
    return []


def _found(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words name, and the words after it."""
    command = root()
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        if name not in command.commands:
            raise LookupError(f"there is no command {name!r}")
        command = command.commands[name]
    return command, rest


def mention_faults(text: str, *, closed: bool) -> list[str]:
    """What is wrong with a command that a sentence mentions: `headwater view check`, or one with arguments.

    A mention is the name of a command, perhaps with options, or has all that the command requires. With ``closed`` the
    text ends where the command does; otherwise prose may follow.
    """
    words = text.replace("[", " ").replace("]", " ").split()
    try:
        command, rest = _found(words[1:])
    except LookupError as error:
        return [f"{text}: {error}"]
    if hasattr(command, "commands") or not rest:
        return []
    options = {option: each for each in command.params for option in each.opts if option.startswith("-")}
    given = [word.partition("=")[0].rstrip(".:'") for word in rest if re.match(r"--[a-z]|-[a-z]$", word)]
    faults = [
        f"{text}: {command.name} has no option {word}" for word in given if word not in {*options, "--help"}
    ]
    if faults:
        return faults
    required = [each for each in command.params if each.required]
    lacking = [each.opts[0] for each in required if each.opts[0] in options and each.opts[0] not in given]
    values = sum(not options[word].is_flag for word in given if word in options)
    positional = len(rest) - len(given) - values
    arguments = [each for each in required if each.opts[0] not in options]
    if positional == 0:
        return []
    if positional < len(arguments):
        lacking.append(f"{len(arguments) - positional} of its arguments")
    if lacking:
        return [f"{text}: lacks {', '.join(lacking)}"]
    most = sum(
        each.nargs if each.nargs > 0 else len(rest) for each in command.params if each.opts[0] not in options
    )
    return [f"{text}: has too many arguments"] if closed and positional > most else []


def targets(makefile: Path) -> set[str]:
    """What ``make`` can be asked for."""
    return set(re.findall(r"^([a-z][a-z-]*):", makefile.read_text(), re.MULTILINE))


def made(path: Path, known: Collection[str]) -> Iterator[tuple[int, str]]:
    """The targets of make that a module says to a user: in any string but docstrings, which are for its readers."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    notes = {id(part.value) for body in bodies for part in body if isinstance(part, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            for target in re.findall(r"\bmake ([a-z][a-z-]*)", node.value):
                if target in known:
                    yield node.lineno, target


def hints(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Commands that the strings of a source file name, or the lines of another file: the line, the text, and whether a mark ends the command."""
    if path.suffix != ".py":
        for line, text in enumerate(path.read_text().splitlines(), 1):
            yield from _hints_of(line, text)
        return
    nodes = list(ast.walk(ast.parse(path.read_text())))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield from _hints_of(node.lineno, "".join(map(_part, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield from _hints_of(node.lineno, node.value)


def _part(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else WORD


def _hints_of(line: int, text: str) -> Iterator[tuple[int, str, bool]]:
    for hint in HINT.finditer(text):
        after = text[hint.end() : hint.end() + 1]
        yield line, hint[0].strip().rstrip(".'"), after == "`"


def shown(command: Any = None, path: str = "headwater") -> Iterator[tuple[str, str]]:
    """The examples that ``--help`` shows, with the command that shows them."""
    command = command or root()
    for example in re.findall(r"\[cyan\](.*?)\[/cyan\]", command.epilog or ""):
        yield path, example
    for name, below in getattr(command, "commands", {}).items():
        yield from shown(below, f"{path} {name}")
