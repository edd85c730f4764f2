"""The sketches of a view's rows merged into one answer, or into one for each value of some columns.

GET /views/minutes?window.start.gte=2026-01-05&merge=users&by=site
{"site": "a", "estimate": 48210, "error": 0.01625, "rows": 1440}
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import msgspec

from headwater.errors import UsageError
from headwater.sketches import merge
from headwater.view.tables.query import MERGE_ROWS_MAX, RowQuery, SketchMerge, SortTerm
from headwater.view.tables.reader import TableSnapshot

__all__ = ["answers", "query"]


def query(asked: RowQuery, wanted: SketchMerge) -> RowQuery:
    """The query for the rows to merge, ordered by the columns that divide them."""
    order = tuple(SortTerm(column) for column in wanted.by)
    return msgspec.structs.replace(asked, order=order, limit=MERGE_ROWS_MAX)


def answers(snapshot: TableSnapshot, wanted: SketchMerge) -> list[dict[str, Any]]:
    """One answer for each value, in the order of the values.

    UsageError if the column has other values than sketches.
    """
    if snapshot.more:
        raise UsageError("too many rows to merge", expected=f"at most {MERGE_ROWS_MAX}", hint="use filters")
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in snapshot.rows:
        columns = row.columns()
        value = tuple(_inner(columns, name) for name in wanted.by)
        groups.setdefault(value, []).append(_cell(columns, wanted.column))
    try:
        return [
            dict(zip(wanted.by, value, strict=True)) | _answer(cells, wanted)
            for value, cells in groups.items()
        ]
    except UsageError as error:
        raise UsageError(
            f"merge={wanted.column}: {error.what}", got=error.got, expected=error.expected, hint=error.hint
        ) from error


def _answer(cells: list[Any], wanted: SketchMerge) -> dict[str, Any]:
    merging = _merging(map(_bytes, cells), wanted)
    if merging is None:
        return {"estimate": None, "error": None, "rows": len(cells)}
    estimates = [cell.get("estimate") for cell in cells if isinstance(cell, dict)]
    like = max(estimates, key=_size, default=None)
    answer = {"estimate": merging.estimate(like), "error": merging.error, "rows": len(cells)}
    return answer if wanted.has is None else {"has": merge.has(merging, wanted.has)} | answer


def _size(estimate: Any) -> int:
    return len(estimate) if isinstance(estimate, list | dict) else 0


def _merging(sketches: Iterable[bytes | None], wanted: SketchMerge) -> merge.Merging | None:
    """The sketches of a group merged; None if none of its rows has one."""
    merging: merge.Merging | None = None
    for data in sketches:
        if data is None:
            continue
        if merging is None:
            merging = merge.begin(data, wanted.how)
        else:
            merge.add(merging, data)
    return merging


def _cell(columns: dict[str, Any], name: str) -> Any:
    if name not in columns and name.partition(".")[0] not in columns:
        raise UsageError(f"unknown column {name!r}", hint=f"columns are: {', '.join(columns)}")
    return columns[name] if name in columns else _inner(columns, name)


def _inner(columns: dict[str, Any], name: str) -> Any:
    value: Any = columns
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _bytes(cell: Any) -> bytes | None:
    """The sketch in a cell: a struct, ours or Spark's, with a field ``sketch``, or only the bytes."""
    text = cell.get("sketch", cell) if isinstance(cell, dict) else cell
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        shown = msgspec.json.encode(text).decode()[:40]
        raise UsageError("the value is not a sketch", got=shown, expected="a column of hw.sketch") from error
