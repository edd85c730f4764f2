"""Encoding: events of declared streams as keys and values of records."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from headwater.declare.schema import Event, encode, key_text, wire
from headwater.declare.spec import Stream
from headwater.decoders import from_json
from headwater.errors import UsageError

__all__ = ["Key", "Value", "always", "target_of", "value_bytes"]

Value = Event | bytes | None
"""An event, or its bytes; None deletes a key of a compacted topic."""
Key = str | bytes | None
Same = TypeVar("Same")


def target_of(to: Stream | str, key: Key | Callable[[Any], Key]) -> tuple[str, Callable[[Any], Key]]:
    """The topic, and the function that gives each event its key."""
    key_of = key if callable(key) else always(key)
    if isinstance(to, str):
        return to, key_of
    if to.pattern is not None:
        raise UsageError(
            f"stream {to.name!r} reads many topics",
            got=f"pattern {to.pattern!r}",
            hint="name the one to write to: send('topic', events, key=…)",
        )
    return to.topic, key_of if key is not None else lambda event: _declared(event, to)


def always(value: Same) -> Callable[[Any], Same]:
    """A function of anything that returns the value."""
    return lambda _: value


def _declared(event: Value, stream: Stream) -> str:
    """The key of an event as its stream declares it; raw bytes are decoded for it."""
    if isinstance(event, Event):
        row = wire(event)
    else:
        try:
            row = from_json(event or b"", dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(
                f"a record for stream {stream.name!r} has no key", got=str(error), hint="give key=…"
            ) from error
    missing = [name for name in stream.key if name not in row]
    if missing:
        raise UsageError(f"a record for stream {stream.name!r} has no field {missing[0]!r}")
    return key_text([row[name] for name in stream.key])


def value_bytes(event: Value, to: Stream | str) -> bytes | None:
    """The value of a record: an event as JSON, bytes as they are."""
    if isinstance(to, Stream) and isinstance(event, Event) and not isinstance(event, to.type):
        raise UsageError(
            f"an event is not of stream {to.name!r}", got=type(event).__name__, expected=to.type.__name__
        )
    return encode(event) if isinstance(event, Event) else event
