"""Partitioners: to which partition a record goes.

    key          by Kafka's murmur2 of the key, as Java clients do; records without a key stay together in a
                 batch
    round-robin  one partition after the other, whatever the key
    sticky       one partition for the bytes of a batch, then another, whatever the key
    a function   ``(key, count) -> partition``

Only with ``key`` do all records of a key keep their order.
"""

import random
import runpy
from collections.abc import Callable
from typing import Protocol

from headwater.errors import UsageError

__all__ = ["NAMES", "Choice", "Partitioner", "chooser", "murmur2", "named"]

Function = Callable[[bytes | None, int], int]
Partitioner = str | Function
"""A name of the table above, or a function of the key and the number of partitions."""

NAMES = ("key", "round-robin", "sticky")
STICKY_BYTES = 16_384
"""After this many bytes sticky changes the partition: Kafka's default size of a batch."""
RECORD_BYTES = 64
"""Added to the bytes of key and value of each record, so that empty records count too."""


class Choice(Protocol):
    """Chooses partitions for the records of one topic; called by one thread."""

    def __call__(self, key: bytes | None, value: bytes | None, count: int) -> int: ...


def chooser(partitioner: Partitioner) -> Callable[[], Choice] | None:
    """What makes the Choice of each topic; None if the client library itself chooses by key."""
    if callable(partitioner):
        choice = _Custom(partitioner)
        return lambda: choice
    makers: dict[str, Callable[[], Choice] | None] = {
        "key": None,
        "round-robin": _RoundRobin,
        "sticky": _Sticky,
    }
    if partitioner not in makers:
        raise UsageError(
            f"partitioner {partitioner!r} does not exist",
            got=repr(partitioner),
            expected=f"{', '.join(NAMES)} or a function",
        )
    return makers[partitioner]


def named(text: str) -> Partitioner:
    """A partitioner as written on the command line: a name, or ``FILE.PY:FUNCTION``."""
    path, colon, name = text.rpartition(":")
    if not colon:
        return text
    try:
        return runpy.run_path(path)[name]  # type: ignore[no-any-return]
    except (OSError, KeyError) as error:
        raise UsageError(f"there is no function {name!r} in {path}", got=str(error)) from error


class _RoundRobin:
    def __init__(self) -> None:
        # Random, so that many producers do not all begin at the first partition.
        self._next = random.randrange(1 << 16)  # noqa: S311

    def __call__(self, key: bytes | None, value: bytes | None, count: int) -> int:  # noqa: ARG002
        self._next += 1
        return self._next % count


class _Sticky:
    def __init__(self) -> None:
        self._partition = random.randrange(1 << 16)  # noqa: S311  same
        self._bytes = 0

    def __call__(self, key: bytes | None, value: bytes | None, count: int) -> int:
        if self._bytes >= STICKY_BYTES:
            self._partition, self._bytes = self._partition + 1, 0
        self._bytes += len(key or b"") + len(value or b"") + RECORD_BYTES
        return self._partition % count


class _Custom:
    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, key: bytes | None, value: bytes | None, count: int) -> int:  # noqa: ARG002
        chosen = self._function(key, count)
        if not isinstance(chosen, int) or not 0 <= chosen < count:
            raise UsageError(
                "the partitioner did not choose a partition of the topic",
                got=repr(chosen),
                expected=f"0 to {count - 1}",
            )
        return chosen


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key, not negative. ``murmur2(key) % count`` is the partition that ``key`` chooses."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    hashed = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        hashed = hashed * factor & mask ^ word
    if rest := key[whole:]:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * factor & mask
    hashed = (hashed ^ hashed >> 13) * factor & mask
    return (hashed ^ hashed >> 15) & 0x7FFFFFFF
