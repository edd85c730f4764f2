"""Messages of the protocol.

The decoder and encoder of a version are compiled when they are first used. ``decoder.py`` and ``encoder.py``
generate them from the layouts of ``layouts.py``. They do no I/O. Record batches are not opened: they are
views of the buffer.
"""

import functools
import itertools
import struct
import uuid
from typing import TYPE_CHECKING, Any, cast

from headwater.errors import ProtocolError
from headwater.protocol.kafka.decoder import Buffer, Decoder, decoder
from headwater.protocol.kafka.encoder import Encoder, encoder
from headwater.protocol.kafka.layouts import FORMATS, Api, Field, apis

__all__ = ["ZERO_UUID", "Layout", "Message", "layout"]

ZERO_UUID = uuid.UUID(int=0)


class Message:
    """A decoded or composed struct. Fields that a version lacks have their default."""

    __slots__ = ()
    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...

    def __repr__(self) -> str:
        names = itertools.chain.from_iterable(getattr(cls, "__slots__", ()) for cls in type(self).__mro__)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


class Layout:
    """One side of an API: its message classes, and a codec for each version, compiled on demand."""

    def __init__(self, api: Api, side: str) -> None:
        self.api = api
        self.fields: list[Field] = getattr(api, side)
        self._structs: dict[str, tuple[type[Message], dict[str, Any]]] = {}
        self._make_class(f"{api.name}{side.title()}", "", self.fields)
        self._decoders: dict[int, Decoder] = {}
        self._encoders: dict[int, Encoder] = {}

    def struct(self, path: str = "") -> type[Message]:
        """The class of the struct at a dotted path of field names; the message itself without a path."""
        return self._structs[path][0]

    def decode(self, version: int, buffer: Buffer, position: int = 0) -> Message:
        decode = self._decoders.get(version)
        if decode is None:
            flexible = version in self.api.flexible
            decode = decoder(self._structs.__getitem__, self.fields, version, flexible=flexible)
            self._decoders[version] = decode
        try:
            message, end = decode(buffer, position)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{self.api.name} version {version} does not decode: {error}") from error
        if end > len(buffer):
            raise ProtocolError(f"{self.api.name} version {version} is cut short", got=f"{len(buffer)} bytes")
        return cast("Message", message)

    def encode(self, version: int, message: Message, head: bytes = b"") -> list[Any]:
        """The pieces of the encoded message after a head.

        Large record batches are pieces of their own, uncopied.
        """
        encode = self._encoders.get(version)
        if encode is None:
            encode = encoder(_default, self.fields, version, flexible=version in self.api.flexible)
            self._encoders[version] = encode
        pieces: list[Any] = []
        pieces.append(encode(message, bytearray(head), pieces))
        return pieces

    def _make_class(self, name: str, path: str, fields: list[Field]) -> None:
        defaults = {field.name: _default(field) for field in fields}
        self._structs[path] = (_message_class(name, defaults), defaults)
        for field in fields:
            if field.type == "struct":
                below = f"{path}.{field.name}" if path else field.name
                self._make_class(f"{name}{field.name.title().replace('_', '')}", below, field.fields)


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


def _message_class(name: str, defaults: dict[str, Any]) -> type[Message]:
    arguments = ", ".join(f"{n}=_{n}" for n in defaults)
    body = "\n".join(f"    self.{n} = {n}" for n in defaults) or "    pass"
    source = f"def __init__(self, {'*, ' if defaults else ''}{arguments}):\n{body}\n"
    namespace: dict[str, Any] = {}
    # Generated from our own layouts.
    exec(source, {f"_{n}": value for n, value in defaults.items()}, namespace)  # noqa: S102
    return type(name, (Message,), {"__slots__": tuple(defaults), **namespace})
