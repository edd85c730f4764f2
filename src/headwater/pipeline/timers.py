"""Timers: time-outs of keys in a shard's state, in the order of their times.

    k KEY           → TIME VALUE        what a key has, and when its time-out is
    t TIME DIGEST   → KEY               each time-out with its key

A time before 1970 is a negative number, and its bytes would stand behind all others: whoever goes through time-outs begins with those.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping

from headwater.pipeline.operator import Moment, State

__all__ = ["changed", "due", "earliest", "entry", "kept", "open_at", "place", "time_of"]

EARLIEST = -(1 << 63)
_time = struct.Struct(">q")


def entry(time_us: int, key: bytes) -> bytes:
    """Where the time-out of a key stands."""
    return b"t" + _time.pack(time_us) + hashlib.blake2b(key, digest_size=16).digest()


def place(key: bytes) -> bytes:
    """Where the value of a key stands."""
    return b"k" + key


def kept(time_us: int, value: bytes) -> bytes:
    """A value with its time-out, as it stands at the place of its key."""
    return _time.pack(time_us) + value


def time_of(kept: bytes) -> int:
    """The time-out of what stands at the place of a key."""
    time_us: int = _time.unpack_from(kept)[0]
    return time_us


def changed(key: bytes, before: bytes | None, after: bytes | None) -> dict[bytes, bytes | None]:
    """What changes in the state when a key has something else from now on, or nothing; both with their time-outs."""
    changes: dict[bytes, bytes | None] = {}
    if before is not None:
        changes[entry(time_of(before), key)] = None
    changes[place(key)] = after
    if after is not None:
        changes[entry(time_of(after), key)] = key
    return changes


def due(state: State, upto_us: int) -> list[tuple[bytes, bytes]]:
    """The time-outs up to a time, each where it stands and with its key."""
    return list(_stretch(state, EARLIEST, upto_us + 1))


def earliest(state: State, changes: Mapping[bytes, bytes | None], after_us: int) -> int | None:
    """The first time-out that is open after the changes, when those up to ``after_us`` were due."""
    added = (time_of(entry[1:]) for entry, key in changes.items() if entry[:1] == b"t" and key is not None)
    still = (
        time_of(entry[1:])
        for entry, _ in _stretch(state, after_us + 1, None)
        if changes.get(entry, b"") is not None
    )
    return min(
        (each for each in (min(added, default=None), next(still, None)) if each is not None), default=None
    )


def open_at(state: State, changes: Mapping[bytes, bytes | None], moment: Moment) -> int | None:
    """The watermark at which the next time-out is due, for those that go by the horizon behind it."""
    first = earliest(state, changes, moment.horizon)
    return first + moment.watermark - moment.horizon if first is not None else None


def _stretch(state: State, start_us: int, end_us: int | None) -> Iterator[tuple[bytes, bytes]]:
    """The time-outs of a stretch of time, the end not with it, in order."""
    if start_us < 0:
        end = b"t" + _time.pack(end_us) if end_us is not None and end_us < 0 else b"u"
        yield from state.between(b"t" + _time.pack(start_us), end)
    if end_us is None or end_us > 0:
        end = b"t" + (_time.pack(end_us) if end_us is not None else b"\x80")
        yield from state.between(b"t" + _time.pack(max(start_us, 0)), end)
