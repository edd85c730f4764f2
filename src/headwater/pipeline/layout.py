"""Layout: how an operator's entries stand in its state, for those who look at it from outside: who owns an entry, where is a key's value.

An operator whose entries are not simply its keys says so (``Logic.layout``), and results hand it on (``Result.layouts``): so state can
be moved between shards and read without the application.
"""

from collections.abc import Callable
from typing import NamedTuple
from zlib import crc32

from headwater.errors import UsageError

__all__ = ["FORGETTING", "PLAIN", "Layout", "layout", "shard_of"]

PLAIN = ""
FORGETTING = "forget"


class Layout(NamedTuple):
    """``owner``: the key that an entry belongs to. ``place``: where the value of a key is. ``value``: that value in what stands there."""

    owner: Callable[[bytes, bytes], bytes]
    place: Callable[[bytes], bytes]
    value: Callable[[bytes], bytes]


LAYOUTS = {
    PLAIN: Layout(lambda key, _: key, lambda key: key, lambda value: value),
    # ``timers.py``: k KEY → TIME VALUE, and t TIME DIGEST → KEY
    FORGETTING: Layout(
        lambda key, value: key[1:] if key[:1] == b"k" else value,
        lambda key: b"k" + key,
        lambda value: value[8:],
    ),
}


def layout(name: str) -> Layout:
    """A layout by the name that results have for it. UsageError for one that this version does not know."""
    if name not in LAYOUTS:
        raise UsageError(f"state has an unknown layout {name!r}", expected=", ".join(filter(None, LAYOUTS)))
    return LAYOUTS[name]


def shard_of(key: bytes, shards: int) -> int:
    """The shard of a key, as the shell of operators finds it in Spark (``operator.sharded``)."""
    return crc32(key) % shards
