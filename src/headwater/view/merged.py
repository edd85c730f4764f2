"""Merged: the sketches of a view's rows as one answer, or one for each value of some columns.

GET /views/minutes?window.start.gte=2026-01-05&merge=users&by=site
{"site": "a", "estimate": 48210, "error": 0.01625, "rows": 1440}
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any

import msgspec

from headwater import merge
from headwater.errors import UsageError
from headwater.view.query import MERGE_ROWS_MAX, Merge, Order, Query
from headwater.view.table import Snapshot

__all__ = ["answers", "query"]


def query(asked: Query, wanted: Merge) -> Query:
    """The query for the rows that are to be merged: ordered by what divides them, and one too many to be merged is seen."""
    order = tuple(Order(column) for column in wanted.by)
    return msgspec.structs.replace(asked, order=order, limit=MERGE_ROWS_MAX)


def answers(found: Snapshot, wanted: Merge) -> list[dict[str, Any]]:
    """One answer for each value, in the order of the values. UsageError when there is something in the column that is no sketch."""
    if found.more:
        raise UsageError(
            "too many rows to merge", expected=f"at most {MERGE_ROWS_MAX}", hint="leave fewer with filters"
        )
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in found.rows:
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


def _answer(cells: list[Any], wanted: Merge) -> dict[str, Any]:
    merging = _merging(map(_bytes, cells), wanted)
    if merging is None:
        return {"estimate": None, "error": None, "rows": len(cells)}
    own = [cell.get("estimate") for cell in cells if isinstance(cell, dict)]
    like = max(own, key=lambda each: len(each) if isinstance(each, list | dict) else 0, default=None)
    answer = {"estimate": merging.estimate(like), "error": merging.error, "rows": len(cells)}
    return answer if wanted.has is None else {"has": merge.has(merging, wanted.has)} | answer


def _merging(sketches: Iterable[bytes | None], wanted: Merge) -> merge.Merging | None:
    """All of a group as one; None when none of its rows has a sketch."""
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
    found: Any = columns
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _bytes(cell: Any) -> bytes | None:
    """The sketch in a cell: a struct of ours or of Spark's with ``sketch`` in it, or the bytes alone."""
    text = cell.get("sketch", cell) if isinstance(cell, dict) else cell
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        shown = msgspec.json.encode(text).decode()[:40]
        raise UsageError("this is no sketch", got=shown, expected="a column of hw.sketch") from error
