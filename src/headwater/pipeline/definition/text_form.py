"""Text form: the form of definitions before ``canonical.py``, from the texts that Spark makes of its plans.

It ignores much: the second input of a join, the results of explode, the code of Python functions, filters of
tables. Only results without the newer form are compared by it, and only once: the next result has the newer
parts.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headwater.declare.graph import Graph
from headwater.declare.spec import View
from headwater.pipeline.spark import catalyst

__all__ = ["KEEPING", "parts", "publication"]

NUMBERS = re.compile(r"#\d+L?|@[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=\]), \d+$")
"""What Spark numbers differently each time: columns, objects, watermarks, observations."""
PASSING = re.compile(r"StreamingRelation|CollectMetrics|_shard\b")
"""The source and the shard of records are recorded elsewhere; observations change nothing."""
KEEPING = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsWithState",
    "Join",
    "MapInArrow",
    "SessionWindow",
    "TransformWithState",
}
"""Steps that keep state from batch to batch; ours are functions over Arrow."""
BETWEEN = "\x1f"
COLUMN = re.compile(r"#(\d+)")
ALIAS = re.compile(r".* AS (?P<name>.*)#(?P<id>\d+)L?(-T\d+ms)?", re.DOTALL)
"""How Spark writes a column that is computed from others. One text replaces a call for each column."""
FIELDS_MAX = 1000
LOOKS_LIKE_NULL = re.compile(
    r"if \(\(StartsWith\((cast\(.+? as string\)), \[\) AND .*? else (?=\1, \[null\]\))", re.DOTALL
)
LOOKS_LIKE_ARRAY = re.compile(
    r"if \(\(+cast\(.+? as string\) = \[null\]\) OR .*? else (?=coalesce\(cast\(.+? as string\), \[null\]\))",
    re.DOTALL,
)
"""Conditions that newer versions add to a key of one text; for nearly all keys the result is the same."""


def parts(view: View, graph: Graph, plan: Any, specs: Mapping[str, str]) -> dict[str, str]:
    """The parts of a view, by name."""
    streams = graph.inputs(view).values()
    steps = [*dict.fromkeys(_steps(plan)), *(f"{name}: {spec}" for name, spec in specs.items())]
    return {
        "sources": ", ".join(sorted(stream.pattern or stream.topic for stream in streams)),
        "key": ", ".join(view.key),
        "publication": publication(view),
        "steps": "; ".join(steps),
    }


def publication(view: View) -> str:
    """How the rows of a view are published."""
    if view.append:
        return "append"
    return view.emit if view.forget is None else f"{view.emit}, forget"


def _steps(plan: Any) -> Iterator[str]:
    """Each step that keeps state, and the expressions of the columns that it uses; inputs first."""
    origins = {
        alias["id"]: {alias["id"]: text}
        for node in catalyst.find(plan, {"Project"})
        for text in _texts(node.projectList())
        if (alias := ALIAS.fullmatch(text)) and not PASSING.fullmatch(alias["name"])
    }
    for node in catalyst.find(plan, {"Expand"}):
        parts = [_texts(part) for part in catalyst.items(node.projections())]
        for output, *sources in zip(_texts(node.output()), *parts, strict=True):
            (column,) = COLUMN.findall(output)[-1:]
            origins[column] = {
                number: text
                for source in sources
                for below in COLUMN.findall(source)
                for number, text in origins.get(below, {}).items()
            }
    for node in reversed(catalyst.find(plan, KEEPING)):
        used = COLUMN.findall(str(node.references().toSeq().mkString(BETWEEN)))
        seen: dict[str, str] = {}
        while used:
            for number, text in origins.get(used.pop(), {}).items():
                if number not in seen:
                    seen[number] = _plain(text)
                    used += COLUMN.findall(text)
        yield from sorted(seen.values())
        yield _plain(node.simpleString(FIELDS_MAX)).lstrip("~")  # Spark's mark of streams


def _texts(sequence: Any) -> list[str]:
    return str(sequence.mkString(BETWEEN)).split(BETWEEN)


def _plain(text: str) -> str:
    plain = NUMBERS.sub("", text).strip()
    return LOOKS_LIKE_ARRAY.sub("", LOOKS_LIKE_NULL.sub("", plain))
