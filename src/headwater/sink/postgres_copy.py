"""Rows as PostgreSQL's COPY reads them, made without a look at each value, so that the server parses no JSON.

The JSON arrays of rows are lines of CSV but for their brackets: text is in quotes, what is null is not, and a backslash is the escape. Only characters
that JSON writes as letters, like a newline, must become themselves.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = ["FORMAT", "lines"]

FORMAT = r"(FORMAT csv, ESCAPE '\', NULL 'null')"
CONTROL = re.compile(rb"\\\\|\\([bfnrt]|u00[01][0-9a-f])")
LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

_encode = msgspec.json.Encoder().encode_lines


def lines(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Rows of text, numbers, decimals, booleans and None as lines of `FORMAT`."""
    if not rows:
        return b""
    # Inside of values JSON has no newline, so these brackets are those of the rows.
    text = _encode(rows)[1:-2].replace(b"]\n[", b"\n") + b"\n"
    return CONTROL.sub(_character, text) if b"\\" in text else text


def _character(found: re.Match[bytes]) -> bytes:
    name = found[1]
    if name is None:  # a backslash
        return found[0]
    return LETTERS.get(name) or bytes([int(name[1:], 16)])
