"""Key prefix: values that begin with their key, for entries that do not name it (``layouts.py``).

LENGTH KEY …
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipeline.arrow.row_bytes import concat, whole

__all__ = ["owned", "owner", "value_start"]

LENGTH = np.dtype(">u4")


def owned(keys: pa.Array) -> list[bytes]:
    """The prefix of the values of each key. ``keys`` are binary."""
    lengths = pc.binary_length(keys).to_numpy().astype(LENGTH).view(np.uint8).reshape(-1, LENGTH.itemsize)
    begins: list[bytes] = concat(whole(lengths), keys).to_pylist()
    return begins


def owner(value: bytes) -> bytes:
    """The key that a value belongs to."""
    return value[LENGTH.itemsize : value_start(value)]


def value_start(value: bytes) -> int:
    """The position after the key in a value."""
    return LENGTH.itemsize + int.from_bytes(value[: LENGTH.itemsize])
