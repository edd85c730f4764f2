"""Rows of SQLite as pieces of JSON: each value by its storage type, whatever type its column declares."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final

from headwater.capture.envelope import base64, compile_function, members, quote, quote_text

__all__ = ["pieces", "row_image"]


def _real(value: float) -> str:
    if isfinite(value):
        return repr(value)
    return '"Infinity"' if value > 0 else '"-Infinity"'  # SQLite has no NaN


def _text(text: str) -> str:
    """A text. Bytes that are not UTF-8, which SQLite accepts, are escaped as ``\\udc80`` to ``\\udcff``."""
    if not text.isascii():
        raw = text.encode("latin-1")
        try:
            raw.decode()
        except UnicodeDecodeError:
            return quote_text(raw.decode("utf-8", "surrogateescape"))
    return quote(text)


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
    """A function from the values of a row to the pieces of its key and of the row."""
    row = members(columns, [f"c[{at}]" for at in range(len(columns))])
    keyed = members(key, [f"c[{list(columns).index(name)}]" for name in key])
    code = (
        "def image(values):\n"
        "    c = [write[type(v)](v) for v in values]\n"
        f'    return {f"f{chr(34)}{keyed}{chr(34)}" if key else None}, f"{row}"\n'
    )
    image: Callable[[Sequence[Any]], tuple[str | None, str]] = compile_function("image", code, write=WRITE)
    return image
