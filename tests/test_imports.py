"""Stages meet through topics, not imports: each imports only the top-level nouns and itself."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "headwater"
STAGES = {"capture", "ingest", "kafka", "log", "model", "operate", "pipeline", "queue", "sink", "view"}
ALLOWED = {("kafka", "log"), ("kafka", "queue")}
ROOTS = {
    "app.py",
    "node.py",
    "cli.py",
    "cli_capture.py",
    "cli_log.py",
    "cli_sink.py",
    "cli_view.py",
    "operators.py",
    "relations.py",
    "sketch.py",
}
"""Modules that put stages together, or are the door to one."""


def imported_stages(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} has a relative import"
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("headwater.")} & STAGES
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_stage_imports_no_other_stage(path):
    inside = path.relative_to(PACKAGE).parts
    here = inside[0] if len(inside) > 1 else None
    imports = imported_stages(path)
    if here in STAGES and here != "operate":
        assert {stage for stage in imports if stage != here and (here, stage) not in ALLOWED} == set()
    elif here is None and path.name not in ROOTS:
        assert imports == set()
