"""Explain: the steps of a view that keep state, and where: in our operators or in Spark's. Needs no log."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater.config import Settings
from headwater.declare.app import App
from headwater.declare.graph import Graph
from headwater.pipeline.build.prepare import planned
from headwater.pipeline.definition import text_form
from headwater.pipeline.operator.building import OBSERVED, Site
from headwater.pipeline.operator.logic import Logic
from headwater.pipeline.spark import catalyst, session
from headwater.pipeline.wire.wire import INVALID

__all__ = ["steps"]

KEEPING = text_form.KEEPING - {"MapInArrow"} | {"CollectMetrics"}
"""Nodes that keep state: Spark's, and those that observe the files of our operators."""
OURS = {"clocks": "hw.corrected_time", "current": "rows", "enrich_now": "hw.enrich", "route": "changes"}
"""The names of operators that are not hw. and their kind."""
SPARKS = {
    "Aggregate": "groupBy",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Join": "join",
    "SessionWindow": "session_window",
}


def steps(app: App, graph: Graph, settings: Settings) -> dict[str, list[str]]:
    """The steps of each view, inputs first. Starts Spark; its logs are removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-graph-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark = session.start(settings, import_folder=app.folder, folder=folder)
    lines: dict[str, list[str]] = {}
    for name, view in graph.views.items():
        frame, site = planned(spark, settings, graph, view, settings.first_shards)
        keeping = filter(_keeps, reversed(catalyst.find(catalyst.plan(frame), KEEPING)))
        lines[name] = list(dict.fromkeys(_line(node, site) for node in keeping))
    return lines


def _keeps(node: Any) -> bool:
    return node.nodeName() != "CollectMetrics" or _name(node) != ""


def _name(node: Any) -> str:
    """The name of our operator whose files a node observes."""
    before = f"{OBSERVED} "
    observed = str(node.name()) if node.nodeName() == "CollectMetrics" else ""
    return observed.removeprefix(before) if observed.startswith(before) else ""


def _line(node: Any, site: Site) -> str:
    read = ", ".join(dict.fromkeys(_read(node)))
    name = _name(node)
    if not name:
        kind = node.nodeName()
        return f"{SPARKS.get(kind, kind)} of {read} · by Spark"
    logic = site.logics[name]
    step = " ".join([OURS.get(logic.kind, f"hw.{logic.kind}"), "of", read, *_details(logic)])
    return f"{name}: {step} · state by key in {site.shards} shards"


def _details(logic: Logic) -> Iterator[str]:
    """What distinguishes an operator from others of its kind."""
    how, as_of = (getattr(logic, name, "") for name in ("how", "as_of"))
    if how:
        yield f"({how})"
    if as_of:
        yield f"as of {as_of}"
    if logic.kind == "enrich_now":
        yield "as it is now"
    key = [name for name in logic.key if not name.startswith("_")]
    if key:
        yield f"by {', '.join(key)}"


def _read(node: Any) -> Iterator[str]:
    """The streams and tables that a step reads."""
    before = f"{INVALID} "
    for observed in catalyst.observations(node):
        if observed.startswith(before):
            yield observed.removeprefix(before)
