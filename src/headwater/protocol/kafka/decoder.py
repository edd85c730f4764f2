"""Generates the decoder of a message in one version: straight code, without loops over fields.

    decode: (buffer, position) -> (message, position)

A decoder trusts nothing: it checks every length against what is left in the buffer. Bytes that do not follow
the layout are a ProtocolError, or an error of reading past the end, which ``Layout`` turns into one. In the
generated code ``b`` is the buffer, ``e`` its end and ``p`` the position.
"""

import itertools
import struct
import uuid
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from headwater.errors import ProtocolError
from headwater.protocol.kafka.generated import FunctionSource
from headwater.protocol.kafka.layouts import FORMATS, Field
from headwater.varint import read_varint

__all__ = ["Buffer", "Decoder", "Structs", "decoder"]

Buffer = bytes | bytearray | memoryview
Decoder = Callable[[Buffer, int], tuple[Any, int]]
Structs = Callable[[str], tuple[type, dict[str, Any]]]
"""The class of the struct at a dotted path, and the defaults of its fields."""


def decoder(structs: Structs, fields: list[Field], version: int, *, flexible: bool) -> Decoder:
    """Compiles the decoder of a message."""
    writer = _Writer(structs, version, flexible=flexible)
    writer.struct("m", "", fields)
    return writer.finish("m")


