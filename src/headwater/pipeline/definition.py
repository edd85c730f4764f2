"""Definition: what a view is made of, as its results keep it, so that a changed view does not go on with state that means something else.

What the state depends on is kept as text, in parts: sources, key, publication, and every step that keeps something, with the
expressions behind the columns that it uses. A view may go on as long as these are the same. All else, a filter or a column that is
only passed on, may change: from that batch on, and the result says so.
"""

import hashlib
import re
from collections.abc import Iterator
from os.path import commonprefix
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.pipeline import catalyst
from headwater.pipeline.operator import Site

__all__ = ["Definition", "check", "define"]

NUMBERS = re.compile(r"#\d+L?|@[0-9a-f]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=\]), \d+$")
"""What Spark numbers anew each time: columns, objects, watermarks, observations."""
PASSING = re.compile(r"StreamingRelation|CollectMetrics|_shard\b")
"""Where records come from, and which shard they go to, is said elsewhere; what is observed changes nothing."""
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
"""Steps that keep something from batch to batch; ours are functions over Arrow."""
BETWEEN = "\x1f"
COLUMN = re.compile(r"#(\d+)")
ALIAS = re.compile(r".* AS (?P<name>.*)#(?P<id>\d+)L?(-T\d+ms)?", re.DOTALL)
"""How Spark writes a column that is made of others. What it says at once in a text, it would say in a call for each column."""
FIELDS_MAX = 1000
SHOWN_MAX = 160
BEFORE_MAX = 40


class Definition(msgspec.Struct, frozen=True):
    """``digest`` changes with anything, ``parts`` with what the state depends on."""

    digest: str
    parts: dict[str, str]


def define(view: View, graph: Graph, frame: DataFrame, site: Site) -> Definition:
    """The definition of a view whose plan is ``frame``."""
    plan = catalyst.plan(frame)
    streams = graph.inputs(view).values()
    settings = (view.key, view.late, view.forget, view.latency, view.emit, view.append)
    delays = [(stream.name, stream.delay, stream.idle) for stream in streams]
    parts = {
        "sources": ", ".join(sorted(stream.pattern or stream.topic for stream in streams)),
        "key": ", ".join(view.key),
        "publication": _publication(view),
        "steps": "; ".join(
            [*dict.fromkeys(_steps(plan)), *(f"{name}: {spec}" for name, spec in site.specs.items())]
        ),
    }
    lines = [line for line in plan.toString().splitlines() if not PASSING.search(line)]
    whole = [*map(_plain, lines), repr((settings, delays, parts))]
    return Definition(hashlib.sha256("\n".join(whole).encode()).hexdigest()[:16], parts)


def check(view: str, before: dict[str, str], now: dict[str, str]) -> None:
    """Raises UsageError when a view cannot go on with the state that it has; results of an earlier version say nothing of it."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    if changed:
        old, new = before[changed[0]], now[changed[0]]
        raise UsageError(
            f"view {view!r} cannot go on: its {' and '.join(changed)} changed, and its state was made by the old ones",
            got=_difference(old, new),
            expected=_difference(new, old),
            hint=f"make it anew from the log, while readers keep the old rows: headwater view rebuild {view} APP",
        )


def _publication(view: View) -> str:
    if view.append:
        return "append"
    return view.emit if view.forget is None else f"{view.emit}, forget"


def _steps(plan: Any) -> Iterator[str]:
    """Each step that keeps something, and what stands behind the columns that it uses; inputs first."""
    made = {
        alias["id"]: {alias["id"]: text}
        for node in catalyst.find(plan, {"Project"})
        for text in _texts(node.projectList())
        if (alias := ALIAS.fullmatch(text)) and not PASSING.fullmatch(alias["name"])
    }
    for node in catalyst.find(plan, {"Expand"}):
        parts = [_texts(part) for part in catalyst.items(node.projections())]
        for each, *behind in zip(_texts(node.output()), *parts, strict=True):
            (column,) = COLUMN.findall(each)[-1:]
            made[column] = {
                number: text
                for of in behind
                for below in COLUMN.findall(of)
                for number, text in made.get(below, {}).items()
            }
    for node in reversed(catalyst.find(plan, KEEPING)):
        used = COLUMN.findall(str(node.references().toSeq().mkString(BETWEEN)))
        seen: dict[str, str] = {}
        while used:
            for number, text in made.get(used.pop(), {}).items():
                if number not in seen:
                    seen[number] = _plain(text)
                    used += COLUMN.findall(text)
        yield from sorted(seen.values())
        yield _plain(node.simpleString(FIELDS_MAX)).lstrip("~")  # Spark's mark of streams


def _texts(sequence: Any) -> list[str]:
    return str(sequence.mkString(BETWEEN)).split(BETWEEN)


def _plain(text: str) -> str:
    return NUMBERS.sub("", text).strip()


def _difference(other: str, text: str) -> str:
    """What a part has and the other one has not: the last such step, from where on it differs, cut to what can be read."""
    theirs = [step for step in other.split("; ") if step not in text.split("; ")]
    own = [step for step in text.split("; ") if step not in other.split("; ")]
    if not own:
        return "nothing"
    same = len(commonprefix([own[-1], theirs[-1]])) if theirs else 0  # noqa: RUF071 (letter by letter)
    start = max(same - BEFORE_MAX, 0)
    shown = own[-1][start : start + SHOWN_MAX]
    return ("…" if start else "") + shown + ("…" if len(own[-1]) > start + SHOWN_MAX else "")
