"""Row readers: for each table map a generated function from the bytes of rows to the JSON of keys and rows.

A Python loop over columns would be most of a capture's cost. Instead, the source code of a function is
generated once for each table map. It reads rows without a null with as few `struct` calls as the variable
columns allow, and others column by column.
"""

from binascii import b2a_base64
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from struct import Struct
from typing import Any, NamedTuple

from headwater.capture.envelope import compile_function, members, piece, quote, quote_text
from headwater.capture.mariadb.binlog import column_types as types
from headwater.capture.mariadb.binlog import values as value
from headwater.capture.mariadb.binlog.binary_json import json_text
from headwater.capture.mariadb.binlog.charsets import QUOTE, Charsets, quote_surrogates
from headwater.capture.mariadb.binlog.events import Column, TableMap
from headwater.errors import CaptureError

__all__ = ["Image", "Layout", "row_reader"]

Image = tuple[str | None, str]
"""The key of a row, None in a table without one, and the row: both as pieces of JSON."""


class Layout(NamedTuple):
    """What is needed to read rows and is not in the table map."""

    charsets: Charsets
    decimal: value.Decimal = value.number
    kinds: Mapping[str, str] = {}
    """The type of columns that are bytes in the binlog: ``uuid``, ``inet4``, ``inet6``."""

    def labels(self, column: Column) -> list[str]:
        """The values of an enum or set."""
        return [*map(self.charsets.decoder(column.collation), column.labels)]


class _Step(NamedTuple):
    """How one column is read: a `struct` code for ``v``, and lines that compute the column's piece ``c``."""

    code: str
    lines: tuple[str, ...]
    variable: bool = False
    """Whether ``v`` is the length of the bytes after it."""


def row_reader(table: TableMap, layout: Layout) -> Callable[[bytes, int], list[Image]]:
    """A function that reads all rows from an offset in the bytes to their end."""
    names: dict[str, Any] = {
        "b64": b2a_base64,
        "piece": piece,
        "quote": quote,
        "value": value,
        "from_bytes": int.from_bytes,
        "json_text": json_text,
        "quote_surrogates": quote_surrogates,
        "quote_text": quote_text,
    }
    steps = [_step(i, column, table, layout, names) for i, column in enumerate(table.columns)]
    count = len(steps)
    size = (count + 7) // 8
    null = "b[p]" if size == 1 else f"from_bytes(b[p:p+{size}], 'little')"
    source = [
        "def read(b, p):",
        " out = []; add = out.append; end = len(b); t = b.decode('latin-1')",
        f" q = {QUOTE}",
        " while p < end:",
    ]
    source += [f"  n = {null}; p += {size}"]
    used = f"n & {(1 << count) - 1}" if count % 8 else "n"
    source += [f"  if not ({used}):", *(f"   {line}" for line in _whole(steps, names)), "  else:"]
    source += [f"   {line}" for line in _single(steps, names)]
    row = members([column.name for column in table.columns], [f"c{i}" for i in range(count)])
    key = members([table.columns[i].name for i in table.key], [f"c{i}" for i in table.key])
    keyed = f'f"{key}"' if table.key else "None"
    source += [f'  add(({keyed}, f"{row}"))', " return out"]
    read: Callable[[bytes, int], list[Image]] = compile_function("read", "\n".join(source), **names)
    return read


def _unpack(codes: str, names: dict[str, Any]) -> tuple[str, int]:
    """The name of the function that unpacks these codes, and their size."""
    shape = Struct("<" + codes)
    name = "u_" + codes
    names[name] = shape.unpack_from
    return name, shape.size


def _whole(steps: list[_Step], names: dict[str, Any]) -> list[str]:
    """Lines for a row without a null; columns of fixed size are unpacked together."""
    lines, run = [], list[int]()

    def flush() -> None:
        if run:
            name, size = _unpack("".join(steps[i].code for i in run), names)
            lines.append(f"{''.join(f'v{i}, ' for i in run)}= {name}(b, p); p += {size}")
            for i in run:
                lines.extend(steps[i].lines)
            run.clear()

    for i, step in enumerate(steps):
        if step.code:
            run.append(i)
        else:
            lines.extend(step.lines)
        if step.variable:
            flush()
    flush()
    return lines


def _single(steps: list[_Step], names: dict[str, Any]) -> list[str]:
    """Lines for any row, one column after the other."""
    lines = []
    for i, step in enumerate(steps):
        lines.append(f"if n & {1 << i}: c{i} = 'null'")
        lines.append("else:")
        if step.code:
            name, size = _unpack(step.code, names)
            lines.append(f" v{i}, = {name}(b, p); p += {size}")
        lines.extend(f" {line}" for line in step.lines or ("pass",))
    return lines


CACHED_MAX = 1024
INTEGERS = {types.TINY: "b", types.SHORT: "h", types.LONG: "i", types.LONGLONG: "q"}
VARIABLE = frozenset({types.VARCHAR, types.VAR_STRING, types.STRING, types.BLOB, types.JSON, types.GEOMETRY})
FRACTIONS = {0: (0, 0), 1: (1, 10000), 2: (1, 10000), 3: (2, 100), 4: (2, 100), 5: (3, 1), 6: (3, 1)}
"""By fractional digits: the bytes of the fraction, and the microseconds of its unit."""


