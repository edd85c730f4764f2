"""Reshard: the same state in another number of shards.

Writes only new files; old ones stay while a result needs them.
"""

import uuid
from collections.abc import Mapping
from contextlib import ExitStack

import msgspec

from headwater.pipeline.state.copies import read_only
from headwater.pipeline.state.files import Place, Size, Writing
from headwater.pipeline.state.layouts import GROUPS, PLAIN, Layout, layout, shard_of
from headwater.result import Chain, Result

__all__ = ["rescaled", "scaled"]

ROWS_HELD_MAX = 50_000
"""Rows that wait to be written, for all shards together."""


def scaled(result: Result, places: Mapping[str, Place], shards: int, generation: str) -> Result:
    """A result with the state of all operators in this many shards; its files are written and synced.

    The earliest time-out of a new shard is unknown until a task looks at it. Until then each has the earliest
    of all.
    """
    state = {
        name: rescaled(places[name], chains, shards, result.batch, layout(result.layouts.get(name, PLAIN)))
        for name, chains in result.state.items()
    }
    opens = {
        name: [min((time for time in times if time is not None), default=None)] * shards
        for name, times in result.opens.items()
    }
    layouts = {name: form for name, form in result.layouts.items() if form != GROUPS}
    return msgspec.structs.replace(result, state=state, opens=opens, generation=generation, layouts=layouts)


def rescaled(place: Place, chains: list[Chain], shards: int, version: int, form: Layout) -> list[Chain]:
    """New chains with all entries, each in the shard of the key that owns it. Takes constant memory."""
    with ExitStack() as stack:
        parts = [
            _Part(place, f"{number}-{version}-{uuid.uuid4().hex[:12]}.scaled") for number in range(shards)
        ]
        rows_max = max(1, ROWS_HELD_MAX // shards)
        for chain in chains:
            with read_only(place, chain) as entries:
                for key, value in entries:
                    parts[shard_of(form.owner(key, value), shards)].add(stack, key, value, rows_max)
        for part in parts:
            part.write(stack)
    return [part.chain(version) for part in parts]


class _Part:
    """A new shard; without entries it has no file."""

    def __init__(self, place: Place, name: str) -> None:
        self._place, self._name = place, name
        self._held: list[tuple[bytes, bytes | None]] = []
        self._out: Writing | None = None
        self._bytes = 0

    def add(self, stack: ExitStack, key: bytes, value: bytes, rows_max: int) -> None:
        self._held.append((key, value))
        self._bytes += len(key) + len(value)
        if len(self._held) == rows_max:
            self.write(stack)

    def write(self, stack: ExitStack) -> None:
        if self._held:
            if self._out is None:
                self._out = stack.enter_context(Writing(self._place, self._name))
            self._out.add(self._held)
            self._held = []

    def chain(self, version: int) -> Chain:
        if self._out is None:
            return ()
        return (self._out.file(version, whole=True, size=Size(self._out.rows, self._bytes)),)
