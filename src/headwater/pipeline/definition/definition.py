"""Definition: what the state of a view depends on; results keep it, so that state is never misread.

It consists of parts: the streams in the order in which they are read, the key, the publication, the filters
of rows that are retracted, and every step that keeps state. They come from the structure of the plan
(``canonical.py``). A view continues as long as they are the same. Everything else, such as a filter of a
stream or a column that is only shown, may change: it takes effect with the next batch, and the result records
it.

Results name the form of their parts. Results of the form without a number are compared by its own rule
(``text_form.py``).
"""

import hashlib
from collections.abc import Callable, Iterable
from os.path import commonprefix

import msgspec
from pyspark.sql import DataFrame

from headwater.declare.graph import Graph
from headwater.declare.spec import View
from headwater.errors import UsageError
from headwater.pipeline.definition import text_form
from headwater.pipeline.definition.canonical import canonical
from headwater.pipeline.definition.plan_structure import structure
from headwater.pipeline.definition.term import Term
from headwater.pipeline.operator.building import OBSERVED, Site
from headwater.pipeline.spark import catalyst
from headwater.pipeline.wire.wire import INVALID

__all__ = ["FORM", "Definition", "define", "edited", "refusal"]

FORM = "2"
"""The form of the parts. Parts of different forms cannot be compared."""
NAME = "form"
BETWEEN = "; "
SHOWN_MAX = 160
BEFORE_MAX = 40


class Definition(msgspec.Struct, frozen=True):
    """``digest`` changes with any part of a view, ``parts`` only with what its state depends on."""

    digest: str
    parts: dict[str, str]
    former: Callable[[], dict[str, str]] = dict
    """The same parts in the form without a number."""


def define(view: View, graph: Graph, frame: DataFrame, site: Site) -> Definition:
    """The definition of a view whose plan is ``frame``."""
    plan = catalyst.plan(frame)
    records = f"{INVALID} "
    plan_form = canonical(structure(plan, records), site.specs, records, f"{OBSERVED} ")
    streams = {stream.name: stream for stream in graph.inputs(view).values()}
    topics = {name: stream.pattern or stream.topic for name, stream in streams.items()}
    specs = dict(site.specs)
    parts = {
        NAME: FORM,
        "sources": ", ".join(topics[name] for name in plan_form.reads),
        "key": ", ".join(f"{name} = {_line(plan_form.columns[name])}" for name in view.key),
        "publication": text_form.publication(view),
        "filters": _line(plan_form.rows.term) if plan_form.rows.weighted else "",
        "steps": BETWEEN.join(map(_line, plan_form.steps)),
    }
    settings = (view.key, view.late, view.forget, view.latency, view.emit, view.append)
    delays = [(stream.name, stream.delay, stream.idle) for stream in streams.values()]
    shown = [(name, column.digest) for name, column in plan_form.columns.items()]
    filters = [condition.digest for condition in plan_form.filters]
    whole = repr((settings, delays, parts, shown, filters))
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return Definition(f"{FORM}-{digest}", parts, lambda: text_form.parts(view, graph, plan, specs))


def refusal(view: str, before: dict[str, str], now: Definition) -> UsageError | None:
    """Why a view cannot continue with the state that it has.

    Parts that are missing in a result are not compared.
    """
    form = before.get(NAME, "")
    if form not in ("", FORM):
        return UsageError(
            f"view {view!r} cannot continue: its definition has a form that this version does not know",
            got=form,
            expected=FORM,
            hint=f"start the version that has written it, or build it again from the log: "
            f"headwater view rebuild {view} APP",
        )
    parts = now.parts if form else now.former() if before else {}
    changed = [name for name in parts if name in before and before[name] != parts[name]]
    if "steps" in changed and "key" in changed:
        changed.remove("key")  # the columns of the key come from the steps
    if not changed:
        return None
    old, new = before[changed[-1]], parts[changed[-1]]
    return UsageError(
        f"view {view!r} cannot continue: its {' and '.join(changed)} changed, "
        "and its state was made by the old ones",
        got=_difference(old, new),
        expected=_difference(new, old),
        hint="build it again from the log, while readers keep the old rows: "
        f"headwater view rebuild {view} APP",
    )


def edited(before: str, now: str) -> bool:
    """Whether two digests are of different views; those of different forms cannot be compared."""
    return before != now and _form(before) == _form(now)


def _form(digest: str) -> str:
    return digest.partition("-")[0] if "-" in digest else ""


def _line(term: Term) -> str:
    """A term for people, and its digest for the comparison."""
    return f"{term.text} @{term.digest}"


def _difference(other: str, text: str) -> str:
    """The last step of a part that the other one lacks, from where it differs, cut to a readable length."""
    theirs, own = _steps(other, text), _steps(text, other)
    if not own:
        return "nothing"
    same = len(commonprefix([own[-1], theirs[-1]])) if theirs else 0  # noqa: RUF071 (letter by letter)
    start = max(same - BEFORE_MAX, 0)
    shown = own[-1][start : start + SHOWN_MAX]
    return ("…" if start else "") + shown + ("…" if len(own[-1]) > start + SHOWN_MAX else "")


def _steps(text: str, other: str) -> list[str]:
    """The steps of a part that another one lacks."""
    others: Iterable[str] = other.split(BETWEEN)
    return [step for step in text.split(BETWEEN) if step not in others]
