"""Parked letters: those of a key that is parked go back together, and set the key free in one transaction.

A worker with ``park=True`` makes letters of all later messages of a key, until the key is deleted from the
topic ``<queue>.parked``. Half of them alone would be made letters again, after the other half.
"""

import threading
from contextlib import closing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headwater.access import Log
from headwater.operate.queues.contents import contents
from headwater.worker.parked import ParkedKeys

__all__ = ["ParkedLetters", "parked_letters"]

T = TypeVar("T")


@dataclass(slots=True)
class ParkedLetters(Generic[T]):
    """Gathers the letters of parked keys. Belongs to one redrive."""

    last_offsets: dict[bytes, int]
    """The last letter of each parked key."""
    _gathered: dict[bytes, list[T]] = field(default_factory=dict)

    def holds(self, key: bytes | None) -> bool:
        return key is not None and key in self.last_offsets

    def gather(self, key: bytes, offset: int, letter: T | None) -> list[T]:
        """Takes a letter over, or one that is to stay; returns all of its key once the last one is there."""
        letters = self._gathered.setdefault(key, [])
        if letter is not None:
            letters.append(letter)
        if offset < self.last_offsets[key]:
            return []
        del self.last_offsets[key]
        return self._gathered.pop(key)


def parked_letters(log: Log, name: str, queue: str) -> "ParkedLetters[T]":
    """The parked keys of a queue that have letters at this moment; ``queue`` is that of its letters."""
    with closing(ParkedKeys(log, name)) as parked:
        parked.read(threading.Event())
        keys = parked.keys
    last: dict[bytes, int] = {}
    if keys:
        for content in contents(log, queue):
            key = content.record.key
            if key is not None and key in keys:
                last[key] = content.record.offset
    return ParkedLetters(last)