class _Writer:
    """Writes the lines that read a value into the target, a variable or an attribute."""

    def __init__(self, structs: Structs, version: int, *, flexible: bool) -> None:
        self._structs = structs
        self._version = version
        self._flexible = flexible
        self._source = FunctionSource("def decode(b, p):")
        self._source.add("e = len(b)")

    def finish(self, target: str) -> Decoder:
        self._source.add(f"return {target}, p")
        return cast("Decoder", self._source.compiled())

    def struct(self, target: str, path: str, fields: list[Field]) -> None:
        """Adjacent numbers become one ``unpack_from``."""
        source = self._source
        message, defaults = self._structs(path)
        new, cls = source.bind("new", message.__new__), source.bind("cls", message)
        source.add(f"{target} = {new}({cls})")
        plain = [f for f in fields if self._version in f.versions and f.tag is None]
        for field in fields:
            if field not in plain:
                default = source.bind("default", defaults[field.name])
                source.add(f"{target}.{field.name} = {default}")
        for numeric, run in itertools.groupby(plain, key=lambda f: f.is_number):
            if numeric:
                self._numbers(target, list(run))
                continue
            for field in run:
                self.value(f"{target}.{field.name}", f"{path}.{field.name}".lstrip("."), field)
        if self._flexible:
            self._tags(target, path, fields)

    def value(self, target: str, path: str, field: Field) -> None:
        nullable = self._version in field.nullable
        if field.array:
            self._array(target, path, field, nullable=nullable)
        elif field.type == "struct" and nullable:
            with self._source.block("if b[p] > 127:"):
                self._source.add(f"{target} = None", "p += 1")
            with self._source.block("else:"):
                self._source.add("p += 1")
                self._item(target, path, field, nullable=False)
        else:
            self._item(target, path, field, nullable=nullable)

    def _numbers(self, target: str, fields: list[Field]) -> None:
        packed = struct.Struct(">" + "".join(FORMATS[f.type] for f in fields))
        unpack = self._source.bind("unpack", packed.unpack_from)
        names = ", ".join(f"{target}.{f.name}" for f in fields)
        self._source.add(f"{names}, = {unpack}(b, p)", f"p += {packed.size}")

    def _item(self, target: str, path: str, field: Field, *, nullable: bool) -> None:
        if field.type == "struct":
            item = self._source.new_name("m")
            self.struct(item, path, field.fields)
            self._source.add(f"{target} = {item}")
        elif field.type in FORMATS:
            number = struct.Struct(">" + FORMATS[field.type])
            unpack = self._source.bind("unpack", number.unpack_from)
            self._source.add(f"{target}, = {unpack}(b, p)", f"p += {number.size}")
        elif field.type == "uuid":
            read = self._source.bind("uuid", _uuid)
            self._source.add(f"{target} = {read}(bytes(b[p:p + 16]))", "p += 16")
        else:
            self._text(target, field.type, nullable=nullable)

    def _text(self, target: str, kind: str, *, nullable: bool) -> None:
        """A string, bytes or records; records are not opened: they are a view of the buffer."""
        source = self._source
        self._length(2 if kind == "string" else 4)
        self._null(target, f"a {kind}", nullable=nullable)
        with source.block("else:"):
            source.add("q = p + n")
            with source.block("if q > e:"):
                source.add(f"raise {source.bind('past', _past)}(n, p, e)")
            piece = {"string": "str(b[p:q], 'utf-8')", "records": "b[p:q]"}.get(kind, "bytes(b[p:q])")
            source.add(f"{target} = {piece}", "p = q")

    def _array(self, target: str, path: str, field: Field, *, nullable: bool) -> None:
        source = self._source
        self._length(4)
        self._null(target, "an array", nullable=nullable)
        with source.block("else:"):
            with source.block("if n > e - p:"):
                source.add(f"raise {source.bind('long', _too_long)}(n)")
            items, item = source.new_name("items"), source.new_name("item")
            source.add(f"{items} = []")
            with source.block("for _ in range(n):"):
                self._item(item, path, field, nullable=False)
                source.add(f"{items}.append({item})")
            source.add(f"{target} = {items}")

    def _length(self, width: int) -> None:
        """Reads a length into ``n``; it is negative for null."""
        source = self._source
        if not self._flexible:
            unpack = source.bind("unpack", struct.Struct(">h" if width == 2 else ">i").unpack_from)
            source.add(f"n, = {unpack}(b, p)", f"p += {width}")
            return
        source.add("n = b[p] - 1", "p += 1")
        with source.block("if n > 126:"):
            source.add(f"n, p = {source.bind('varint', read_varint)}(b, p - 1)", "n -= 1")

    def _null(self, target: str, what: str, *, nullable: bool) -> None:
        with self._source.block("if n < 0:"):
            if nullable:
                self._source.add(f"{target} = None")
            else:
                self._source.add(f"raise {self._source.bind('null', _is_null)}({what!r})")

    def _tags(self, target: str, path: str, fields: list[Field]) -> None:
        readers = {}
        for field in fields:
            if field.tag is not None and self._version in field.versions:
                writer = _Writer(self._structs, self._version, flexible=True)
                writer.value("v", f"{path}.{field.name}".lstrip("."), field)
                readers[field.tag] = (field.name, writer.finish("v"))
        read = self._source.bind("tags", _tag_reader(readers))
        with self._source.block("if b[p]:"):
            self._source.add(f"p = {read}(b, p, {target})")
        with self._source.block("else:"):
            self._source.add("p += 1")


def _tag_reader(readers: dict[int, tuple[str, Decoder]]) -> Callable[[Buffer, int, object], int]:
    def read(buffer: Buffer, position: int, message: object) -> int:
        count, position = read_varint(buffer, position)
        for _ in range(count):
            tag, position = read_varint(buffer, position)
            size, position = read_varint(buffer, position)
            if position + size > len(buffer):
                raise _past(size, position, len(buffer))
            if tag in readers:
                name, decode = readers[tag]
                value, _ = decode(buffer, position)
                setattr(message, name, value)
            position += size
        return position

    return read


@lru_cache(maxsize=4096)
def _uuid(data: bytes) -> uuid.UUID:
    if len(data) < 16:
        raise _past(16, 0, len(data))
    return uuid.UUID(bytes=data)


def _past(length: int, position: int, end: int) -> ProtocolError:
    got = f"{length} bytes at {position} of {end}"
    return ProtocolError("a length reaches past the end of the request", got=got)


def _too_long(length: int) -> ProtocolError:
    return ProtocolError("an array is longer than its request", got=f"{length} items")


def _is_null(what: str) -> ProtocolError:
    return ProtocolError(f"{what} is null where the layout needs a value")
