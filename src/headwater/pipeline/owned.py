"""Owned: entries that do not say whose they are: what stands there begins with the key, so that ``layout.py`` finds it.

LENGTH KEY …
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.rowbytes import concat, whole

__all__ = ["behind", "owned", "owner"]

LENGTH = np.dtype(">u4")


def owned(keys: pa.Array) -> list[bytes]:
    """What the values of keys begin with. ``keys`` are binary."""
    lengths = pc.binary_length(keys).to_numpy().astype(LENGTH).view(np.uint8).reshape(-1, LENGTH.itemsize)
    begins: list[bytes] = concat(whole(lengths), keys).to_pylist()
    return begins


def owner(value: bytes) -> bytes:
    """The key that a value belongs to."""
    return value[LENGTH.itemsize : behind(value)]


def behind(value: bytes) -> int:
    """Where a value goes on behind its key."""
    return LENGTH.itemsize + int.from_bytes(value[: LENGTH.itemsize])
