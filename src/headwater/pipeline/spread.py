"""Spread: structs as their columns, and both inputs of a pair in the same columns, on the way into Python.

Spark asks for the bytes of an Arrow batch at each row, column by column, so that each column costs whether it has a value or not; and a struct that is
only made for the way, like those of ``pair.py``, need not be made at all.

A struct ``s`` is a boolean of that name, which says whether it is there, and columns ``s/0``, ``s/1``, … for its fields: what these are called may be more
than Spark takes for the name of a column. Of a pair each row has one side: columns of the left and of the right that are of one type are one
column, and the boolean of the left tells which side it is. ``Spread`` puts all together again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, StructType

from headwater.pipeline.wire import quoted

__all__ = ["LEFT", "NOTHING", "RIGHT", "Spread", "spread"]

LEFT, RIGHT = "_left", "_right"
"""The two inputs of a pair (``pair.py``): of each row one is null."""
Structs = Mapping[str, "Structs | None"]
"""The fields of a struct, and of those that are structs theirs."""


@dataclass(frozen=True)
class Spread:
    """What becomes of what: all that a task must know to put structs together."""

    structs: Structs
    shared: Mapping[str, str]
    """Columns of the right that stand in one of the left."""

    @property
    def paired(self) -> bool:
        return LEFT in self.structs and RIGHT in self.structs

    def gathered(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns as they were before, and behind them what else there is."""
        taken: set[str] = set()
        columns = {name: self._column(rows, name, inner, taken) for name, inner in self.structs.items()}
        others = {name: rows.column(name) for name in rows.schema.names if name not in taken}
        both = columns | others
        return pa.record_batch(list(both.values()), names=list(both))

    def _column(self, rows: pa.RecordBatch, name: str, inner: Structs | None, taken: set[str]) -> pa.Array:
        place = self.shared.get(name, name)
        taken.add(place)
        if inner is None:
            return rows.column(place)
        fields = {
            field: self._column(rows, f"{name}/{n}", deeper, taken)
            for n, (field, deeper) in enumerate(inner.items())
        }
        return pa.StructArray.from_arrays(
            list(fields.values()), names=list(fields), mask=self._absent(rows, name)
        )

    def _absent(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        """Where a struct is null. A tick has nothing in any column."""
        if name == RIGHT and self.paired:
            return rows.column(LEFT).fill_null(True)
        return pc.invert(rows.column(name).fill_null(False))


NOTHING = Spread({}, {})


def spread(kind: StructType, without: Collection[str] = ()) -> tuple[list[str], Spread]:
    """The columns of a frame as a select takes them, and how they come together again."""
    kind = StructType([field for field in kind.fields if field.name not in without])
    found = Spread(_structs(kind), {})
    leaves = {name: leaf for field in kind.fields for name, leaf in _leaves(field.dataType, field.name)}
    free: dict[str, list[str]] = {}
    shared: dict[str, str] = {}
    if found.paired:
        del leaves[RIGHT]
        for name, (_, of) in leaves.items():
            if name.startswith(f"{LEFT}/") and of is not None:
                free.setdefault(of.json(), []).append(name)
        for name, (_, of) in leaves.items():
            if name.startswith(f"{RIGHT}/") and of is not None and free.get(of.json()):
                shared[name] = free[of.json()].pop(0)
    texts = {name: text for name, (text, _) in leaves.items()}
    for name, place in shared.items():
        texts[place] = f"coalesce({texts[place]}, {texts.pop(name)})"
    return [f"{text} AS {quoted(name)}" for name, text in texts.items()], Spread(found.structs, shared)


def _structs(kind: StructType) -> Structs:
    return {
        field.name: _structs(field.dataType) if isinstance(field.dataType, StructType) else None
        for field in kind.fields
    }


def _leaves(kind: DataType, name: str, place: str = "") -> Iterator[tuple[str, tuple[str, DataType | None]]]:
    """What a column is spread into: a name, its expression and its type; None for what only says whether a struct is there."""
    place = place or quoted(name)
    if not isinstance(kind, StructType):
        yield name, (place, kind)
        return
    yield name, (f"{place} IS NOT NULL", None)
    for n, field in enumerate(kind.fields):
        yield from _leaves(field.dataType, f"{name}/{n}", f"{place}.{quoted(field.name)}")
