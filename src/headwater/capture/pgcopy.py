"""Copied: rows in COPY's text format as JSON, by a function that is written for the table, like those of ``pgoutput.py``."""

import re
from collections.abc import Callable, Sequence

from headwater.capture.envelope import compiled, members
from headwater.capture.pgtypes import Kind

__all__ = ["Copied", "copied"]

Copied = Callable[[bytes], tuple[bytes | None, bytes]]
Bind = Callable[[str, str], Copied]
"""From what stands before and behind each row to a function that makes the bytes of key and value of a line with its end."""

_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_MEANING = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def unescaped(text: str) -> str:
    """A value without COPY's backslashes."""
    return _ESCAPE.sub(lambda found: _MEANING.get(found[1], found[1]), text)


def copied(names: Sequence[str], kinds: Sequence[Kind], key: Sequence[int]) -> Bind:
    """A line without any backslash, the common one, is split and joined; nulls and escapes cost more."""
    values = [f"f{at}" if kind.encode is None else f"e{at}(f{at})" for at, kind in enumerate(kinds)]
    careful = [
        f"'null' if f{at} == '\\\\N' else "
        + (f"f{at}" if kind.encode is None else f"e{at}(unescaped(f{at}) if '\\\\' in f{at} else f{at})")
        for at, kind in enumerate(kinds)
    ]
    fields = "".join(f"f{at}, " for at in range(len(names)))
    parts = [f"c{at}" for at in range(len(names))]
    value = f'f"{{y}}{members(names, parts)}{{z}}".encode("latin-1")'
    inside = members([names[at] for at in key], [parts[at] for at in key])
    named = f'f"{inside}".encode("latin-1")' if key else "None"
    code = [
        "def bind(y, z):",
        " def copied(line):",
        "  t = str(line, 'latin-1')[:-1]",
        f"  {fields} = t.split('\\t')",
        "  if '\\\\' in t:",
        *(f"   c{at} = {each}" for at, each in enumerate(careful)),
        "  else:",
        *(f"   c{at} = {each}" for at, each in enumerate(values)),
        f"  return {named}, {value}",
        " return copied",
        "",
    ]
    known = {f"e{at}": kind.encode for at, kind in enumerate(kinds)}
    made: Bind = compiled("bind", "\n".join(code), unescaped=unescaped, **known)
    return made
