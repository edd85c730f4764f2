"""The store of simulated sinks keeps the promises of every store."""

import json

import pytest

from simulation.memorystore import MemoryTarget, Table
from sink.contract import Contract, feed


class MemoryPlace:
    """A store in memory of a test's own."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], Table] = {}
        self.target = MemoryTarget(self.tables, virtual=False)

    def _table(self, of) -> Table:
        return self.tables[of.sink, of.topic]

    def save(self) -> Table:
        return self._table(feed()).copy()

    def restore(self, saved: Table) -> None:
        self._table(feed()).restore(saved)

    def rows(self, of) -> dict:
        return {key: json.loads(row) for key, row in self._table(of).rows.items()}


class TestMemoryStore(Contract):
    """All of the contract but formats: what is in memory was written by the code that reads it."""

    test_what_a_newer_version_keeps_there_is_refused_and_left_alone = None
    test_a_store_from_before_formats_continues = None

    @pytest.fixture
    def place(self) -> MemoryPlace:
        return MemoryPlace()
