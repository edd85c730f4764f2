"""Compiles message layouts into decoders and encoders, one Python function for each struct and version.

    decoder: (buffer, position) -> (message, position)
    encoder: (message, write) -> None        write takes one piece of the answer

Neither does I/O. A decoder trusts nothing: every length is checked against what is left in the buffer, and
what does not follow the layout is a ProtocolError. Record batches are handed on unopened, as views of the buffer.
"""

import functools
import itertools
import struct
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from headwater.errors import ProtocolError
from headwater.kafka.schema import Api, Field, apis

__all__ = ["Layout", "Message", "layout"]

Buffer = bytes | bytearray | memoryview
Write = Callable[[Any], object]
Decoder = Callable[[Buffer, int], tuple[Any, int]]
Encoder = Callable[[Any, Write], object]

ZERO_UUID = uuid.UUID(int=0)
FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}


class Message:
    """A decoded or composed struct: fields by name, those that a version lacks at their default."""

    __slots__ = ()
    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...

    def __repr__(self) -> str:
        names = itertools.chain.from_iterable(getattr(cls, "__slots__", ()) for cls in type(self).__mro__)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Layout:
    """One side of an API: its message classes, and a compiled codec for each version on demand."""

    def __init__(self, api: Api, side: str) -> None:
        self.api = api
        self.fields: list[Field] = getattr(api, side)
        self._classes: dict[str, type[Message]] = {}
        self._make_class(f"{api.name}{side.title()}", "", self.fields)
        self._decoders: dict[int, Decoder] = {}
        self._encoders: dict[int, Encoder] = {}

    def struct(self, path: str = "") -> type[Message]:
        """The class of the struct at a dotted path of field names; the message itself without a path."""
        return self._classes[path]

    def decode(self, version: int, buffer: Buffer, position: int = 0) -> Message:
        decoder = self._decoders.get(version)
        if decoder is None:
            decoder = self._decoders[version] = self._compile_decoder(version)
        try:
            message, end = decoder(buffer, position)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{self.api.name} version {version} does not decode: {error}") from error
        if end > len(buffer):
            raise ProtocolError(f"{self.api.name} version {version} is cut short", got=f"{len(buffer)} bytes")
        return cast("Message", message)

    def encode(self, version: int, message: Message) -> list[Any]:
        """The pieces of the encoded message, record batches among them uncopied."""
        encoder = self._encoders.get(version)
        if encoder is None:
            encoder = self._encoders[version] = self._compile_encoder(version)
        pieces: list[Any] = []
        encoder(message, pieces.append)
        return pieces

    def _make_class(self, name: str, path: str, fields: list[Field]) -> None:
        self._classes[path] = _message_class(name, fields)
        for field in fields:
            if field.type == "struct":
                below = f"{path}.{field.name}" if path else field.name
                self._make_class(f"{name}{field.name.title().replace('_', '')}", below, field.fields)

    def _compile_decoder(self, version: int) -> Decoder:
        return _decoder(self, "", self.fields, version, version in self.api.flexible)

    def _compile_encoder(self, version: int) -> Encoder:
        return _encoder(self.fields, version, version in self.api.flexible)


@functools.cache
def layout(name: str, side: str) -> Layout:
    """The layout of ``request`` or ``response`` of an API."""
    return Layout(apis()[name], side)


def _default(field: Field) -> Any:
    """The value of a field that was not set: the layout's own default, or the type's zero."""
    if field.array:
        return None if field.default == "null" else ()
    if field.default == "null":
        return None
    if field.type in FORMATS:
        text = field.default or "0"
        return text == "true" if field.type == "bool" else int(text, 0)
    return {"string": field.default or "", "uuid": ZERO_UUID, "struct": None}.get(field.type, b"")


def _message_class(name: str, fields: list[Field]) -> type[Message]:
    names = tuple(field.name for field in fields)
    defaults = {f"_{field.name}": _default(field) for field in fields}
    arguments = ", ".join(f"{n}=_{n}" for n in names)
    body = "\n".join(f"    self.{n} = {n}" for n in names) or "    pass"
    source = f"def __init__(self, {'*, ' if names else ''}{arguments}):\n{body}\n"
    namespace: dict[str, Any] = {}
    exec(source, defaults, namespace)  # noqa: S102  generated from our own layouts
    return type(name, (Message,), {"__slots__": names, **namespace})


# ---- reading -------------------------------------------------------------------------------------------


