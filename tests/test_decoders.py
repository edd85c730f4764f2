"""Values are decoded safely from any thread: msgspec crashes a process in which two threads decode the first values of a type at once."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/headwater"
DECODES = {"json": {"decode", "Decoder"}, "msgpack": {"decode", "Decoder"}}
PLAIN = {"str", "int"}
OWN = {"spark_types.py", "sql_table.py", "msgpack_types.py", "row_bytes.py", "decoders.py"}
"""Modules whose decoders are of types that they make for one use, or of plain ones."""

RACE = """
import sys, threading, types
import msgspec
from headwater.decoders import from_json, from_msgpack

sys.setswitchinterval(1e-6)
FIELDS = "".join(f"    f{n}: 'dict[str, list[int]]' = {{}}\\n" for n in range(30))
TEXT = f"import msgspec\\nclass In(msgspec.Struct):\\n{FIELDS}class Out(msgspec.Struct):\\n    a: In\\n    b: 'list[In]' = []\\n"
DATA = b'{"a":{"f0":{"x":[1]},"f29":{"x":[1]}},"b":[{"f29":{"y":[2]}}]}'

for number in range(ROUNDS):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec(TEXT, module.__dict__)
    gate = threading.Barrier(8)

    def first():
        gate.wait()
        DECODE

    threads = [threading.Thread(target=first) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


@pytest.mark.parametrize(
    ("decode", "survives"),
    [("from_json(DATA, module.Out)", True), ("msgspec.json.decode(DATA, type=module.Out)", False)],
)
def test_the_first_values_of_a_type_may_come_in_several_threads_at_once(decode, survives):
    """The second case shows that the first can fail; it crashes within a few of its rounds."""
    script = RACE.replace("DECODE", decode).replace("ROUNDS", "100" if survives else "2000")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode == 0) == survives, ended.stderr


def test_nothing_is_decoded_by_a_type_that_was_not_prepared_under_a_lock_or_at_import():
    wrong = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in SOURCE.rglob("*.py")
        if path.name not in OWN
        for line in unprepared(path)
    ]
    assert not wrong, "use headwater.decoders, or a decoder of the module: " + ", ".join(wrong)


def unprepared(path: Path) -> list[int]:
    """The lines of calls inside functions that decode by a type of their own."""
    tree = ast.parse(path.read_text())
    inside = [
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    ]
    return sorted({node.lineno for node in inside if isinstance(node, ast.Call) and decodes(node)})


def decodes(call: ast.Call) -> bool:
    called = call.func
    if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Attribute)):
        return False
    if called.attr not in DECODES.get(called.value.attr, ()):
        return False
    kinds = [each.value for each in call.keywords if each.arg == "type"] + (
        call.args[:1] if called.attr == "Decoder" else []
    )
    return any(ast.unparse(kind) not in PLAIN for kind in kinds)
