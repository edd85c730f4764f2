"""Term: an expression as what it is computed from, in a form that is the same whenever the computation is.

Columns are replaced by the terms that make them, down to the fields of streams, so that it does not matter how a query is cut into selects. The variables of
lambdas are numbered by their order, and Python functions are their fingerprints.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from headwater.pipeline.once import KEPT
from headwater.pipeline.structure import Expression, Structure

__all__ = ["FREE", "STEP_MAX", "Columns", "Term", "Terms", "term"]

TEXT_MAX = 600
STEP_MAX = 6000
SILENT = {"Alias", "AggregateExpression"}
"""Expressions whose text is that of the first thing in them."""


class Term(NamedTuple):
    """``digest`` tells terms apart. ``text`` is for people, and may be cut."""

    digest: str
    text: str


Columns = Mapping[int, Term]
"""What the columns of a node are, by their ids."""


def term(kind: str, *parts: Term, text: str | None = None, text_max: int = TEXT_MAX) -> Term:
    """A term that is made of others, in this order."""
    made = hashlib.sha256(" ".join([repr(kind), *(part.digest for part in parts)]).encode()).hexdigest()[:24]
    shown = text if text is not None else f"{kind.lower()}({', '.join(part.text for part in parts)})"
    return Term(made, shown if len(shown) <= text_max else f"{shown[:text_max]}… {made[:8]}")


FREE = term("kept")
"""Whether a row of a stream is one of a part of a union that reads once (``once.py``): filters of streams do not count."""
NULL = "null"


class Terms:
    """Makes terms of the expressions of one plan."""

    def __init__(self, structure: Structure, subqueries: Mapping[int, Term]) -> None:
        self._structure = structure
        self._subqueries = subqueries
        """What they are, by the node at their top."""
        self.conditions: list[Term] = []
        """The filters of streams in unions that read once."""

    def of(self, value: Any, columns: Columns) -> Term:
        """The term of an expression, or of anything that has some in it, where ``columns`` are those of the rows that it is computed from."""
        made: dict[int, Term] = {}
        variables: dict[int, int] = {}
        for row in self._structure.within(value):
            each = self._structure.expressions[row]
            if each.ref is not None:
                made[row] = columns.get(each.ref) or term(f"unknown {each.args['name']}")
            elif each.variable is not None:
                number = variables.setdefault(each.variable, len(variables) + 1)
                made[row] = term(f"x{number} {each.args['type']}", text=f"x{number}")
            else:
                made[row] = self._expression(each, made)
        return self._any(value, made)

    def conjuncts(self, condition: Any, columns: Columns) -> list[Term]:
        """The parts of a condition that must all be true."""
        found, open_ = [], [condition]
        while open_:
            part = open_.pop()
            each = self._structure.expressions[part["e"]]
            if each.kind == "And":
                open_ += [each.args["left"], each.args["right"]]
            else:
                found.append(self.of(part, columns))
        return found

    def aggregates(self, items: Iterable[Any], columns: Columns) -> list[Term]:
        """The aggregate functions in some expressions, each once, in the order in which Spark keeps their state."""
        found: dict[Term, None] = {}
        for item in items:
            for row in self._structure.within(item):
                if self._structure.expressions[row].kind in ("AggregateExpression", "PythonUDAF"):
                    found[self.of({"e": row}, columns)] = None
        return list(found)

    def _expression(self, each: Expression, made: Mapping[int, Term]) -> Term:
        if each.kind == "Literal":
            return _literal(each)
        if each.kind == "If":
            freed = self._freed(each, made)
            if freed is not None:
                return freed
        if each.kind == "Alias" and not each.args.get("session"):
            return made[each.args["child"]["e"]]
        parts = [
            term(name, self._any(value, made))
            for name, value in each.args.items()
            if name not in _names(each)
        ]
        shown = [self._shown(value, made) for value in each.args.values()]
        inside = ", ".join(text for text in shown if text)
        name = each.kind.lower()
        if "func" in each.args:
            name = f"python {self._structure.function(each.args['func']['function'])[:8]}"
        return term(each.kind, *parts, text=inside if each.kind in SILENT else f"{name}({inside})")

    def _freed(self, each: Expression, made: Mapping[int, Term]) -> Term | None:
        """What a column is that is computed only for rows of its part; whether a filter lets rows of a part through."""
        if made[each.args["predicate"]["e"]] != FREE:
            return None
        other = self._structure.expressions[each.args["falseValue"]["e"]]
        if other.kind == "Literal" and other.args["value"] is None:
            return made[each.args["trueValue"]["e"]]
        if other.kind == "Literal" and other.args["value"] == "false":
            self.conditions.append(made[each.args["trueValue"]["e"]])
            return FREE
        return None

    def flag(self, item: Any) -> bool:
        """Whether a column says that every row is one of its part."""
        each = self._structure.expressions[item["e"]]
        if each.kind != "Alias" or each.name != KEPT:
            return False
        child = self._structure.expressions[each.args["child"]["e"]]
        return bool(child.kind == "Literal" and child.args["value"] == "true")

    def _any(self, value: Any, made: Mapping[int, Term]) -> Term:
        match value:
            case {"e": int(row)} if len(value) == 1:
                return made[row]
            case {"function": int(number)} if len(value) == 1:
                return term(self._structure.function(number))
            case {"p": int(top)} if len(value) == 1:
                return self._subqueries[top]
            case dict():
                return term("{}", *(term(name, self._any(each, made)) for name, each in value.items()))
            case list():
                return term("[]", *(self._any(each, made) for each in value))
            case _:
                return term(msgspec.json.encode(value).decode())

    def _shown(self, value: Any, made: Mapping[int, Term]) -> str:
        """The expressions in a value, and types, as text."""
        match value:
            case {"e": int(row)} if len(value) == 1:
                return made[row].text
            case {"type": str(kind)} if len(value) == 1:
                return kind
            case {"kind": str(), "args": dict(args)}:
                return self._shown(list(args.values()), made)
            case list():
                return ", ".join(text for each in value if (text := self._shown(each, made)))
            case _:
                return ""


def _names(each: Expression) -> set[str]:
    """What of an expression does not count: how a Python function is called."""
    return {"name"} if "func" in each.args else set()


def _literal(each: Expression) -> Term:
    value = each.args["value"]
    shown = (
        NULL if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    )
    if each.args["type"] == "string" and value is not None:
        shown = repr(shown)
    return term(f"literal {each.args['type']} {msgspec.json.encode(value).decode()}", text=shown)
