"""The rooms of the package: who may import whom. ``tests/test_imports.py`` holds the source to it, and ARCHITECTURE.md shows it.

Every room may import the modules at the top of the package. ``EVERYTHING`` is for those that put parts together.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headwater"
TOP = "(top)"
EVERYTHING = ("*",)
BELOW = ("pipeline", "pipeline/spark", "pipeline/wire", "pipeline/arrow", "pipeline/time", "pipeline/state")
"""What all operators of a pipeline are built on."""

ROOMS: dict[str, tuple[str, ...]] = {
    TOP: (),
    "health": (),
    "declare": ("sketches",),
    "declare/query": ("declare",),
    "sketches": (),
    "protocol": (),
    "protocol/kafka": (),
    "client": (),
    "client/bulk": ("client", "protocol/kafka"),
    "client/share": ("client/bulk", "protocol/kafka"),
    "write": ("client", "declare"),
    "follow": ("client", "declare"),
    "door": (),
    "door/kafka": (
        "log",
        "log/storage",
        "log/groups",
        "log/shares",
        "log/transactions",
        "protocol/kafka",
        "queue",
    ),
    "door/kafka/listener": ("door/kafka", "log", "protocol/kafka"),
    "log": ("log/storage", "log/groups", "log/shares", "log/transactions"),
    "log/storage": (),
    "log/groups": ("log/storage",),
    "log/shares": ("log/storage", "queue"),
    "log/transactions": ("log/storage", "log/groups"),
    "capture": ("client",),
    "capture/loop": ("capture", "client", "client/bulk", "health"),
    "capture/reread": ("capture", "client"),
    "capture/postgres": ("capture", "capture/reread"),
    "capture/mariadb": ("capture", "capture/reread", "capture/mariadb/binlog"),
    "capture/mariadb/binlog": ("capture",),
    "capture/sqlite": ("capture", "capture/reread"),
    "pipeline": ("client", "declare", "declare/query"),
    "pipeline/spark": (),
    "pipeline/wire": ("declare", "pipeline", "pipeline/spark"),
    "pipeline/arrow": ("pipeline/wire",),
    "pipeline/time": ("client", "declare", "pipeline", "pipeline/spark"),
    "pipeline/state": ("pipeline", "pipeline/arrow", "pipeline/time"),
    "pipeline/operator": ("declare", *BELOW),
    "pipeline/windows": ("declare", *BELOW, "pipeline/operator"),
    "pipeline/tables": ("declare", *BELOW, "pipeline/operator"),
    "pipeline/asof": ("declare", *BELOW, "pipeline/operator"),
    "pipeline/interval": ("declare", *BELOW, "pipeline/operator"),
    "pipeline/output": ("declare", *BELOW, "pipeline/operator"),
    "pipeline/definition": ("declare", *BELOW, "pipeline/operator"),
    "pipeline/sql": ("declare", *BELOW, "pipeline/operator", "pipeline/tables", "pipeline/asof"),
    "pipeline/build": (
        "declare",
        "declare/query",
        "follow",
        *BELOW,
        "pipeline/operator",
        "pipeline/tables",
        "pipeline/asof",
        "pipeline/sql",
        "pipeline/output",
        "pipeline/definition",
    ),
    "pipeline/batch": ("declare", *BELOW, "pipeline/operator", "pipeline/build", "pipeline/batch/plain"),
    "pipeline/batch/plain": (
        "pipeline/operator",
        "declare",
        "pipeline/wire",
        "pipeline/tables",
        "pipeline/asof",
        "pipeline/build",
    ),
    "pipeline/engine": ("declare", *BELOW, "pipeline/operator", "pipeline/build", "pipeline/batch"),
    "pipeline/left_out": (
        "client",
        "declare",
        "follow",
        "pipeline",
        "pipeline/wire",
        "pipeline/build",
        "pipeline/engine",
    ),
    "pipeline/run": (
        "client",
        "client/bulk",
        "declare",
        "follow",
        "health",
        *BELOW,
        "pipeline/operator",
        "pipeline/output",
        "pipeline/definition",
        "pipeline/build",
        "pipeline/engine",
        "pipeline/left_out",
    ),
    "queue": (),
    "sink": ("client", "declare"),
    "sink/loop": ("client", "declare", "follow", "health", "sink"),
    "sink/stores": ("client", "sink"),
    "sink/effects": ("client", "sink"),
    "worker": ("client", "client/bulk", "client/share", "declare", "health", "write"),
    "view": ("follow", "health", "sketches", "view/tables"),
    "view/tables": ("client", "sink", "sketches"),
    "operate": (),
    "operate/log": (
        "client",
        "client/bulk",
        "declare",
        "follow",
        "write",
        "sink",
        "sink/loop",
        "sink/effects",
    ),
    "operate/queues": (
        "client",
        "client/bulk",
        "client/share",
        "operate/log",
        "queue",
        "worker",
        "write",
    ),
    "operate/machine": ("client", "declare", "pipeline", "pipeline/spark"),
    "operate/views": EVERYTHING,
    "node": EVERYTHING,
    "cli": EVERYTHING,
    "demo": EVERYTHING,
    "testing": EVERYTHING,
}


class Exemption(NamedTuple):
    """One module that may import what its room may not, and why."""

    module: str
    rooms: tuple[str, ...]
    reason: str


EXEMPTIONS = (
    Exemption(
        "", ("declare", "write", "follow", "worker"), "the package exports what an application file needs"
    ),
    Exemption("__main__", ("cli",), "`python -m headwater` is the command line"),
    Exemption(
        "capture",
        ("capture/mariadb", "capture/postgres", "capture/sqlite"),
        "`hw.capture` exports the declarations of all databases",
    ),
    Exemption("declare.app", ("capture", "sink"), "the types of what `app.capture` and `app.sink` take"),
    Exemption(
        "declare.app",
        ("pipeline/batch", "node"),
        "`app.batch`, `run`, `up` and `running` load what they need when they are called",
    ),
    Exemption(
        "declare.operators",
        ("pipeline/asof", "pipeline/interval", "pipeline/operator", "pipeline/tables", "pipeline/windows"),
        "each operator loads its room of the pipeline when it is called, on Spark",
    ),
    Exemption("declare.graph", ("declare/query",), "a graph has the queries of its views checked"),
    Exemption("declare.sketch", ("pipeline/build",), "the Bloom filter is built on Spark when it is called"),
    Exemption("operate.machine.keep_classes", ("testing",), "it runs a small application on the test kit"),
)


class Import(NamedTuple):
    """One module imports another."""

    module: str
    room: str
    imported: str
    imported_room: str


def modules() -> dict[str, Path]:
    """All modules by their name without the package's: ``log.broker``; a package by its own name."""
    return {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _name(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return "" if name == "__init__" else name.removesuffix(".__init__")


def room_of(path: Path) -> str:
    folder = path.relative_to(PACKAGE).parent.as_posix()
    return TOP if folder == "." else folder


def imports(path: Path, known: dict[str, Path]) -> Iterator[Import]:
    """What a module imports of the package, wherever in it the import is written."""
    for node in ast.walk(ast.parse(path.read_text())):
        for name in _imported(node, path):
            found = name if name in known else name.rpartition(".")[0]
            if found in known and known[found] != path:
                yield Import(_name(path), room_of(path), found, room_of(known[found]))


def _imported(node: ast.AST, path: Path) -> list[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path} has a relative import"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return []
    return [name.removeprefix("headwater.") for name in names if name.startswith("headwater.")]


def allowed(found: Import) -> bool:
    """Whether the table, or an exemption, allows an import."""
    if found.imported_room in {found.room, TOP} or found.imported == "":
        return True
    rooms = ROOMS.get(found.room, ())
    if rooms == EVERYTHING or found.imported_room in rooms:
        return True
    return any(found.module == each.module and found.imported_room in each.rooms for each in EXEMPTIONS)


# ---- the page ------------------------------------------------------------------------------------------

PAGE = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- rooms -->\n", "<!-- end of rooms -->\n"


def drawn() -> str:
    """The table of rooms for ARCHITECTURE.md: what each is for, how many modules it has, what it may import."""
    lines = ["| room | what is in it | may import |", "|---|---|---|"]
    for room, below in ROOMS.items():
        folder = PACKAGE if room == TOP else PACKAGE / room
        text = "Nouns that every stage uses: records, positions, changes, results, settings, formats, time, errors."
        if room != TOP:
            text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())).splitlines()[0]
        names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("__"))
        inside = f" <br> `{'` `'.join(names)}`" if names else ""
        lines.append(f"| `{room}` | {text}{inside} | {_below(below)} |")
    exempt = [
        f"- `{each.module or 'headwater'}` → {', '.join(each.rooms)}: {each.reason}" for each in EXEMPTIONS
    ]
    return "\n".join([*lines, "", "Exceptions, each for one module:", "", *exempt, ""])


def _below(rooms: tuple[str, ...]) -> str:
    if rooms == EVERYTHING:
        return "everything"
    return ", ".join(rooms)


def page(text: str) -> str:
    """ARCHITECTURE.md with the table as it is now."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + drawn() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    sys.stdout.write(f"{PAGE.name} has {len(ROOMS)} rooms\n")