def _slice(buffer: Buffer, position: int, length: int) -> tuple[Buffer, int]:
    end = position + length
    if end > len(buffer):
        raise ProtocolError(
            "a length reaches past the end of the request",
            got=f"{length} bytes at {position} of {len(buffer)}",
        )
    return buffer[position:end], end


def _read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > 28:
            raise ProtocolError("a variable-length number has more than 5 bytes")


_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")


def _length16(buffer: Buffer, position: int) -> tuple[int, int]:
    return _int16.unpack_from(buffer, position)[0], position + 2


def _length32(buffer: Buffer, position: int) -> tuple[int, int]:
    return _int32.unpack_from(buffer, position)[0], position + 4


def _length_compact(buffer: Buffer, position: int) -> tuple[int, int]:
    length, position = _read_varint(buffer, position)
    return length - 1, position


def _reader(kind: str, *, flexible: bool, nullable: bool) -> Decoder:
    """Reads a string, bytes, records or uuid."""
    if kind == "uuid":
        return _read_uuid
    length_of = _length_compact if flexible else _length16 if kind == "string" else _length32

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        length, position = length_of(buffer, position)
        if length < 0:
            if nullable:
                return None, position
            raise ProtocolError(f"a {kind} is null where the layout has a value")
        piece, position = _slice(buffer, position, length)
        if kind == "string":
            return str(piece, "utf-8"), position
        return piece if kind == "records" else bytes(piece), position

    return read


def _read_uuid(buffer: Buffer, position: int) -> tuple[uuid.UUID, int]:
    piece, position = _slice(buffer, position, 16)
    return _uuid(bytes(piece)), position


@functools.lru_cache(maxsize=4096)
def _uuid(data: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=data)


def _array_reader(item: Decoder, *, flexible: bool, nullable: bool) -> Decoder:
    length_of = _length_compact if flexible else _length32

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        length, position = length_of(buffer, position)
        if length < 0:
            if nullable:
                return None, position
            raise ProtocolError("an array is null where the layout has a value")
        if length > len(buffer) - position:
            raise ProtocolError("an array is longer than its request", got=f"{length} items")
        items = []
        for _ in range(length):
            value, position = item(buffer, position)
            items.append(value)
        return items, position

    return read


def _tag_reader(tagged: dict[int, tuple[str, Decoder]]) -> Callable[[Buffer, int, Message], int]:
    def read(buffer: Buffer, position: int, message: Message) -> int:
        count, position = _read_varint(buffer, position)
        for _ in range(count):
            tag, position = _read_varint(buffer, position)
            size, position = _read_varint(buffer, position)
            if tag in tagged:
                name, decode = tagged[tag]
                value, _ = decode(buffer, position)
                setattr(message, name, value)
            _, position = _slice(buffer, position, size)
        return position

    return read


def _value_decoder(lay: Layout, path: str, field: Field, version: int, flexible: bool) -> Decoder:
    nullable = version in field.nullable
    if field.type == "struct":
        item = _decoder(lay, path, field.fields, version, flexible)
        if nullable and not field.array:
            item = _optional_reader(item)
    elif field.type in FORMATS:
        item = _number_reader(FORMATS[field.type])
    else:
        item = _reader(field.type, flexible=flexible, nullable=nullable and not field.array)
    return _array_reader(item, flexible=flexible, nullable=nullable) if field.array else item


def _optional_reader(item: Decoder) -> Decoder:
    """A struct that may be null has a byte before it: negative for null."""

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        return (None, position + 1) if buffer[position] > 0x7F else item(buffer, position + 1)

    return read


def _number_reader(code: str) -> Decoder:
    number = struct.Struct(">" + code)

    def read(buffer: Buffer, position: int) -> tuple[Any, int]:
        return number.unpack_from(buffer, position)[0], position + number.size

    return read


def _decoder(lay: Layout, path: str, fields: list[Field], version: int, flexible: bool) -> Decoder:
    """Source for one struct: neighbouring numbers become one ``unpack_from``, everything else one call each."""
    present = [f for f in fields if version in f.versions]
    plain = [f for f in present if f.tag is None]
    names: dict[str, Any] = {"new": lay.struct(path)}
    lines = ["def decode(b, p):", "    m = new()"]
    for numeric, run in itertools.groupby(plain, key=lambda f: f.type in FORMATS and not f.array):
        group = list(run)
        if numeric:
            packed = struct.Struct(">" + "".join(FORMATS[f.type] for f in group))
            key = f"s{len(names)}"
            names[key] = packed.unpack_from
            lines += [
                f"    {', '.join('m.' + f.name for f in group)}, = {key}(b, p)",
                f"    p += {packed.size}",
            ]
            continue
        for f in group:
            key = f"f{len(names)}"
            names[key] = _value_decoder(lay, f"{path}.{f.name}".lstrip("."), f, version, flexible)
            lines.append(f"    m.{f.name}, p = {key}(b, p)")
    if flexible:
        tagged = {
            f.tag: (f.name, _value_decoder(lay, f"{path}.{f.name}".lstrip("."), f, version, flexible))
            for f in present
            if f.tag is not None
        }
        names["tags"] = _tag_reader(tagged)
        lines.append("    p = tags(b, p, m)")
    lines.append("    return m, p")
    return cast("Decoder", _compiled("decode", lines, names))


