"""What a view can do that Spark cannot do on streams, or not as fast: functions from DataFrame to DataFrame.

Each keeps state by key, gives the same answer in a stream and in batch, and can be followed by Spark's own operators.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from headwater.substitute import substitutable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headwater.pipeline.pair import On

__all__ = [
    "calendar",
    "corrected_time",
    "count",
    "distinct",
    "enrich",
    "history",
    "latest",
    "match",
    "sessions",
    "sliding",
    "unmatched",
    "versions",
]


def calendar(rows: "DataFrame", unit: str, *, time: str, zone: str) -> "DataFrame":
    """The rows with ``window``: the day, week, month, quarter or year in which each lies by the clocks of a time zone.

    Group by it as by Spark's own ``window()``, which knows no time zones: days have 23 or 25 hours when clocks change.
    Rows without a time are left out.
    """
    from headwater.pipeline import calendar as dates

    return dates.windowed(rows, unit, time, zone)


@substitutable
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
    """When things happened, by our clock, although devices' clocks are wrong: all rows with ``corrected`` and ``correction``.

    ``occurred`` and ``sent`` are times of the device's clock, ``received`` of ours, which is the stream's ``time``. Corrected times are
    at most ``bound`` before ``received``, never after it. ``transit``: how long a record is under way at most. Samples of the device's
    clock count for ``window``. A row comes out once, when the watermark has passed its ``received``.
    """
    from headwater.pipeline import clocks

    logic = clocks.Clocks(
        key=_names(device),
        occurred=occurred,
        sent=sent,
        received=received,
        behind=bound,
        transit=transit,
        window=window,
    )
    return clocks.corrected(logic, rows)


@substitutable
def count(rows: "DataFrame", key: str | Sequence[str], *, column: str = "count") -> "DataFrame":
    """How many rows each key has: the columns of the key, and the number."""
    from headwater.pipeline import keyed, operator

    return operator.run(keyed.Count(_names(key), column), rows)


@substitutable
def distinct(rows: "DataFrame", key: str | Sequence[str], *, time: str, within: str) -> "DataFrame":
    """The rows without duplicates: of those with the same key and times no more than ``within`` apart, the first that comes.

    Copies of a row, with the same time, leave one whatever the order. Rows without a time are left out.
    """
    from headwater.pipeline import operator, windowed
    from headwater.pipeline.distinct import Distinct

    within_us = windowed.length_us("distinct", "within", within)
    windowed.check_event_time("distinct", rows, time)
    return operator.run(Distinct(key=_names(key), time=time, within_us=within_us), rows)


@substitutable
def enrich(
    stream: "DataFrame",
    table: "DataFrame",
    on: "On",
    *,
    as_of: str = "",
    valid: str = "",
    missing: Literal["keep", "drop", "wait"] = "keep",
    wait: str = "",
    final: str = "",
    correct: str = "",
    version: str = "version",
) -> "DataFrame":
    """Each event of a stream with the row of a table that held at the event's own time, ``as_of``: the same rows whichever comes first.

    ``valid`` is the table's column with the time from which a row holds, ``version`` the new column with the id of the one that was met. A version that comes late
    takes rows back and puts the right ones in their place, for ``correct`` behind the watermark, or as long as the view waits for stragglers if that is longer. With ``final="10 minutes"`` each row
    goes out once, when the watermark is so far beyond its time, and Spark's ``groupBy`` may follow. An event without a version is kept with nulls, dropped, or waits for one up to ``wait``.

    Without ``as_of`` an event meets the row that is there when it is processed, and nothing is corrected.
    """
    from headwater.pipeline.enrich import Wanted, enriched

    return enriched(stream, table, on, Wanted(as_of, valid, missing, wait, final, correct, version))


def history(table: "DataFrame") -> "DataFrame":
    """Every change of a table as a row, with the hidden columns ``_gone``, ``_offset`` and ``_arrival``, for ``enrich`` and ``versions``."""
    from headwater.pipeline import history as changes

    return changes.history(table)


@substitutable
def latest(rows: "DataFrame", key: str | Sequence[str], *, time: str) -> "DataFrame":
    """The row of each key with the greatest time, whatever the order in which they come. Rows without a time are left out."""
    from headwater.pipeline import keyed, operator

    return operator.run(keyed.Latest(_names(key), time), rows)


@substitutable
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
) -> "DataFrame":
    """Rows of two streams side by side: those with the same key whose times are within a bound.

    ``time`` names the event time of both, or of each. A right row may be from ``before`` before to ``after`` after the left one, both ends
    included; ``within`` is both. ``how`` left, right or full: a row without a match is there with nulls until its first one comes. ``on``: columns
    that both have, or {left: right}.
    """
    from headwater.pipeline import matching

    return matching.match(left, right, on, time, (within, before, after), how=how)


@substitutable
def sessions(
    rows: "DataFrame", /, key: str | Sequence[str], *, time: str, gap: str, **aggregates: str
) -> "DataFrame":
    """The sessions of each key: runs of its events with no more than ``gap`` between one and the next.

    A row has the key, ``window`` (from the first event to ``gap`` after the last), and the aggregates, like ``n="count(*)"``,
    ``landing="first(page)"``. It comes out with every batch that changes it; the view's key is the key and ``window``.
    """
    from headwater.pipeline import operator, windowed
    from headwater.pipeline.aggregate import parsed
    from headwater.pipeline.sessions import Sessions

    gap_us = windowed.length_us("sessions", "gap", gap)
    found = parsed("sessions", aggregates, rows.schema)
    windowed.check_event_time("sessions", rows, time)
    return operator.run(Sessions(key=_names(key), time=time, gap_us=gap_us, aggregates=found), rows)


@substitutable
def sliding(
    rows: "DataFrame", /, key: str | Sequence[str], *, time: str, size: str, **aggregates: str
) -> "DataFrame":
    """At each event what its key's events come to that are after its time less ``size``, up to and with its own time.

    A row has the key, ``window`` (from time less ``size`` to the time), and the aggregates, like ``total="sum(amount)"``. Events at
    the same time are one row; the view's key is the key and ``window``.
    """
    from headwater.pipeline import operator, windowed
    from headwater.pipeline.aggregate import parsed
    from headwater.pipeline.sliding import Sliding

    size_us = windowed.length_us("sliding", "size", size)
    found = parsed("sliding", aggregates, rows.schema)
    windowed.check_event_time("sliding", rows, time)
    return operator.run(Sliding(key=_names(key), time=time, size_us=size_us, aggregates=found), rows)


@substitutable
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
    """The rows of the left that no row of the right has met within the bound of ``match``, each once, as soon as none can meet it any more.

    Never taken back, so that Spark's own operators may follow.
    """
    from headwater.pipeline import matching

    return matching.unmatched(left, right, on, time, (within, before, after))


@substitutable
def versions(changes: "DataFrame", key: str | Sequence[str], *, time: str) -> "DataFrame":
    """A row for each version of a key, with ``valid_from``, ``valid_to`` (null for the one that holds now) and ``version``.

    ``time`` is from when a change holds. The view's key is the key and ``valid_from``.
    """
    from headwater.pipeline import typetwo

    return typetwo.versions(changes, _names(key), time)


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)
