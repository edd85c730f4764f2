"""Plan structure: a plan of Spark's as tables, which ``jvm/Structure.java`` writes in one call."""

import hashlib
from collections.abc import Container, Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec
from py4j.java_gateway import JavaClass

from headwater.decoders import from_json
from headwater.pipeline.definition.function_digest import fingerprint, unpickled

__all__ = ["Expression", "Node", "Structure", "structure"]


class Node(msgspec.Struct, frozen=True):
    """A node of a plan.

    Children are earlier rows of the same table; expressions in ``args`` are objects ``{"e": row}``.
    """

    kind: str
    streaming: bool
    output: list[tuple[int, str, str]]
    """Id, name and type of each column."""
    children: list[int]
    args: dict[str, Any]

    @property
    def ids(self) -> list[int]:
        return [number for number, _, _ in self.output]

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.output]


class Expression(msgspec.Struct, frozen=True):
    """A part of an expression.

    ``ref``: the id of the column that it refers to; ``id``: of the one that it makes.
    """

    kind: str
    args: dict[str, Any]
    ref: int | None = None
    variable: int | None = None
    id: int | None = None
    name: str = ""


class _Tables(msgspec.Struct, frozen=True):
    plans: list[Node]
    expressions: list[Expression]


class Structure:
    """The nodes and the expressions of a plan, each after its parts. The last node is the top."""

    def __init__(self, written: Any) -> None:
        self._written = written
        tables = from_json(written.text(), _Tables)
        self.nodes, self.expressions = tables.plans, tables.expressions
        self._functions: dict[int, str] = {}

    def function(self, number: int) -> str:
        """The digest of a Python function."""
        if number not in self._functions:
            lines = str(self._written.broadcasts(number)).splitlines()
            files = {int(broadcast): path for broadcast, _, path in (line.partition("\t") for line in lines)}
            self._functions[number] = _fingerprint(bytes(self._written.command(number)), files)
        return self._functions[number]

    def within(self, *values: Any) -> list[int]:
        """The rows of all expressions in some values, each after its parts."""
        inside, open_ = set[int](), [row for value in values for row in _rows(value)]
        while open_:
            row = open_.pop()
            if row not in inside:
                inside.add(row)
                open_ += self._parts[row]
        return sorted(inside)

    def refs(self, *values: Any) -> set[int]:
        """The ids of the columns that some values refer to."""
        return {ref for row in self.within(*values) if (ref := self.expressions[row].ref) is not None}

    def listed(self, items: list[Any], wanted: Container[int]) -> dict[int, Any]:
        """The expressions in a list that make wanted columns, by the ids of these columns."""
        parts = [(self.expressions[item["e"]], item) for item in items]
        ids = [(part.id if part.ref is None else part.ref, item) for part, item in parts]
        return {number: item for number, item in ids if number is not None and number in wanted}

    def definitions(self) -> dict[int, int]:
        """The nodes of common table expressions, by their numbers."""
        return {node.args["cte"]: at for at, node in enumerate(self.nodes) if node.kind == "CTERelationDef"}

    @cached_property
    def _parts(self) -> list[list[int]]:
        return [list(_rows(part.args)) for part in self.expressions]


def structure(plan: Any, records: str) -> Structure:
    """The structure of an analyzed plan, down to observations whose names begin with ``records``."""
    return Structure(JavaClass("headwater.Structure", plan._gateway_client).of(plan, records))  # noqa: SLF001


def _fingerprint(command: bytes, broadcasts: Mapping[int, str]) -> str:
    """The digest of a function; of its bytes if only workers can read it.

    Equal functions may have different bytes, but different functions never have equal ones.
    """
    try:
        return fingerprint(unpickled(command, broadcasts))
    except Exception:  # noqa: BLE001 (whatever the code of an application raises)
        return hashlib.sha256(command).hexdigest()


def _rows(value: Any) -> Iterator[int]:
    """The rows of the expressions in a value."""
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get("e"), int):
            yield value["e"]
        else:
            for item in value.values():
                yield from _rows(item)
    elif isinstance(value, list):
        for item in value:
            yield from _rows(item)
