"""Canonical form of a plan: what the state of a view depends on.

It has for each node the terms of the columns that are used (``demand.py``, ``term.py``), the rows, and the
state of each step. Rows of a stream stay, so a filter only decides which rows count from now on. Rows of a
table are retracted through the same filter that has accepted them: there it belongs to the definition.

An unknown kind of node is treated as a step that keeps all of its input.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headwater.pipeline.definition.demand import THROUGH, demand, places
from headwater.pipeline.definition.plan_structure import Node, Structure
from headwater.pipeline.definition.term import FREE, STEP_MAX, Columns, Term, Terms, term
from headwater.pipeline.operator.weights import INTO
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["Canonical", "Rows", "canonical"]

FUNCTIONS = {"MapInArrow", "MapInPandas"}
SIDES = ("left", "right")
SHARD = "_shard"
"""The shard of a row: the number of shards is compared separately."""
OWN = {"_valid", "_split", "_file"}
"""Our columns, used only by our own filters: for invalid records, late ones, and notes of shards."""


class Rows(NamedTuple):
    """The rows that a node emits."""

    base: Term
    weighted: bool = False
    """Whether they may be retracted."""
    conditions: tuple[Term, ...] = ()
    """The filters that they have passed, in no order; only for rows that may be retracted."""

    @property
    def term(self) -> Term:
        texts = [condition.text for condition in self.conditions]
        text = f"{self.base.text} where {' and '.join(texts)}" if texts else self.base.text
        return term("rows", self.base, *sorted(self.conditions), text=text)


class Canonical(NamedTuple):
    """A plan in canonical form."""

    columns: dict[str, Term]
    """The term of each column of the view."""
    rows: Rows
    steps: list[Term]
    """Each step that keeps state, inputs first."""
    reads: list[str]
    """The streams in the order in which they are read: Spark's checkpoint identifies them by it."""
    filters: list[Term]
    """The filters of streams."""


def canonical(structure: Structure, specs: Mapping[str, str], records: str, observed: str) -> Canonical:
    """The canonical form of a plan.

    ``specs``: our operators by name. ``records`` and ``observed``: the prefixes of the names of observations,
    of inputs and of operators.
    """
    return _Walk(structure, specs, records, observed).walk()


