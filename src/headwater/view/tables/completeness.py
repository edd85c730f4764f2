"""Completeness: until when a row of a view may still change.

A row is ready (complete) when its view is complete up to the row's ``until``, and provisional before.
``until`` is its column ``_until``, which operators such as sessions give it, or else the end of the window
in its key (the latest of several). A row with neither is neither ready nor provisional. All times are text
of one form (UTC, microseconds), so that they compare as text, here and in SQL.

Readers ask with ``ready=true`` or ``ready=false``; a column with this name is filtered with ``ready.eq=``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from headwater.errors import UsageError

__all__ = ["parse_ready", "text", "until", "until_of", "until_sql"]

_FORM = re.compile(r"....-..-..T..:..:..\.......Z", re.DOTALL)
_GLOB = "????-??-??T??:??:??.??????Z"
_OWN = "'$._until'"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_EARLIEST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LATEST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND

_READY = {"true": True, "false": False}


def parse_ready(parameters: Iterable[tuple[str, str]]) -> tuple[bool | None, list[tuple[str, str]]]:
    """Whether a reader wants only complete rows, or only the others, and the other parameters."""
    parameters = list(parameters)
    values = [value for name, value in parameters if name == "ready"]
    wrong = next((value for value in values if value not in _READY), None)
    if wrong is not None:
        hint = "a column of that name is filtered with ready.eq="
        raise UsageError("ready is wrong", got=repr(wrong[:40]), expected="true or false", hint=hint)
    rest = [(name, value) for name, value in parameters if name != "ready"]
    return _READY[values[-1]] if values else None, rest


def text(time_us: int) -> str:
    """A time as text.

    A time outside of the calendar (a view without events has one) is its first or last time.
    """
    at = _EPOCH + max(_EARLIEST_US, min(time_us, _LATEST_US)) * _MICROSECOND
    return at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def until(row: Mapping[str, Any], key: Sequence[str]) -> str | None:
    """When a row is complete; None if it is neither ready nor provisional."""
    own = row.get("_until")
    if _is_time(own):
        return str(own)
    windows = [row.get(name) for name in key if _addressable(name)]
    ends = [window["end"] for window in windows if isinstance(window, dict) and _is_window(window)]
    return max(ends, default=None)


def until_of(value: str, key: Sequence[str]) -> str | None:
    """`until` of a row in JSON. Most rows without it are not decoded."""
    return until(msgspec.json.decode(value), key) if '"_until"' in value or '"end"' in value else None


def until_sql(key: Sequence[str]) -> tuple[str, dict[str, str]]:
    """`until` of the column ``value`` as an SQL expression, and its parameters."""
    names = [name for name in key if _addressable(name)]
    ends = [
        f"CASE WHEN {_sql_is_time(f':start{i}')} THEN {_sql_time(f':end{i}')} END" for i in range(len(names))
    ]
    parameters = {
        f"{part}{i}": f'$."{name}".{part}' for i, name in enumerate(names) for part in ("start", "end")
    }
    latest = ", ".join(
        ["''", *(f"coalesce({end}, '')" for end in ends), "''"]
    )  # max of one argument is an aggregate
    return f"coalesce({_sql_time(_OWN)}, nullif(max({latest}), ''))", parameters


def _sql_is_time(path: str) -> str:
    return f"json_extract(value, {path}) GLOB '{_GLOB}'"


def _sql_time(path: str) -> str:
    return f"CASE WHEN {_sql_is_time(path)} THEN json_extract(value, {path}) END"


def _is_time(value: object) -> bool:
    return isinstance(value, str) and _FORM.fullmatch(value) is not None


def _is_window(value: Mapping[str, Any]) -> bool:
    return _is_time(value.get("start")) and _is_time(value.get("end"))


def _addressable(column: str) -> bool:
    """SQLite cannot have a quotation mark in a path."""
    return '"' not in column
