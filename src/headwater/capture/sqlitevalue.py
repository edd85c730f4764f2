"""Rows of SQLite as pieces of JSON: each value by the type it was stored with, whatever its column declares."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

from headwater.capture.envelope import compiled, members, quoted, written
from headwater.capture.mysqlvalue import base64

__all__ = ["pieces", "row_image"]


def _real(value: float) -> str:
    if isfinite(value):
        return repr(value)
    return '"Infinity"' if value > 0 else '"-Infinity"'  # SQLite has no NaN


def _text(text: str) -> str:
    """SQLite keeps a text that is not UTF-8: each byte that cannot be read is escaped as ``\\udc80`` and the byte's lower bits, so that the record is JSON."""
    if not text.isascii():
        raw = text.encode("latin-1")
        try:
            raw.decode()
        except UnicodeDecodeError:
            return written(raw.decode("utf-8", "surrogateescape"))
    return quoted(text)


WRITE: Final[dict[type, Callable[[Any], str]]] = {
    int: str,
    float: _real,
    str: _text,
    bytes: base64,
    type(None): lambda _: "null",
}


def pieces(raw: bytes) -> str:
    """For ``text_factory``: the bytes of a text as characters (``capture/envelope.py``)."""
    return raw.decode("latin-1")


def row_image(
    columns: Sequence[str], key: Sequence[str]
) -> Callable[[Sequence[Any]], tuple[str | None, str]]:
    """A function from the values of a row to the pieces of its key and of itself."""
    row = members(columns, [f"c[{at}]" for at in range(len(columns))])
    keyed = members(key, [f"c[{list(columns).index(each)}]" for each in key])
    code = (
        "def image(values):\n"
        "    c = [write[type(v)](v) for v in values]\n"
        f'    return {f"f{chr(34)}{keyed}{chr(34)}" if key else None}, f"{row}"\n'
    )
    made: Callable[[Sequence[Any]], tuple[str | None, str]] = compiled("image", code, write=WRITE)
    return made
