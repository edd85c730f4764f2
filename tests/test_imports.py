"""The rooms of the package keep their order: each imports only what ``tests/rooms.py`` says."""

import ast
import re
from pathlib import Path

import pytest

import rooms
from rooms import EVERYTHING, EXEMPTIONS, PACKAGE, ROOMS, TOP, Import, allowed, imports, modules, room_of

MODULES = modules()
MODULES_MAX = 20
LINES_MAX = 400
FUNCTION_LINES_MAX = 60


@pytest.mark.parametrize("path", MODULES.values(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_room_may(path):
    assert [found for found in imports(path, MODULES) if not allowed(found)] == []


def test_the_table_names_every_room_and_no_other():
    assert set(ROOMS) == {room_of(path) for path in MODULES.values()}


def test_the_table_has_no_cycle():
    done: list[str] = []
    left = {room: set(below) for room, below in ROOMS.items() if below != EVERYTHING}
    while left:
        ready = sorted(room for room, below in left.items() if below <= set(done))
        assert ready, f"rooms that import each other, or one that may import everything: {left}"
        done += ready
        for room in ready:
            del left[room]


def test_no_permission_of_the_table_is_unused():
    """`BELOW` is one line for all operators; what else a room may import, one of its modules does."""
    used = {
        (found.room, found.imported_room) for path in MODULES.values() for found in imports(path, MODULES)
    }
    given = {
        (room, to)
        for room, below in ROOMS.items()
        for to in below
        if to not in (*rooms.BELOW, "*", "declare")
    }
    assert sorted(given - used) == []


def test_every_exemption_is_needed_and_has_a_reason():
    for each in EXEMPTIONS:
        path = MODULES[each.module]
        used = {found.imported_room for found in imports(path, MODULES)}
        assert set(each.rooms) <= used, each
        assert not set(each.rooms) & set(ROOMS[room_of(path)]), each
        assert each.reason


@pytest.mark.parametrize(
    "planted",
    [
        Import("log.storage.segment", "log/storage", "log.broker", "log"),
        Import("pipeline.tables.join", "pipeline/tables", "pipeline.asof.enrich", "pipeline/asof"),
        Import("clock", TOP, "client.client", "client"),
        Import("sink.stores.redis", "sink/stores", "sink.loop.loop", "sink/loop"),
        Import("declare.graph", "declare", "pipeline.batch.batch", "pipeline/batch"),
    ],
)
def test_the_table_refuses_a_planted_import(planted):
    assert not allowed(planted)


def test_no_room_is_too_large():
    counts = dict.fromkeys(ROOMS, 0)
    for name, path in MODULES.items():
        counts[room_of(path)] += path.name != "__init__.py" and name != "__main__"
    assert {room: count for room, count in counts.items() if count > MODULES_MAX} == {}


def test_every_room_says_what_it_is_for():
    for room in ROOMS:
        if room != TOP:
            tree = ast.parse((PACKAGE / room / "__init__.py").read_text())
            assert ast.get_docstring(tree), room


def test_the_architecture_page_shows_the_table():
    text = rooms.PAGE.read_text()
    assert rooms.page(text) == text, "run: make rooms-page"


def test_the_walk_of_a_record_names_files_that_exist_and_each_once():
    walk = rooms.PAGE.read_text().partition("## How a record travels")[2].partition("## Rooms")[0]
    flow, _, questions = walk.partition("| where is")
    files = re.findall(r"`([\w/]+\.py)`", flow)
    assert len(files) == len(set(files))
    named = [*files, *re.findall(r"`([\w/]+\.py)`", questions)]
    assert [name for name in named if not (PACKAGE / name).exists()] == []


def test_no_module_and_no_function_is_too_long():
    assert long_modules() == {}
    assert long_functions() == {}


def long_modules() -> dict[str, int]:
    return {
        str(path.relative_to(PACKAGE)): count
        for path in MODULES.values()
        if (count := len(path.read_text().splitlines())) > LINES_MAX
    }


def long_functions() -> dict[str, int]:
    found = {}
    for path in MODULES.values():
        for node in ast.walk(ast.parse(Path(path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found[f"{path.relative_to(PACKAGE)}:{node.name}"] = lines
    return found