class _Walk:
    """Walks a plan from the bottom up. Each node adds its rows and returns the terms of its used columns."""

    def __init__(self, structure: Structure, specs: Mapping[str, str], records: str, observed: str) -> None:
        self._structure, self._nodes = structure, structure.nodes
        self._specs, self._records, self._observed = specs, records, observed
        self._wanted = demand(structure)
        self._definitions = structure.definitions()
        self._operators = self._observations()
        self._inside = self._of_subqueries()
        self._subqueries: dict[int, Term] = {}
        self._terms = Terms(structure, self._subqueries)
        self._columns: list[Columns] = []
        self._rows: list[Rows] = []
        self._steps: dict[Term, int] = {}
        self._reads: list[str] = []
        self._filters: list[Term] = []
        self._kinds: dict[str, Callable[[int, Node], Columns]] = {
            **dict.fromkeys(THROUGH, self._through),
            **dict.fromkeys(FUNCTIONS, self._function),
            "Aggregate": self._aggregate,
            "CTERelationRef": self._reference,
            "CollectMetrics": self._observation,
            "Deduplicate": self._duplicates,
            "DeduplicateWithinWatermark": self._duplicates,
            "Expand": self._expand,
            "Filter": self._filter,
            "Generate": self._generate,
            "Join": self._join,
            "Project": self._project,
            "Union": self._union,
        }

    def walk(self) -> Canonical:
        for at, node in enumerate(self._nodes):
            usual = self._other if node.children else self._leaf
            self._columns.append(self._kinds.get(node.kind, usual)(at, node))
            self._subqueries[at] = term("subquery", self._rows[at].term, *self._columns[at].values())
        columns = {name: self._columns[-1][number] for number, name, _ in self._nodes[-1].output}
        filters = [*self._filters, *self._terms.conditions]
        return Canonical(columns, self._rows[-1], list(self._steps), self._reads, filters)

    def _observations(self) -> dict[int, str]:
        """The nodes of our operators, and their names."""
        names = ((str(node.args.get("name", "")), node.children) for node in self._nodes)
        return {
            child: name.removeprefix(self._observed)
            for name, children in names
            if name.startswith(self._observed)
            for child in children
        }

    def _of_subqueries(self) -> set[int]:
        """The nodes of subqueries: all of their filters belong to the definition."""
        open_, outside = [len(self._nodes) - 1], set[int]()
        while open_:
            at = open_.pop()
            outside.add(at)
            open_ += self._nodes[at].children
            if self._nodes[at].kind == "CTERelationRef":
                open_.append(self._definitions[self._nodes[at].args["cte"]])
        return set(range(len(self._nodes))) - outside

    # ---- row by row ------------------------------------------------------------------------------------

    def _through(self, at: int, node: Node) -> Columns:
        return self._moved(at, node, node.children[0])

    def _reference(self, at: int, node: Node) -> Columns:
        return self._moved(at, node, self._definitions[node.args["cte"]])

    def _moved(self, at: int, node: Node, child: int) -> Columns:
        """The columns of a child under their ids in this node."""
        self._rows.append(self._rows[child])
        ids = self._nodes[child].ids
        return {node.ids[n]: self._columns[child][ids[n]] for n in places(node, self._wanted[at])}

    def _observation(self, at: int, node: Node) -> Columns:
        return self._through(at, node) if node.children else self._stream(node)

    def _stream(self, node: Node) -> Columns:
        stream = node.args["name"].removeprefix(self._records)
        self._reads.append(stream)
        self._rows.append(Rows(term("records", term(stream), text=stream)))
        return {
            number: term("field", *map(term, (stream, name, kind)), text=f"{stream}.{name}")
            for number, name, kind in node.output
        }

    def _leaf(self, at: int, node: Node) -> Columns:
        """Rows that are not from an input of the application: ticks, and tables that Spark reads."""
        data = self._terms.of(node.args, {})
        self._rows.append(Rows(term(node.kind, data, text=node.kind), weighted=at in self._inside))
        return {
            number: term("column", *map(term, (node.kind, name, kind)), data, text=name)
            for number, name, kind in node.output
        }

    def _project(self, at: int, node: Node) -> Columns:
        rows = self._rows[node.children[0]]
        self._rows.append(rows)
        columns, items = self._below(node), self._structure.listed(node.args["projectList"], self._wanted[at])
        return {
            number: FREE if self._terms.flag(item) and not rows.weighted else self._terms.of(item, columns)
            for number, item in items.items()
        }

    def _below(self, node: Node) -> dict[int, Term]:
        return {number: column for child in node.children for number, column in self._columns[child].items()}

    def _filter(self, at: int, node: Node) -> Columns:  # noqa: ARG002 (one of ``_kinds``)
        columns = self._below(node)
        rows = self._rows[node.children[0]]
        parts = map(self._structure.expressions.__getitem__, self._structure.within(node.args["condition"]))
        names = {part.args["name"] for part in parts if part.ref is not None}
        if names & OWN:
            self._rows.append(rows)
            return columns
        conditions = self._terms.conjuncts(node.args["condition"], columns)
        if rows.weighted:
            rows = rows._replace(conditions=tuple(sorted({*rows.conditions, *conditions})))
        else:
            self._filters += conditions
        self._rows.append(rows)
        return columns

    def _generate(self, at: int, node: Node) -> Columns:  # noqa: ARG002
        columns = self._below(node)
        rows = self._rows[node.children[0]]
        generator = self._terms.of(node.args["generator"], columns)
        generator = term("outer", generator) if node.args["outer"] else generator
        if rows.weighted:
            text = f"{rows.term.text} with {generator.text}"
            rows = Rows(term("generate", rows.term, generator, text=text), weighted=True)
        self._rows.append(rows)
        outputs = [self._structure.expressions[item["e"]].ref for item in node.args["generatorOutput"]]
        return {
            **columns,
            **{ref or 0: term(f"part {n}", generator, text=generator.text) for n, ref in enumerate(outputs)},
        }

    def _expand(self, at: int, node: Node) -> Columns:
        columns = self._below(node)
        self._rows.append(self._rows[node.children[0]])
        return {
            node.ids[n]: _either(
                "either", (self._terms.of(part[n], columns) for part in node.args["projections"])
            )
            for n in places(node, self._wanted[at])
        }

    def _union(self, at: int, node: Node) -> Columns:
        rows = [self._rows[child] for child in node.children]
        base = term("union", *(part.term for part in rows))
        self._rows.append(Rows(base, any(part.weighted for part in rows)))
        return {
            node.ids[n]: _either(
                "union", (self._columns[child][self._nodes[child].ids[n]] for child in node.children)
            )
            for n in places(node, self._wanted[at])
        }

    # ---- steps with state ------------------------------------------------------------------------------

    def _aggregate(self, at: int, node: Node) -> Columns:
        """Spark keeps the values of the grouping, and the aggregates that are used, in their order."""
        columns = self._below(node)
        used = self._structure.listed(node.args["aggregateExpressions"], self._wanted[at])
        groups = [self._terms.of(item, columns) for item in node.args["groupingExpressions"]]
        functions = self._terms.aggregates(used.values(), columns)
        shown = [", ".join(part.text for part in parts) for parts in (functions, groups)]
        text = f"Aggregate of {shown[0]} by {shown[1]}"
        step = self._step(
            node,
            term(node.kind, term("by", *groups), term("of", *functions), text=text, text_max=STEP_MAX),
        )
        results = {}
        for number, item in used.items():
            value = self._terms.of(item, columns)
            plain = not self._terms.aggregates([item], columns)
            results[number] = value if plain else term("aggregated", step, value, text=value.text)
        return results

    def _duplicates(self, at: int, node: Node) -> Columns:  # noqa: ARG002
        columns = self._below(node)
        self._step(node, term(node.kind, *(self._terms.of(key, columns) for key in node.args["keys"])))
        return columns

    def _join(self, at: int, node: Node) -> Columns:
        """Of two streams Spark keeps the rows of both, with the columns that are used, in their order.

        Else nothing.
        """
        kept = all(self._nodes[child].streaming for child in node.children)
        used = [
            [number for number in self._nodes[child].ids if number in self._wanted[child]]
            for child in node.children
        ]
        columns = self._below(node)
        condition = [self._terms.of(part, columns) for part in node.args["condition"]]
        kind = self._terms.of(node.args["joinType"], {})
        sides = [
            term("side", *(self._columns[child][number] for number in ids if kept))
            for child, ids in zip(node.children, used, strict=True)
        ]
        conditions = " ".join(part.text for part in condition)
        text = f"join on {conditions} of {', '.join(side.text for side in sides)}"
        step = self._step(node, term("Join", kind, *sides, *condition, text=text))
        return {
            number: term(side, step, self._columns[child][number], text=self._columns[child][number].text)
            for side, child, ids in zip(SIDES, node.children, used, strict=True)
            for number in ids
            if number in self._wanted[at]
        }

    def _function(self, at: int, node: Node) -> Columns:
        """A function of the view over many rows, or one of our operators."""
        if at in self._operators and not INTO.isdisjoint(self._nodes[node.children[0]].names):
            return self._operator(node, self._operators[at])
        self._rows.append(self._rows[node.children[0]])
        whole = self._whole(node)
        return {number: term(name, whole, text=f"{whole.text}.{name}") for number, name, _ in node.output}

    def _operator(self, node: Node, name: str) -> Columns:
        """One of our operators: it gets all columns, and may keep any."""
        (child,) = node.children
        inputs = [
            term(name, column, text=f"{name} = {column.text}")
            for number, name, _ in self._nodes[child].output
            if name != SHARD
            for column in [self._columns[child][number]]
        ]
        rows = self._rows[child].term
        texts = ", ".join(column.text for column in inputs)
        text = f"{name}: {self._specs.get(name, '')} of {rows.text}: {texts}"
        step = term(
            "operator",
            term(name),
            term(self._specs.get(name, "")),
            rows,
            *inputs,
            text=text,
            text_max=STEP_MAX,
        )
        self._keep(step)
        self._rows.append(Rows(term("rows of", term(name), text=name), WEIGHT in node.names))
        return {
            number: term(column, term(name), text=f"{name}.{column}") for number, column, _ in node.output
        }

    def _other(self, at: int, node: Node) -> Columns:  # noqa: ARG002
        step = self._step(node, self._whole(node))
        return {number: term(f"{n}", step) for n, number in enumerate(node.ids)}

    def _whole(self, node: Node) -> Term:
        """A node with all of its inputs."""
        columns = self._below(node)
        inputs = [columns[number] for child in node.children for number in self._nodes[child].ids]
        own = [term(name, self._terms.of(value, columns)) for name, value in node.args.items()]
        kinds = [term(f"{name} {kind}") for _, name, kind in node.output]
        text = f"{node.kind}({', '.join(column.text for column in inputs)})"
        return term(node.kind, *own, *kinds, *inputs, text=text)

    def _step(self, node: Node, step: Term) -> Term:
        """Adds a step of Spark's. Terms of its results have its number, so that a change is reported once."""
        rows = [self._rows[child] for child in node.children]
        number = self._keep(
            term("step", step, *(part.term for part in rows), text=step.text, text_max=STEP_MAX)
        )
        result = term(f"step {number}", text=f"{node.kind.lower()} {number}")
        weighted = any(part.weighted for part in rows)
        self._rows.append(Rows(term("rows of", result, text=result.text), weighted))
        return result

    def _keep(self, step: Term) -> int:
        return self._steps.setdefault(step, len(self._steps) + 1)


def _either(kind: str, terms: Iterable[Term]) -> Term:
    """A column that is one term in some rows and another in others."""
    first, *others = terms
    return first if all(other == first for other in others) else term(kind, first, *others)
