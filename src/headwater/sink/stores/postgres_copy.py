"""Rows in the format of PostgreSQL's COPY, built without looking at each value; the server parses no JSON.

A row as a JSON array is a line of CSV except for its brackets: text is in quotes, null is not, and a
backslash is the escape. Only characters that JSON writes as letters, like a newline, must be written as
themselves.
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
    """Lines of `FORMAT` for rows of text, numbers, decimals, booleans and None."""
    if not rows:
        return b""
    # JSON has no newline inside of values, so these are the brackets of the rows.
    text = _encode(rows)[1:-2].replace(b"]\n[", b"\n") + b"\n"
    return CONTROL.sub(_character, text) if b"\\" in text else text


def _character(match: re.Match[bytes]) -> bytes:
    name = match[1]
    if name is None:  # a backslash
        return match[0]
    return LETTERS.get(name) or bytes([int(name[1:], 16)])
