"""Pace: how far those are behind who follow a view's rows, asked of the log alone.

A view with ``pace="sink"`` waits before a batch while one of them is too far behind, and its batches are small enough that none of
them gets behind by more than the bound. Whoever follows is a sink, or a view that itself keeps its sinks' pace.
"""

import msgspec

from headwater.client import Client
from headwater.graph import SINK_GROUP, VIEW_GROUP, Graph

__all__ = ["Pace", "Trailing", "batch_records"]

BATCH_SHARE = 2
"""A batch takes at most the bound divided by this."""
WAIT_SHARE = 4
"""A view waits while somebody is behind by more than the bound divided by this: a batch fits in, with the markers of its transactions."""


class Trailing(msgspec.Struct, frozen=True):
    """Somebody who follows a view, and by how many records it is behind."""

    name: str
    records: int


def batch_records(bound: int, inputs: int) -> int:
    """How many records a batch may take from each input."""
    return max(1, bound // BATCH_SHARE // inputs)


class Pace:
    """Who follows the rows of a view, against the end of its topic. Any thread may ask; MachineError when the log does not answer."""

    def __init__(self, client: Client, graph: Graph, view: str, bound: int) -> None:
        self._client = client
        self._view = view
        self._bound = bound
        sinks = {
            f"sink {sink.name}": SINK_GROUP + sink.name
            for sink in graph.sinks.values()
            if sink.source == view
        }
        views = {
            f"view {each.name}": VIEW_GROUP + each.name
            for each in graph.views.values()
            if each.pace and view in each.inputs.values()
        }
        self._groups = sinks | views

    def trailing(self) -> list[Trailing]:
        """All who follow, the slowest first. Who has never committed anything has everything before it."""
        bounds = self._client.bounds(self._view) if self._groups else {}
        places = [(self._view, partition) for partition in bounds]
        found = []
        for name, group in self._groups.items():
            committed = self._client.committed(group, places)
            behind = sum(
                max(0, end - max(start, committed.get((self._view, partition), 0)))
                for partition, (start, end) in bounds.items()
            )
            found.append(Trailing(name, behind))
        return sorted(found, key=lambda each: -each.records)

    def too_far(self) -> Trailing | None:
        """The slowest, if it is so far behind that the view waits for it."""
        slowest = next(iter(self.trailing()), None)
        return slowest if slowest is not None and slowest.records > self._bound // WAIT_SHARE else None
