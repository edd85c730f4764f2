"""The operators of the API: functions from DataFrame to DataFrame that Spark does not have on streams.

Each keeps state by key, gives the same result in a stream and in batch, and can be followed by Spark's own
operators. Rows of a table have a hidden weight: 1 for an inserted row, -1 for a retracted one. The rows of a
plain stream are never retracted.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headwater.declare.spec import column_names
from headwater.declare.substitute import always, never, operator
from headwater.declare.table import Newest, Table, frame_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headwater.pipeline.operator.two_inputs import On

__all__ = [
    "calendar",
    "corrected_time",
    "count",
    "distinct",
    "enrich",
    "group",
    "history",
    "join",
    "latest",
    "match",
    "newest_of",
    "sessions",
    "sliding",
    "unmatched",
    "valid",
    "versions",
]


def _corrects(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("as_of")) and not arguments.get("final")


def _is_outer(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("how", "inner") != "inner")


def calendar(rows: "DataFrame", unit: str, *, time: str, zone: str) -> "DataFrame":
    """The rows with ``window``: their day, week, month, quarter or year by the clocks of a time zone.

    Group by it as by Spark's own ``window()``, which has no time zones: days have 23 or 25 hours when clocks
    change. Rows without a time are left out.
    """
    from headwater.pipeline.windows import calendar as dates

    return dates.add_window(rows, unit, time, zone)


@operator(never)
def corrected_time(
    rows: "DataFrame",
    device: str | Sequence[str],
    *,
    occurred: str,
    sent: str,
    received: str,
    bound: str = "7 days",
    transit: str = "1 minute",
    window: str = "1 hour",
) -> "DataFrame":
    """All rows with the time at which they happened by our clock, although devices' clocks may be wrong.

    It adds ``corrected`` and ``correction``. ``occurred`` and ``sent`` are times by the device's clock,
    ``received`` is by ours and is the ``time`` of the stream. A corrected time is at most ``bound`` before
    ``received``, and never after it. ``transit`` is the longest time that a record takes. Samples of a
    device's clock count for ``window``. A row is emitted once, when the watermark has passed its
    ``received``.
    """
    from headwater.pipeline.windows import device_clocks

    logic = device_clocks.Clocks(
        key=column_names(device),
        occurred=occurred,
        sent=sent,
        received=received,
        output_delay=bound,
        transit=transit,
        window=window,
    )
    return device_clocks.add_corrected_time(logic, rows)


@operator(never)
def count(rows: "DataFrame", key: str | Sequence[str], *, column: str = "count") -> "DataFrame":
    """The number of rows of each key, with the columns of the key."""
    from headwater.pipeline.operator import apply, count_latest

    return apply.run(count_latest.Count(column_names(key), column), rows)


@operator(never)
def distinct(rows: "DataFrame", key: str | Sequence[str], *, time: str, within: str) -> "DataFrame":
    """The rows without duplicates.

    Of rows with equal keys and times no more than ``within`` apart, the first that arrives remains.

    Of copies of a row, with the same time, one remains in any order of arrival. Rows without a time are left
    out.
    """
    from headwater.pipeline.operator import apply, event_rows
    from headwater.pipeline.windows.distinct import Distinct

    within_us = event_rows.length_us("distinct", "within", within)
    event_rows.check_event_time("distinct", rows, time)
    return apply.run(Distinct(key=column_names(key), time=time, within_us=within_us), rows)


@operator(_corrects)
def enrich(
    stream: "DataFrame",
    table: "DataFrame | Table",
    on: "On",
    *,
    as_of: str = "",
    valid: str = "",
    missing: Literal["keep", "drop", "wait"] = "keep",
    wait: str = "",
    final: str = "",
    correct: str = "",
    version: str = "version",
) -> "Any":
    """Each event of a stream with the row of a table that was valid at the event's own time.

    The order of arrival does not matter.

    ``as_of`` is the event's column with that time. ``valid`` is the table's column with the time from which a
    row is valid. ``version`` names the new column with the id of the row.

    If a row of the table arrives late, the rows it concerns are retracted and replaced: up to ``correct``
    before the watermark, or as far as the view accepts stragglers, if that is longer. With ``final="10
    minutes"`` each row is emitted once, when the watermark is that much later than its time, and Spark's
    ``groupBy`` may follow. An event without a row of the table is kept with nulls, dropped, or waits for one
    up to ``wait``, as ``missing`` says.

    Without ``as_of`` an event gets the row that exists when the event is processed, and nothing is corrected.
    """
    from headwater.pipeline.asof import enrich as lookup

    options = lookup.EnrichOptions(as_of, valid, missing, wait, final, correct, version)
    return lookup.enrich(stream, table, on, options)


def history(table: "DataFrame | Table") -> "DataFrame":
    """Every change of a table as a row, for ``enrich`` and ``versions``.

    The rows have the hidden columns ``_gone``, ``_offset`` and ``_arrival``.
    """
    from headwater.pipeline.asof import table_changes as changes

    return changes.history(frame_of(table))


@operator(never)
def latest(rows: "DataFrame", key: str | Sequence[str], *, time: str) -> "DataFrame":
    """The row of each key with the greatest time, in any order of arrival.

    Rows without a time are left out.
    """
    from headwater.pipeline.operator import apply, count_latest

    return apply.run(count_latest.Latest(column_names(key), time), rows)


@operator(_is_outer)
def match(
    left: "DataFrame",
    right: "DataFrame",
    on: "On",
    *,
    time: str | Sequence[str],
    within: str | None = None,
    before: str | None = None,
    after: str | None = None,
    how: str = "inner",
) -> "Any":
    """The pairs of rows of two streams with equal keys and times within a bound.

    ``on`` names columns that both streams have, or is {left: right}. ``time`` names the event time of both,
    or of each. A right row may be up to ``before`` earlier and up to ``after`` later than the left one, both
    inclusive; ``within`` sets both. With ``how`` left, right or full, a row without a match is emitted with
    nulls, until its first match arrives.
    """
    from headwater.pipeline.interval import inputs

    return inputs.match(left, right, on, time, (within, before, after), how=how)


@operator(never)
def sessions(
    rows: "DataFrame", /, key: str | Sequence[str], *, time: str, gap: str, **aggregates: "Column"
) -> "DataFrame":
    """The sessions of each key: its events with no more than ``gap`` between one and the next.

    A row has the key, ``window`` (from the first event to ``gap`` after the last one), and the aggregates,
    like ``n=F.count("*")`` and ``landing=F.first("page")``; first and last are by ``time``. A row is emitted
    by every batch that changes it. The key of the view is the key and ``window``.
    """
    from headwater.pipeline.operator import apply, event_rows
    from headwater.pipeline.operator.aggregate import resolve
    from headwater.pipeline.operator.aggregate_columns import with_columns
    from headwater.pipeline.windows.sessions import Sessions

    gap_us = event_rows.length_us("sessions", "gap", gap)
    event_rows.check_event_time("sessions", rows, time)
    rows, calls = with_columns("sessions", rows, aggregates)
    resolved = resolve("sessions", calls, rows.schema)
    return apply.run(Sessions(key=column_names(key), time=time, gap_us=gap_us, aggregates=resolved), rows)


@operator(never)
def sliding(
    rows: "DataFrame", /, key: str | Sequence[str], *, time: str, size: str, **aggregates: "Column"
) -> "DataFrame":
    """For each event, the aggregates of its key's events in the ``size`` before it, with the event itself.

    A row has the key, ``window`` (from the event's time less ``size``, exclusive, to its time, inclusive),
    and the aggregates, like ``total=F.sum("amount")``. Events at the same time make one row. The key of the
    view is the key and ``window``.
    """
    from headwater.pipeline.operator import apply, event_rows
    from headwater.pipeline.operator.aggregate import resolve
    from headwater.pipeline.operator.aggregate_columns import with_columns
    from headwater.pipeline.windows.sliding import Sliding

    size_us = event_rows.length_us("sliding", "size", size)
    event_rows.check_event_time("sliding", rows, time)
    rows, calls = with_columns("sliding", rows, aggregates)
    resolved = resolve("sliding", calls, rows.schema)
    return apply.run(Sliding(key=column_names(key), time=time, size_us=size_us, aggregates=resolved), rows)


@operator(never)
def unmatched(
    left: "DataFrame",
    right: "DataFrame",
    on: "On",
    *,
    time: str | Sequence[str],
    within: str | None = None,
    before: str | None = None,
    after: str | None = None,
) -> "DataFrame":
    """The rows of the left without a ``match`` on the right, each emitted once no match can arrive any more.

    They are never retracted, so Spark's own operators may follow.
    """
    from headwater.pipeline.interval import inputs

    return inputs.unmatched(left, right, on, time, (within, before, after))


@operator(never)
def versions(changes: "DataFrame | Table", key: str | Sequence[str], *, time: str) -> "DataFrame":
    """A row for each version of a key, with ``valid_from``, ``valid_to`` (null: current) and ``version``.

    ``time`` is the column with the time from which a change is valid. The key of the view is the key and
    ``valid_from``.
    """
    from headwater.pipeline.asof import versions as table_versions

    return table_versions.versions(changes, column_names(key), time)


@operator(always)
def join(
    left: "DataFrame | Table",
    right: "DataFrame | Table",
    *,
    on: str | Sequence[str] | Mapping[str, str],
    how: str = "inner",
) -> "Table":
    """The pairs of rows of two tables with equal keys, kept current when either side changes.

    ``on`` names columns that both tables have, or is {left: right}. ``how`` is inner, left, right or full; a
    row without a partner has nulls as long as it has none. Null keys have no partner. The columns are those
    of the left, then those of the right without the ones in ``on`` that have the same name on both sides.
    """
    from headwater.pipeline.tables import join as live_join

    return Table(live_join.join(frame_of(left), frame_of(right), on, how))


@operator(always)
def group(rows: "DataFrame | Table", /, by: str | Sequence[str], **aggregates: "Column | Newest") -> "Table":
    """One row for each group of a table or stream, kept current: the columns of ``by`` and the aggregates.

    Aggregates are Columns, like ``total=F.sum("price")`` and ``n=F.count("*")``, or ``hw.newest_of(…)``. A
    retracted row is subtracted again; the row of a group without rows is removed.
    """
    from headwater.pipeline.tables import group as live_group

    return Table(live_group.group(frame_of(rows), column_names(by), aggregates))


def newest_of(columns: str | Sequence[str], *, order: str | Sequence[str], limit: int) -> "Newest":
    """The newest rows of a group as an array of at most ``limit``, the one with the greatest ``order`` first.

    One column gives an array of its values, several an array of structs. If ``order`` is equal, the greater
    value is first. Rows without an ``order`` are last.
    """
    return Newest(column_names(columns), column_names(order), limit, isinstance(columns, str))


@operator(always)
def valid(rows: "DataFrame | Table", *, since: str = "", until: str = "") -> "Table":
    """The rows that are valid now, by the clock.

    A row is valid from the time in column ``since``, inclusive, to that in ``until``, exclusive.

    Rows are added and removed within a second of these times, although no record arrives then. A null, and a
    column that is not given, does not limit the time. Each event of a stream is a row; rows of a table may
    also be changed and removed.
    """
    from headwater.pipeline.tables import valid as valid_now

    return Table(valid_now.valid(frame_of(rows), since, until))
