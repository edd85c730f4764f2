"""Generates the encoder of a message in one version: straight code, without loops over fields.

    encode: (message, out, pieces) -> out        out is the last piece, which is not among the pieces yet

Small values are copied into ``out``; large record batches become pieces of their own, uncopied. In the
generated code ``o`` is ``out``.
"""

import itertools
import struct
from collections.abc import Callable
from typing import Any, cast

from headwater.protocol.kafka.generated import FunctionSource
from headwater.protocol.kafka.layouts import FORMATS, Field
from headwater.varint import varint

__all__ = ["Defaults", "Encoder", "encoder"]

Encoder = Callable[[Any, bytearray, list[Any]], bytearray]
Defaults = Callable[[Field], Any]

COPIED_BYTES_MAX = 1 << 14


def encoder(defaults: Defaults, fields: list[Field], version: int, *, flexible: bool) -> Encoder:
    """Compiles the encoder of a message."""
    writer = _Writer(defaults, version, flexible=flexible)
    writer.struct("m", fields)
    return writer.finish()


class _Writer:
    """Writes the lines that encode the value of an expression."""

    def __init__(self, defaults: Defaults, version: int, *, flexible: bool) -> None:
        self._defaults = defaults
        self._version = version
        self._flexible = flexible
        self._source = FunctionSource("def encode(m, o, pieces):")

    def finish(self) -> Encoder:
        self._source.add("return o")
        return cast("Encoder", self._source.compiled())

    def struct(self, value: str, fields: list[Field]) -> None:
        """Adjacent numbers become one ``pack``."""
        present = [f for f in fields if self._version in f.versions]
        plain = [f for f in present if f.tag is None]
        for numeric, run in itertools.groupby(plain, key=lambda f: f.is_number):
            if numeric:
                group = list(run)
                names = ", ".join(f"{value}.{f.name}" for f in group)
                self._source.add(f"o += {self._pack(''.join(FORMATS[f.type] for f in group))}({names})")
                continue
            for field in run:
                self.value(f"{value}.{field.name}", field)
        if self._flexible:
            self._tags(value, [f for f in present if f.tag is not None])

    def value(self, value: str, field: Field) -> None:
        source = self._source
        name = source.new_name("v")
        source.add(f"{name} = {value}")
        if field.array:
            self._array(name, field)
        elif field.type == "struct" and self._version in field.nullable:
            with source.block(f"if {name} is None:"):
                source.add("o.append(255)")
            with source.block("else:"):
                source.add("o.append(1)")
                self.struct(name, field.fields)
        else:
            self._item(name, field)

    def _item(self, name: str, field: Field) -> None:
        if field.type == "struct":
            self.struct(name, field.fields)
        elif field.type in FORMATS:
            self._source.add(f"o += {self._pack(FORMATS[field.type])}({name})")
        elif field.type == "uuid":
            self._source.add(f"o += {name}.bytes")
        else:
            self._text(name, field.type)

    def _text(self, name: str, kind: str) -> None:
        """A string, bytes or records; None is written as null."""
        source, width = self._source, "h" if kind == "string" else "i"
        self._null(name, width)
        with source.block("else:"):
            if kind == "string":
                source.add(f"{name} = {name}.encode()")
            self._length(name, width)
            if kind == "records":
                with source.block(f"if len({name}) > {COPIED_BYTES_MAX}:"):
                    source.add("pieces.append(o)", f"pieces.append({name})", "o = bytearray()")
                with source.block("else:"):
                    source.add(f"o += {name}")
            else:
                source.add(f"o += {name}")

    def _array(self, name: str, field: Field) -> None:
        source, item = self._source, self._source.new_name("item")
        self._null(name, "i")
        with source.block("else:"):
            self._length(name, "i")
            with source.block(f"for {item} in {name}:"):
                self._item(item, field)

    def _null(self, name: str, width: str) -> None:
        with self._source.block(f"if {name} is None:"):
            self._source.add("o.append(0)" if self._flexible else f"o += {self._pack(width)}(-1)")

    def _length(self, name: str, width: str) -> None:
        source = self._source
        if not self._flexible:
            source.add(f"o += {self._pack(width)}(len({name}))")
            return
        source.add(f"n = len({name}) + 1")
        with source.block("if n < 128:"):
            source.add("o.append(n)")
        with source.block("else:"):
            source.add(f"o += {source.bind('varint', varint)}(n)")

    def _tags(self, value: str, fields: list[Field]) -> None:
        """Tagged fields are written only where they differ from their default."""
        source, tagged = self._source, []
        for field in sorted(fields, key=lambda f: f.tag or 0):
            writer = _Writer(self._defaults, self._version, flexible=True)
            writer.value("m", field)
            tagged.append((field.tag or 0, field.name, self._defaults(field), writer.finish()))
        unset = [f"{value}.{name} is {source.bind('default', default)}" for _, name, default, _ in tagged]
        if not tagged:
            source.add("o.append(0)")
            return
        with source.block(f"if {' and '.join(unset)}:"):
            source.add("o.append(0)")
        with source.block("else:"):
            source.add(f"{source.bind('tags', _tag_writer(tagged))}({value}, o)")

    def _pack(self, code: str) -> str:
        return self._source.bind("pack", struct.Struct(">" + code).pack)


def _tag_writer(tagged: list[tuple[int, str, Any, Encoder]]) -> Callable[[object, bytearray], None]:
    def write(message: object, out: bytearray) -> None:
        encoded = []
        for tag, name, default, encode in tagged:
            value = getattr(message, name)
            if value is not None and value != default:
                pieces: list[Any] = []
                pieces.append(encode(value, bytearray(), pieces))
                encoded.append((tag, b"".join(pieces)))
        out += varint(len(encoded))
        for tag, data in encoded:
            out += varint(tag) + varint(len(data)) + data

    return write
