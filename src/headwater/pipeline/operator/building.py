"""The view that is being built, with its operators, tables and time-outs.

Operators register with it when they are applied.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import DataFrame

from headwater.declare.duration import duration_us
from headwater.pipeline.operator.logic import Logic
from headwater.pipeline.spark import catalyst
from headwater.pipeline.wire import wire

__all__ = ["OBSERVED", "Site", "Table", "building", "current_site", "horizon_us", "tables"]


OBSERVED = "state"
"""The prefix of the names of the observations that collect the files of operators."""


class Table(NamedTuple):
    """The rows of a table as a view gets them, and the changes they come from (``tables/changelog.py``)."""

    rows: DataFrame
    changes: DataFrame
    key: tuple[str, ...]
    """The columns whose text is the id of a change; empty if the id is something else."""


@dataclass(frozen=True)
class Site:
    """The view that is being built, and its operators so far."""

    shards: int
    ticks: Callable[[], DataFrame]
    """The ticks of the view as a stream, for operators with time-outs."""
    timed: dict[str, str] = field(default_factory=dict)
    """The names of its operators, and the time that the time-outs of each follow."""

    layouts: dict[str, str] = field(default_factory=dict)
    """The layout of the state of operators, where an entry is not simply a key and its value."""
    specs: dict[str, str] = field(default_factory=dict)
    """The definition of each operator, as text."""

    logics: dict[str, Logic] = field(default_factory=dict)

    output_delays: dict[str, int] = field(default_factory=dict)
    """The operators that delay rows, and how much older than the watermark these may be, in microseconds."""

    tables: list[Table] = field(default_factory=list)
    """The tables that it reads."""

    holds: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each operator downstream of such operators: their output delays."""

    horizon_us: int = 0
    """How far before the watermark the view still accepts stragglers."""

    def name(self, logic: Logic, rows: DataFrame) -> str:
        """Registers an operator over these rows, and returns its name."""
        name = f"{logic.kind}{len(self.timed) + 1}"
        self.add(name, logic, rows)
        return name

    def add(self, name: str, logic: Logic, rows: DataFrame) -> None:
        """Registers an operator over these rows by its name."""
        observations = catalyst.observations(catalyst.plan(rows))
        upstream = {observation.removeprefix(f"{OBSERVED} ") for observation in observations}
        delays = {other: delay for other, delay in self.output_delays.items() if other in upstream}
        if delays:
            self.holds[name] = delays
        if logic.output_delay:
            self.output_delays[name] = duration_us(logic.output_delay)
        self.timed[name] = logic.timed
        key_types = [column.dataType for column in rows.schema.fields if column.name in logic.key]
        exact = "" if all(map(wire.has_plain_identity, key_types)) else " by exact keys"
        self.specs[name] = f"{logic.definition()}{exact}"
        self.logics[name] = logic
        if logic.layout:
            self.layouts[name] = logic.layout


_site: ContextVar[Site | None] = ContextVar("site", default=None)


@contextmanager
def building(site: Site) -> Iterator[Site]:
    """Operators that are applied within belong to this view."""
    token = _site.set(site)
    try:
        yield site
    finally:
        _site.reset(token)


def current_site() -> Site | None:
    """The view that is being built in this thread; None in batch, where operators belong to no view."""
    return _site.get()


def tables() -> list[Table]:
    """The tables of the view being built, to add to and to look up; in batch a list that is not kept."""
    site = _site.get()
    return site.tables if site is not None else []


def horizon_us() -> int:
    """How far before the watermark the view being built accepts stragglers; 0 in batch."""
    site = _site.get()
    return site.horizon_us if site is not None else 0
