"""What an operator may ask of the state of its shard."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

__all__ = ["Nothing", "State", "Stretch"]


Stretch = tuple[bytes, bytes, int]
"""A range of entries: from one key up to, not including, another, and the maximum number of them."""


class State(Protocol):
    """The entries of a shard before a batch. What the batch changes, an operator returns as a ``Delta``."""

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, in the order of the keys, None for none; fastest for sorted keys."""
        ...

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """The same by key, of those keys that have a value."""
        ...

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries from ``start`` up to, not including, ``end``, in order.

        For keys of at most 511 bytes.
        """
        ...

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        """The entries of many ranges; fastest for ranges in order."""
        ...


class Nothing:
    """The state before the first batch."""

    def each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [None] * len(keys)

    def get(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:  # noqa: ARG002
        return {}

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:  # noqa: ARG002
        return iter(())

    def stretches(self, wanted: Sequence[Stretch]) -> list[list[tuple[bytes, bytes]]]:
        return [[] for _ in wanted]
