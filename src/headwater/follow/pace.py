"""Pace: the lag of the followers of a view, asked of the log alone.

A view with ``pace="sink"`` waits before a batch while one of its followers lags too far, and its batches are
small enough that no follower lags by more than the bound. Followers are sinks, and views that keep the pace
of their own sinks.
"""

import msgspec

from headwater.client.client import Client
from headwater.declare.graph import Graph
from headwater.declare.spec import SINK_GROUP, VIEW_GROUP

__all__ = ["Pace", "Trailing", "batch_records"]

BATCH_SHARE = 2
"""A batch takes at most the bound divided by this."""
WAIT_SHARE = 4
"""A view waits while a follower lags by more than the bound divided by this.

So there is room for a batch with its markers.
"""


class Trailing(msgspec.Struct, frozen=True):
    """A follower of a view, and by how many records it lags."""

    name: str
    records: int


def batch_records(bound: int, inputs: int) -> int:
    """How many records a batch may take from each input."""
    return max(1, bound // BATCH_SHARE // inputs)


class Pace:
    """The followers of a view. Any thread may ask; MachineError if the log does not answer."""

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
            f"view {reader.name}": VIEW_GROUP + reader.name
            for reader in graph.views.values()
            if reader.pace and view in reader.inputs.values()
        }
        self._groups = sinks | views

    def trailing(self) -> list[Trailing]:
        """All followers, the slowest first. One that has never committed lags by the whole topic."""
        bounds = self._client.bounds(self._view) if self._groups else {}
        places = [(self._view, partition) for partition in bounds]
        followers = []
        for name, group in self._groups.items():
            committed = self._client.committed(group, places)
            lag = sum(
                max(0, end - max(start, committed.get((self._view, partition), 0)))
                for partition, (start, end) in bounds.items()
            )
            followers.append(Trailing(name, lag))
        return sorted(followers, key=lambda follower: -follower.records)

    def too_far(self) -> Trailing | None:
        """The slowest follower, if the view has to wait for it."""
        slowest = next(iter(self.trailing()), None)
        return slowest if slowest is not None and slowest.records > self._bound // WAIT_SHARE else None
