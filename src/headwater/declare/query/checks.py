"""Checks of a view's query by its text, SQL or Python, in milliseconds and without Spark.

What a text cannot show is checked when Spark plans the view, before any view starts.
"""

from collections.abc import Mapping, Sequence

from headwater.declare.checks import EXACT
from headwater.declare.query import refusals
from headwater.declare.query.function_checks import shape_of_function
from headwater.declare.query.shape import AGGREGATE, UNKNOWN, WINDOW, Shape, nearest
from headwater.declare.query.sql_checks import shape_of_query
from headwater.declare.spec import Sink, View
from headwater.errors import UsageError

__all__ = ["check_query", "check_sink_columns"]

WITHOUT_WINDOW = {UNKNOWN, WINDOW}
"""Kinds of columns that may be windows."""


def check_query(view: View, inputs: Mapping[str, Shape]) -> Shape:
    """The shape of a view's rows, for its readers. ``inputs``: the shapes of its inputs by parameter.

    UsageError, naming the view, for a query that is wrong whatever the records are.
    """
    shape = shape_of_query(view, inputs) if view.query is not None else shape_of_function(view, inputs)
    if shape.columns is not None:
        _check_key(view, shape)
    if shape.columns is None:
        return Shape(None, table=not view.append)
    published = {name: UNKNOWN if kind == AGGREGATE else kind for name, kind in shape.columns.items()}
    return Shape(published, table=not view.append)


def _check_key(view: View, shape: Shape) -> None:
    what = f"view {view.name!r}"
    columns = shape.columns or {}
    for name in view.key:
        if shape.missing(name):
            raise refusals.NO_KEY_COLUMN.error(view=what, column=repr(name), got=", ".join(columns))
        kind = shape.kind(name)
        if kind == AGGREGATE and not shape.table and view.latency == "batch":
            raise refusals.AGGREGATED_KEY.error(view=what, column=repr(name))
        if kind not in {UNKNOWN, AGGREGATE, WINDOW} and not EXACT.match(kind):
            raise refusals.NO_EXACT_KEY.error(view=what, column=repr(name), got=kind)
    kinds = {shape.kind(name) for name in view.key}
    if view.emit == "ready" and not shape.timed and not kinds & WITHOUT_WINDOW:
        raise refusals.NEVER_COMPLETE.error(view=what)


def check_sink_columns(sink: Sink, source: Shape, key: Sequence[str]) -> None:
    """UsageError for columns that a sink's target names and its source surely does not have, or lacks."""
    named = getattr(sink.target, "columns", None)
    if not isinstance(named, Mapping) or not named:
        return
    what = f"sink {sink.name!r}"
    for name in named:
        if source.missing(name):
            raise UsageError(
                f"{what}: {sink.source!r} has no column {name!r}",
                got=f"columns={dict(named)!r}",
                hint=nearest(name, source.columns or ()),
            )
    for name in key:
        if name not in named:
            raise UsageError(
                f"{what}: key column {name!r} is not among its columns",
                got=f"columns={dict(named)!r}",
                expected="all columns of the key, and others",
            )
