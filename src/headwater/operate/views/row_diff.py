"""Rows of a view and rows of a batch by key, and the differences between them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from headwater.declare.spec import View
from headwater.operate.compare_rows import Row, unequal
from headwater.pipeline.batch.batch import records
from headwater.pipeline.build import plan_edits
from headwater.pipeline.topics import Topics
from headwater.pipeline.wire.wire import VERSION

__all__ = ["Difference", "Rows", "as_text", "batch_rows", "diff", "view_rows"]

PLACE = {"_topic": "topic", "_partition": "partition", "_offset": "offset"}
Rows = dict[str, list[Row]]
"""Rows by key. A key of a view with ``append`` has any number of rows, a key of another view one. A batch may
find several for both."""


class Difference(msgspec.Struct, frozen=True):
    """A key at which a view and its batch differ.

    None: this side has no row, or with ``append``, no further row.
    """

    key: str
    view: Row | None
    batch: Row | None

    @property
    def columns(self) -> list[str]:
        return [] if self.view is None or self.batch is None else unequal(self.view, self.batch)


def view_rows(topics: Topics, view: View, outputs: Mapping[int, int] | None = None) -> Rows:
    """The rows of a view as a reader sees them at a position of its topic; without one, at its end."""
    messages = topics.read([view.name], upto=None if outputs is None else {view.name: outputs})
    if view.append:
        return _by_key((message.key().decode(), message.value()) for message in messages)
    rows: dict[str, Row] = {}
    for message in messages:
        key = message.key().decode()
        if message.value() is None:
            rows.pop(key, None)
            continue
        row = msgspec.json.decode(message.value())
        if VERSION not in row or row[VERSION] >= rows.get(key, {}).get(VERSION, 0):
            rows[key] = row
    return {key: [_without_hidden(row)] for key, row in rows.items()}


def batch_rows(rows: DataFrame, view: View) -> Rows:
    """The rows of a batch.

    If each was made from one record, only the newest of a key and partition; partitions have no order.
    """
    placed = None if view.append else plan_edits.traced(rows, PLACE)
    if placed is None:
        return _by_key(records(rows, view))
    same = Window.partitionBy(*(f"`{name}`" for name in view.key), "_topic", "_partition")
    last = placed.withColumn("_last", F.max("_offset").over(same)).where("_offset = _last")
    return _by_key(records(last, view))


def diff(view: Rows, batch: Rows, *, append: bool) -> tuple[int, Difference | None]:
    """The number of rows that differ, and the difference at the smallest key."""
    differing, first = 0, None
    for key in sorted(view.keys() | batch.keys()):
        ours, theirs = view.get(key, []), batch.get(key, [])
        if not append:
            # Which of several rows a view shows depends on the order of arrival: it must be one of them.
            theirs = [row for row in theirs if ours and not unequal(ours[0], row)][:1] or theirs[:1]
        ours, theirs = _unmatched(ours, theirs)
        differing += max(len(ours), len(theirs))
        if first is None and (ours or theirs):
            first = Difference(key, ours[0] if ours else None, theirs[0] if theirs else None)
    return differing, first


def as_text(row: Row | None) -> str:
    return "-" if row is None else msgspec.json.encode(row).decode()


def _unmatched(ours: list[Row], theirs: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of each list that have no equal row in the other."""
    exact = Counter(map(as_text, ours)) & Counter(map(as_text, theirs))
    left, right = list(_without(ours, exact)), list(_without(theirs, exact))
    alone = []
    for row in left:
        equal = next((number for number, other in enumerate(right) if not unequal(row, other)), None)
        if equal is None:
            alone.append(row)
        else:
            del right[equal]
    return alone, right


def _without(rows: list[Row], removed: Counter[str]) -> Iterator[Row]:
    left = Counter(removed)
    for row in rows:
        text = as_text(row)
        if left[text]:
            left[text] -= 1
        else:
            yield row


def _by_key(pairs: Iterable[tuple[str, bytes]]) -> Rows:
    rows: Rows = {}
    for key, value in pairs:
        rows.setdefault(key, []).append(_without_hidden(msgspec.json.decode(value)))
    return rows


def _without_hidden(row: Row) -> Row:
    return {name: value for name, value in row.items() if not name.startswith("_")}