def _step(i: int, column: Column, table: TableMap, layout: Layout, names: dict[str, Any]) -> _Step:
    kind = column.kind
    if kind in {types.OLD_TIMESTAMP, types.OLD_TIME, types.OLD_DATETIME}:
        raise CaptureError(
            f"column {column.name} of {table.schema}.{table.name} has the time format of MySQL before 5.6",
            hint=f"ALTER TABLE {table.schema}.{table.name} FORCE, with mysql56_temporal_format=ON",
        )
    if kind in INTEGERS:
        code = INTEGERS[kind]
        return _Step(code.upper() if column.unsigned else code, (f"c{i} = v{i}",))
    if kind in {types.DATETIME, types.TIMESTAMP, types.TIME}:
        return _temporal(i, column, names)
    if kind in VARIABLE:
        return _variable(i, column, layout, names)
    step = _decimal(i, column, layout, names) if kind == types.DECIMAL else _fixed(i, column, layout, names)
    if step is None:
        raise CaptureError(
            f"column {column.name} of {table.schema}.{table.name} has a type that is not supported",
            got=f"type {kind} of the binlog",
            hint="leave the table out, or change the column",
        )
    return step


def _fixed(i: int, column: Column, layout: Layout, names: dict[str, Any]) -> _Step | None:
    size = column.size
    if column.kind == types.ENUM:
        names[f"e{i}"] = value.label(layout.labels(column))
    elif column.kind == types.SET:
        names[f"e{i}"] = value.labels(layout.labels(column))
    code, line = {
        types.INT24: ("3s", f"from_bytes(v{i}, 'little', signed={not column.unsigned})"),
        types.FLOAT: ("4s", f"value.single(v{i})"),
        types.DOUBLE: ("d", f"repr(v{i})"),
        types.DATE: ("3s", f"value.date(from_bytes(v{i}, 'little'))"),
        types.YEAR: ("B", f"v{i} + 1900 if v{i} else 0"),
        types.BIT: (f"{(size + 7) // 8}s", f"value.bits(v{i}, {size})"),
        types.ENUM: ("B" if size == 1 else "H", f"e{i}[v{i}]"),
        types.SET: (f"{size}s", f"e{i}(from_bytes(v{i}, 'little'))"),
        types.NULL: ("", "'null'"),
    }.get(column.kind, (None, ""))
    return None if code is None else _Step(code, (f"c{i} = {line}",))


def _variable(i: int, column: Column, layout: Layout, names: dict[str, Any]) -> _Step:
    if column.kind in {types.BLOB, types.JSON, types.GEOMETRY}:
        code = {1: "B", 2: "H", 3: "3s", 4: "I"}[column.size]
    else:
        code = "B" if column.size < 256 else "H"
    length = (f"v{i} = from_bytes(v{i}, 'little')",) if code == "3s" else ()
    raw = f"b[p:p+v{i}]"
    if column.kind == types.JSON:
        expression = f"piece(quote(json_text({raw})))"
    elif column.kind == types.GEOMETRY:
        expression = f"value.geometry({raw})"
    elif column.name in layout.kinds:
        expression = f"value.{layout.kinds[column.name]}({raw}.ljust({column.size}, b'\\0'))"
    elif column.collation == types.BINARY_COLLATION:
        # BINARY is logged without its trailing zeros.
        padded = f"{raw}.ljust({column.size}, b'\\0')" if column.kind == types.STRING else raw
        expression = f"'\"' + b64({padded}, newline=False).decode() + '\"'"
    elif layout.charsets.plain(column.collation):
        expression = f"q(t[p:p+v{i}])"  # a UTF-8 text is already a piece
    else:
        names[f"t{i}"] = layout.charsets.decoder(column.collation)
        expression = f"quote_text(t{i}({raw}))"
    return _Step(code, (*length, f"c{i} = {expression}; p += v{i}"), variable=True)


def _temporal(i: int, column: Column, names: dict[str, Any]) -> _Step:
    digits = column.size
    size, unit = FRACTIONS[digits]
    shift, mask = 8 * size, (1 << 8 * size) - 1
    big = partial(int.from_bytes, byteorder="big")
    if column.kind == types.TIME:
        zero = 0x800000 << shift
        return _cached(i, 3 + size, lambda raw: value.span(big(raw) - zero, shift, unit), names)
    if column.kind == types.DATETIME:
        zero = 0x8000000000 << shift

        def moment(raw: bytes) -> int | str:
            packed = big(raw) - zero
            return value.moment(packed >> shift, (packed & mask) * unit, digits)

        return _cached(i, 5 + size, moment, names)

    def stamp(raw: bytes) -> str:
        packed = big(raw)
        return value.stamp(packed >> shift, (packed & mask) * unit, digits)

    return _cached(i, 4 + size, stamp, names)


def _decimal(i: int, column: Column, layout: Layout, names: dict[str, Any]) -> _Step:
    size, read = value.unscaled(column.size, column.scale)
    write = layout.decimal(column.scale)
    return _cached(i, size, lambda raw: write(read(raw)), names)


def _cached(i: int, size: int, function: Callable[[bytes], int | str], names: dict[str, Any]) -> _Step:
    """A step with a cache: an update has most of its values twice, and rows of one statement share many."""
    names[f"f{i}"] = lru_cache(CACHED_MAX)(function)
    return _Step(f"{size}s", (f"c{i} = f{i}(v{i})",))
