"""Rows in COPY's text format as JSON, by a function generated for each table, as in ``messages.py``."""

import re
from collections.abc import Callable, Sequence

from headwater.capture.envelope import compile_function, members
from headwater.capture.postgres.values import Kind

__all__ = ["ReadLine", "line_reader", "unescape"]

ReadLine = Callable[[bytes], tuple[bytes | None, bytes]]
"""From a line with its end to the bytes of key and value."""
Bind = Callable[[str, str], ReadLine]
"""From the pieces before and after each row to the function that reads a line."""

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_CHARACTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def unescape(text: str) -> str:
    """A value without COPY's backslashes."""
    return _ESCAPE.sub(lambda match: _CHARACTERS.get(match[1], match[1]), text)


def line_reader(names: Sequence[str], kinds: Sequence[Kind], key: Sequence[int]) -> Bind:
    """Generates the function.

    A line without a backslash, the usual one, is split and joined; others cost more.
    """
    values = [f"f{at}" if kind.encode is None else f"e{at}(f{at})" for at, kind in enumerate(kinds)]
    careful = [
        f"'null' if f{at} == '\\\\N' else "
        + (f"f{at}" if kind.encode is None else f"e{at}(unescape(f{at}) if '\\\\' in f{at} else f{at})")
        for at, kind in enumerate(kinds)
    ]
    fields = "".join(f"f{at}, " for at in range(len(names)))
    parts = [f"c{at}" for at in range(len(names))]
    value = f'f"{{y}}{members(names, parts)}{{z}}".encode("latin-1")'
    inside = members([names[at] for at in key], [parts[at] for at in key])
    keyed = f'f"{inside}".encode("latin-1")' if key else "None"
    code = [
        "def bind(y, z):",
        " def read(line):",
        "  t = str(line, 'latin-1')[:-1]",
        f"  {fields} = t.split('\\t')",
        "  if '\\\\' in t:",
        *(f"   c{at} = {expression}" for at, expression in enumerate(careful)),
        "  else:",
        *(f"   c{at} = {expression}" for at, expression in enumerate(values)),
        f"  return {keyed}, {value}",
        " return read",
        "",
    ]
    encoders = {f"e{at}": kind.encode for at, kind in enumerate(kinds)}
    bind: Bind = compile_function("bind", "\n".join(code), unescape=unescape, **encoders)
    return bind
