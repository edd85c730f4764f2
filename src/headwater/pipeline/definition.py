"""Definition: what a view is made of, as its results keep it, so that a changed view does not continue with state that means something else.

What the state depends on is kept in parts: the streams in the order in which they are read, the key, the publication, the filters of rows that are taken
out again, and every step that keeps something. They come from the structure of the plan (``canonical.py``). A view continues as long as these are
the same. All else, a filter of a stream or a column that is only shown, may change: it counts from the next batch on, and the result says so.

Results name the form of their parts. Those from before forms had numbers are compared by the rule of their time (``textform.py``).
"""

import hashlib
from collections.abc import Callable, Iterable
from os.path import commonprefix

import msgspec
from pyspark.sql import DataFrame

from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.pipeline import catalyst, source, textform
from headwater.pipeline.canonical import canonical
from headwater.pipeline.operator import OBSERVED, Site
from headwater.pipeline.structure import structure
from headwater.pipeline.term import Term

__all__ = ["FORM", "Definition", "check", "define", "edited"]

FORM = "2"
"""The form of the parts. Another one cannot be compared with it."""
NAME = "form"
BETWEEN = "; "
SHOWN_MAX = 160
BEFORE_MAX = 40


class Definition(msgspec.Struct, frozen=True):
    """``digest`` changes with anything, ``parts`` with what the state depends on."""

    digest: str
    parts: dict[str, str]
    former: Callable[[], dict[str, str]] = dict
    """The same parts in the form that had no number."""


def define(view: View, graph: Graph, frame: DataFrame, site: Site) -> Definition:
    """The definition of a view whose plan is ``frame``."""
    plan = catalyst.plan(frame)
    records = f"{source.INVALID} "
    found = canonical(structure(plan, records), site.specs, records, f"{OBSERVED} ")
    streams = {stream.name: stream for stream in graph.inputs(view).values()}
    topics = {name: stream.pattern or stream.topic for name, stream in streams.items()}
    specs = dict(site.specs)
    parts = {
        NAME: FORM,
        "sources": ", ".join(topics[name] for name in found.reads),
        "key": ", ".join(f"{name} = {_line(found.columns[name])}" for name in view.key),
        "publication": textform.publication(view),
        "filters": _line(found.rows.term) if found.rows.weighted else "",
        "steps": BETWEEN.join(map(_line, found.steps)),
    }
    settings = (view.key, view.late, view.forget, view.latency, view.emit, view.append)
    delays = [(stream.name, stream.delay, stream.idle) for stream in streams.values()]
    shown = [(name, column.digest) for name, column in found.columns.items()]
    filters = [condition.digest for condition in found.filters]
    whole = repr((settings, delays, parts, shown, filters))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return Definition(f"{FORM}-{digest}", parts, lambda: textform.parts(view, graph, plan, specs))


def check(view: str, before: dict[str, str], now: Definition) -> None:
    """Raises UsageError when a view cannot continue with the state that it has. What a result does not say is not compared."""
    form = before.get(NAME, "")
    if form not in ("", FORM):
        raise UsageError(
            f"view {view!r} cannot continue: its definition is of a form that this version does not know",
            got=form,
            expected=FORM,
            hint=f"start the version that has written it, or build it again from the log: headwater view rebuild {view} APP",
        )
    parts = now.parts if form else now.former() if before else {}
    changed = [name for name in parts if name in before and before[name] != parts[name]]
    if "steps" in changed and "key" in changed:
        changed.remove("key")  # it is made of what the steps hand on
    if changed:
        old, new = before[changed[-1]], parts[changed[-1]]
        raise UsageError(
            f"view {view!r} cannot continue: its {' and '.join(changed)} changed, and its state was made by the old ones",
            got=_difference(old, new),
            expected=_difference(new, old),
            hint=f"build it again from the log, while readers keep the old rows: headwater view rebuild {view} APP",
        )


def edited(before: str, now: str) -> bool:
    """Whether two digests are of different views; those of different forms cannot be compared."""
    return before != now and _form(before) == _form(now)


def _form(digest: str) -> str:
    return digest.partition("-")[0] if "-" in digest else ""


def _line(found: Term) -> str:
    """A term for people, and its digest for the comparison."""
    return f"{found.text} @{found.digest}"


def _difference(other: str, text: str) -> str:
    """What a part has and the other one has not: the last such step, from where on it differs, cut to what can be read."""
    theirs, own = _steps(other, text), _steps(text, other)
    if not own:
        return "nothing"
    same = len(commonprefix([own[-1], theirs[-1]])) if theirs else 0  # noqa: RUF071 (letter by letter)
    start = max(same - BEFORE_MAX, 0)
    shown = own[-1][start : start + SHOWN_MAX]
    return ("…" if start else "") + shown + ("…" if len(own[-1]) > start + SHOWN_MAX else "")


def _steps(text: str, other: str) -> list[str]:
    """The steps of a part that another has not."""
    there: Iterable[str] = other.split(BETWEEN)
    return [step for step in text.split(BETWEEN) if step not in there]
