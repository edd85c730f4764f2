"""Term: an expression in a form that is equal for equal computations.

Columns are replaced by the terms that make them, down to the fields of streams, so that it does not matter
how a query is divided into selects. Variables of lambdas are numbered by their order, and Python functions
are replaced by their digests.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headwater.pipeline.definition.plan_structure import Expression, Structure
from headwater.pipeline.operator.shared_scan import KEPT

__all__ = ["FREE", "STEP_MAX", "Columns", "Term", "Terms", "term"]

TEXT_MAX = 600
STEP_MAX = 6000
SILENT = {"Alias", "AggregateExpression"}
"""Expressions whose text is that of their first part."""


class Term(NamedTuple):
    """``digest`` identifies a term. ``text`` is for people, and may be cut."""

    digest: str
    text: str


Columns = Mapping[int, Term]
"""The terms of a node's columns, by id."""


def term(kind: str, *parts: Term, text: str | None = None, text_max: int = TEXT_MAX) -> Term:
    """A term with parts, in this order."""
    digest = hashlib.sha256(" ".join([repr(kind), *(part.digest for part in parts)]).encode()).hexdigest()[
        :24
    ]
    shown = text if text is not None else f"{kind.lower()}({', '.join(part.text for part in parts)})"
    return Term(digest, shown if len(shown) <= text_max else f"{shown[:text_max]}… {digest[:8]}")


FREE = term("kept")
"""The flag of a part of a union that reads once (``operator/shared_scan.py``): its filters do not count."""
NULL = "null"


class Terms:
    """Makes the terms of one plan's expressions."""

    def __init__(self, structure: Structure, subqueries: Mapping[int, Term]) -> None:
        self._structure = structure
        self._subqueries = subqueries
        """Their terms, by the node at their top."""
        self.conditions: list[Term] = []
        """The filters of streams in unions that read once."""

    def of(self, value: Any, columns: Columns) -> Term:
        """The term of an expression, or of a value that contains some.

        ``columns``: those of its input rows.
        """
        terms: dict[int, Term] = {}
        variables: dict[int, int] = {}
        for row in self._structure.within(value):
            part = self._structure.expressions[row]
            if part.ref is not None:
                terms[row] = columns.get(part.ref) or term(f"unknown {part.args['name']}")
            elif part.variable is not None:
                number = variables.setdefault(part.variable, len(variables) + 1)
                terms[row] = term(f"x{number} {part.args['type']}", text=f"x{number}")
            else:
                terms[row] = self._expression(part, terms)
        return self._any(value, terms)

    def conjuncts(self, condition: Any, columns: Columns) -> list[Term]:
        """The parts of a condition that must all be true."""
        terms, open_ = [], [condition]
        while open_:
            item = open_.pop()
            part = self._structure.expressions[item["e"]]
            if part.kind == "And":
                open_ += [part.args["left"], part.args["right"]]
            else:
                terms.append(self.of(item, columns))
        return terms

    def aggregates(self, items: Iterable[Any], columns: Columns) -> list[Term]:
        """The aggregate functions in some expressions, each once, in the order in which Spark stores them."""
        functions: dict[Term, None] = {}
        for item in items:
            for row in self._structure.within(item):
                if self._structure.expressions[row].kind in ("AggregateExpression", "PythonUDAF"):
                    functions[self.of({"e": row}, columns)] = None
        return list(functions)

    def _expression(self, part: Expression, terms: Mapping[int, Term]) -> Term:
        if part.kind == "Literal":
            return _literal(part)
        if part.kind == "If":
            freed = self._freed(part, terms)
            if freed is not None:
                return freed
        if part.kind == "Alias" and not part.args.get("session"):
            return terms[part.args["child"]["e"]]
        parts = [
            term(name, self._any(value, terms))
            for name, value in part.args.items()
            if name not in _names(part)
        ]
        shown = [self._shown(value, terms) for value in part.args.values()]
        inside = ", ".join(text for text in shown if text)
        name = part.kind.lower()
        if "func" in part.args:
            name = f"python {self._structure.function(part.args['func']['function'])[:8]}"
        return term(part.kind, *parts, text=inside if part.kind in SILENT else f"{name}({inside})")

    def _freed(self, part: Expression, terms: Mapping[int, Term]) -> Term | None:
        """The term of a column that is computed only for rows of a part of a union, or of a filter there."""
        if terms[part.args["predicate"]["e"]] != FREE:
            return None
        other = self._structure.expressions[part.args["falseValue"]["e"]]
        if other.kind == "Literal" and other.args["value"] is None:
            return terms[part.args["trueValue"]["e"]]
        if other.kind == "Literal" and other.args["value"] == "false":
            self.conditions.append(terms[part.args["trueValue"]["e"]])
            return FREE
        return None

    def flag(self, item: Any) -> bool:
        """Whether a column flags every row as one of its part."""
        part = self._structure.expressions[item["e"]]
        if part.kind != "Alias" or part.name != KEPT:
            return False
        child = self._structure.expressions[part.args["child"]["e"]]
        return bool(child.kind == "Literal" and child.args["value"] == "true")

    def _any(self, value: Any, terms: Mapping[int, Term]) -> Term:
        match value:
            case {"e": int(row)} if len(value) == 1:
                return terms[row]
            case {"function": int(number)} if len(value) == 1:
                return term(self._structure.function(number))
            case {"p": int(top)} if len(value) == 1:
                return self._subqueries[top]
            case dict():
                return term("{}", *(term(name, self._any(inner, terms)) for name, inner in value.items()))
            case list():
                return term("[]", *(self._any(inner, terms) for inner in value))
            case _:
                return term(msgspec.json.encode(value).decode())

    def _shown(self, value: Any, terms: Mapping[int, Term]) -> str:
        """The expressions and types in a value, as text."""
        match value:
            case {"e": int(row)} if len(value) == 1:
                return terms[row].text
            case {"type": str(kind)} if len(value) == 1:
                return kind
            case {"kind": str(), "args": dict(args)}:
                return self._shown(list(args.values()), terms)
            case list():
                return ", ".join(text for inner in value if (text := self._shown(inner, terms)))
            case _:
                return ""


def _names(part: Expression) -> set[str]:
    """Arguments of an expression that do not count: the name of a Python function."""
    return {"name"} if "func" in part.args else set()


def _literal(part: Expression) -> Term:
    value = part.args["value"]
    shown = (
        NULL if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    )
    if part.args["type"] == "string" and value is not None:
        shown = repr(shown)
    return term(f"literal {part.args['type']} {msgspec.json.encode(value).decode()}", text=shown)