# ---- writing -------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """An unsigned variable-length number."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _compact_length(length: int) -> bytes:
    return varint(length + 1)


def _writer(kind: str, *, flexible: bool) -> Encoder:
    """Writes a string, bytes, records or uuid; None is written as null."""
    if kind == "uuid":
        return lambda value, write: write(value.bytes)
    length = _compact_length if flexible else _int16.pack if kind == "string" else _int32.pack

    def write_text(value: str | None, write: Write) -> None:
        if value is None:
            write(length(-1))
        else:
            data = value.encode()
            write(length(len(data)) + data)

    def write_bytes(value: Buffer | None, write: Write) -> None:
        if value is None:
            write(length(-1))
        else:
            write(length(len(value)))
            write(value)

    return write_text if kind == "string" else write_bytes


def _array_writer(item: Encoder, *, flexible: bool) -> Encoder:
    length = _compact_length if flexible else _int32.pack

    def write_items(values: list[Any] | None, write: Write) -> None:
        if values is None:
            write(length(-1))
            return
        write(length(len(values)))
        for value in values:
            item(value, write)

    return write_items


def _value_encoder(field: Field, version: int, flexible: bool) -> Encoder:
    if field.type == "struct":
        item = _encoder(field.fields, version, flexible)
        if version in field.nullable and not field.array:
            item = _optional_writer(item)
    elif field.type in FORMATS:
        pack = struct.Struct(">" + FORMATS[field.type]).pack
        item = lambda value, write: write(pack(value))  # noqa: E731
    else:
        item = _writer(field.type, flexible=flexible)
    return _array_writer(item, flexible=flexible) if field.array else item


def _optional_writer(item: Encoder) -> Encoder:
    def write_optional(value: Message | None, write: Write) -> None:
        if value is None:
            write(b"\xff")
        else:
            write(b"\x01")
            item(value, write)

    return write_optional


def _tag_writer(tagged: list[tuple[int, str, Any, Encoder]]) -> Encoder:
    """Tagged fields are written only where they differ from their default."""

    def write_tags(message: Message, write: Write) -> None:
        encoded = []
        for tag, name, default, encode in tagged:
            value = getattr(message, name)
            if value is not None and value != default:
                pieces: list[bytes] = []
                encode(value, pieces.append)
                encoded.append((tag, b"".join(pieces)))
        write(varint(len(encoded)))
        for tag, data in encoded:
            write(varint(tag) + varint(len(data)) + data)

    return write_tags


def _encoder(fields: list[Field], version: int, flexible: bool) -> Encoder:
    present = [f for f in fields if version in f.versions]
    names: dict[str, Any] = {}
    lines = ["def encode(m, w):"]
    plain = [f for f in present if f.tag is None]
    for numeric, run in itertools.groupby(plain, key=lambda f: f.type in FORMATS and not f.array):
        group = list(run)
        if numeric:
            key = f"s{len(names)}"
            names[key] = struct.Struct(">" + "".join(FORMATS[f.type] for f in group)).pack
            lines.append(f"    w({key}({', '.join('m.' + f.name for f in group)}))")
            continue
        for f in group:
            key = f"f{len(names)}"
            names[key] = _value_encoder(f, version, flexible)
            lines.append(f"    {key}(m.{f.name}, w)")
    if flexible:
        tagged = sorted(
            (f.tag, f.name, _default(f), _value_encoder(f, version, flexible))
            for f in present
            if f.tag is not None
        )
        names["tags"] = _tag_writer(tagged)
        lines.append("    tags(m, w)")
    lines.append("    return None")
    return cast("Encoder", _compiled("encode", lines, names))


def _compiled(name: str, lines: list[str], names: dict[str, Any]) -> Any:
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), names, namespace)  # noqa: S102  generated from our own layouts
    return namespace[name]
