"""Timers: time-outs of keys in a shard's state, in the order of their times.

    k KEY           → TIME VALUE        the value of a key, and its time-out
    t TIME DIGEST   → KEY               each time-out with its key

A time before 1970 is a negative number, whose bytes come after all others: a scan of time-outs begins with
those.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping

from headwater.pipeline.state.contract import State
from headwater.pipeline.time.watermark import Moment

__all__ = ["changed", "due", "earliest", "entry", "kept", "open_at", "place", "time_of"]

EARLIEST = -(1 << 63)
_time = struct.Struct(">q")


def entry(time_us: int, key: bytes) -> bytes:
    """The entry of a key's time-out."""
    return b"t" + _time.pack(time_us) + hashlib.blake2b(key, digest_size=16).digest()


def place(key: bytes) -> bytes:
    """The entry of a key's value."""
    return b"k" + key


def kept(time_us: int, value: bytes) -> bytes:
    """A value with its time-out, as the entry of its key stores it."""
    return _time.pack(time_us) + value


def time_of(kept: bytes) -> int:
    """The time-out in the entry of a key."""
    time_us: int = _time.unpack_from(kept)[0]
    return time_us


def changed(key: bytes, before: bytes | None, after: bytes | None) -> dict[bytes, bytes | None]:
    """The changes of the state when a key gets another value, or none; both values with their time-outs."""
    changes: dict[bytes, bytes | None] = {}
    if before is not None:
        changes[entry(time_of(before), key)] = None
    changes[place(key)] = after
    if after is not None:
        changes[entry(time_of(after), key)] = key
    return changes


def due(state: State, upto_us: int) -> list[tuple[bytes, bytes]]:
    """The time-outs up to a time, as entries with their keys."""
    return list(_stretch(state, EARLIEST, upto_us + 1))


def earliest(state: State, changes: Mapping[bytes, bytes | None], after_us: int) -> int | None:
    """The first open time-out after the changes, if those up to ``after_us`` were due."""
    added = (time_of(entry[1:]) for entry, key in changes.items() if entry[:1] == b"t" and key is not None)
    still = (
        time_of(entry[1:])
        for entry, _ in _stretch(state, after_us + 1, None)
        if changes.get(entry, b"") is not None
    )
    return min(
        (time_us for time_us in (min(added, default=None), next(still, None)) if time_us is not None),
        default=None,
    )


def open_at(state: State, changes: Mapping[bytes, bytes | None], moment: Moment) -> int | None:
    """The watermark at which the next time-out is due, for time-outs by the horizon."""
    first = earliest(state, changes, moment.horizon)
    return first + moment.watermark - moment.horizon if first is not None else None


def _stretch(state: State, start_us: int, end_us: int | None) -> Iterator[tuple[bytes, bytes]]:
    """The time-outs of a range of time, without its end, in order."""
    if start_us < 0:
        end = b"t" + _time.pack(end_us) if end_us is not None and end_us < 0 else b"u"
        yield from state.between(b"t" + _time.pack(start_us), end)
    if end_us is None or end_us > 0:
        end = b"t" + (_time.pack(end_us) if end_us is not None else b"\x80")
        yield from state.between(b"t" + _time.pack(max(start_us, 0)), end)
