"""Steps: what a view keeps something for, and where: our own operators with state by key, or Spark's. Nothing runs, and no log is needed."""

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwater.app import App
from headwater.config import Settings
from headwater.graph import Graph
from headwater.pipeline import catalyst, operator, session, source, textform
from headwater.pipeline.operator import Logic, Site
from headwater.pipeline.prepare import planned

__all__ = ["steps"]

KEEPING = textform.KEEPING - {"MapInArrow"} | {"CollectMetrics"}
"""Nodes that keep something: Spark's, and those that observe what an operator of ours writes."""
OURS = {"clocks": "hw.corrected_time", "current": "rows", "enrich_now": "hw.enrich", "route": "changes"}
"""What an operator is called where it is not hw. and its kind."""
SPARKS = {
    "Aggregate": "groupBy",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Join": "join",
    "SessionWindow": "session_window",
}


def steps(app: App, graph: Graph, settings: Settings) -> dict[str, list[str]]:
    """The steps of each view, inputs first. Starts a Spark for it, whose logs are gone when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-graph-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark = session.start(settings, import_folder=app.folder, folder=folder)
    found: dict[str, list[str]] = {}
    for name, view in graph.views.items():
        frame, site = planned(spark, settings, graph, view, settings.partitions)
        keeping = filter(_keeps, reversed(catalyst.find(catalyst.plan(frame), KEEPING)))
        found[name] = list(dict.fromkeys(_line(node, site) for node in keeping))
    return found


def _keeps(node: Any) -> bool:
    return node.nodeName() != "CollectMetrics" or _name(node) != ""


def _name(node: Any) -> str:
    """The name of an operator of ours, where a plan observes what it writes."""
    before = f"{operator.OBSERVED} "
    observed = str(node.name()) if node.nodeName() == "CollectMetrics" else ""
    return observed.removeprefix(before) if observed.startswith(before) else ""


def _line(node: Any, site: Site) -> str:
    read = ", ".join(dict.fromkeys(_read(node)))
    name = _name(node)
    if not name:
        kind = node.nodeName()
        return f"{SPARKS.get(kind, kind)} of {read} · by Spark"
    logic = site.logics[name]
    said = " ".join([OURS.get(logic.kind, f"hw.{logic.kind}"), "of", read, *_details(logic)])
    return f"{name}: {said} · state by key in {site.shards} shards"


def _details(logic: Logic) -> Iterator[str]:
    """What tells an operator from others of its kind."""
    how, as_of = (getattr(logic, each, "") for each in ("how", "as_of"))
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
    """The streams and tables that come into a step."""
    before = f"{source.INVALID} "
    for observed in catalyst.observations(node):
        if observed.startswith(before):
            yield observed.removeprefix(before)
