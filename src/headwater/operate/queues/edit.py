"""Edit: what is changed in messages on their way back from the dead letters.

FILE.PY:FUNCTION    called with each `Record`; returns the record to write, or None to leave the letter
{"field": value}    merged into the JSON of each message (RFC 7396: null removes a field)
"""

import runpy
from collections.abc import Callable
from typing import Any

import msgspec

from headwater.errors import UsageError, one_line
from headwater.record import Record

__all__ = ["Edit", "parse_edit"]

Edit = Callable[[Record], Record | None]


def parse_edit(text: str) -> Edit:
    """Reads ``--edit``. UsageError if it is neither."""
    if text.lstrip().startswith("{"):
        return _merging(text)
    path, colon, name = text.rpartition(":")
    if not colon:
        raise UsageError(
            "--edit is wrong", got=repr(text), expected="FILE.PY:FUNCTION, or a JSON object to merge"
        )
    try:
        function = runpy.run_path(path)[name]
    except (OSError, KeyError) as error:
        raise UsageError(f"there is no function {name!r} in {path}", got=str(error)) from error
    except Exception as error:  # the file's own fault
        raise UsageError(f"{path} cannot be loaded", got=one_line(error)) from error
    return _calling(function, text)


def _merging(text: str) -> Edit:
    try:
        patch = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise UsageError("--edit is not JSON", got=str(error)) from error

    def edit(record: Record) -> Record:
        try:
            value = msgspec.json.decode(record.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(
                "its value is not JSON, so nothing can be merged into it",
                got=str(error),
                hint="--edit FILE.PY:FUNCTION changes any value",
            ) from error
        return msgspec.structs.replace(record, value=msgspec.json.encode(_merged(value, patch)))

    return edit


def _calling(function: Callable[[Record], Any], name: str) -> Edit:
    def edit(record: Record) -> Record | None:
        try:
            edited = function(record)
        except Exception as error:  # the function's own fault
            raise UsageError(
                f"{name} has failed", got=f"{type(error).__name__}: {one_line(error)}"
            ) from error
        if edited is not None and not isinstance(edited, Record):
            raise UsageError(
                f"{name} returned something else",
                got=type(edited).__name__,
                expected="a Record, or None to leave the letter",
            )
        return edited

    return edit


def _merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for name, field in patch.items():
        if field is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), field)
    return merged
