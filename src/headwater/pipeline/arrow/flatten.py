"""Flatten: structs as separate columns, both inputs of a pair in the same columns, on the way into Python.

Spark asks for the size of an Arrow batch at each row, column by column, so that each column costs time
whether it has a value or not. Structs that exist only for the way, like those of
``pipeline/operator/two_inputs.py``, are not built.

A struct ``s`` becomes a boolean of that name, which says whether it is not null, and columns ``s/0``,
``s/1``, … for its fields: their names may not be valid column names of Spark. Of a pair each row has one
side: columns of the left and of the right with the same type share one column, and the boolean of the left
says which side it is. ``Spread`` restores the structs.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, StructType

from headwater.pipeline.wire.wire import quoted

__all__ = ["LEFT", "NOTHING", "RIGHT", "Spread", "spread"]

LEFT, RIGHT = "_left", "_right"
"""The two inputs of a pair (``pipeline/operator/two_inputs.py``): one of them is null in each row."""
Structs = Mapping[str, "Structs | None"]
"""The fields of a struct, and recursively those of inner structs."""


@dataclass(frozen=True)
class Spread:
    """How columns were flattened: all that a task needs to restore structs."""

    structs: Structs
    shared: Mapping[str, str]
    """Columns of the right that share a column of the left."""

    @property
    def paired(self) -> bool:
        return LEFT in self.structs and RIGHT in self.structs

    def gathered(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The original columns, followed by other columns of the batch."""
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
        """Where a struct is null. A tick is null in all columns."""
        if name == RIGHT and self.paired:
            return rows.column(LEFT).fill_null(True)
        return pc.invert(rows.column(name).fill_null(False))


NOTHING = Spread({}, {})


def spread(kind: StructType, without: Collection[str] = ()) -> tuple[list[str], Spread]:
    """The columns of a frame for a select, and how to restore them."""
    kind = StructType([field for field in kind.fields if field.name not in without])
    whole = Spread(_structs(kind), {})
    leaves = {name: leaf for field in kind.fields for name, leaf in _leaves(field.dataType, field.name)}
    free: dict[str, list[str]] = {}
    shared: dict[str, str] = {}
    if whole.paired:
        del leaves[RIGHT]
        for name, (_, leaf_type) in leaves.items():
            if name.startswith(f"{LEFT}/") and leaf_type is not None:
                free.setdefault(leaf_type.json(), []).append(name)
        for name, (_, leaf_type) in leaves.items():
            if name.startswith(f"{RIGHT}/") and leaf_type is not None and free.get(leaf_type.json()):
                shared[name] = free[leaf_type.json()].pop(0)
    texts = {name: text for name, (text, _) in leaves.items()}
    for name, place in shared.items():
        texts[place] = f"coalesce({texts[place]}, {texts.pop(name)})"
    return [f"{text} AS {quoted(name)}" for name, text in texts.items()], Spread(whole.structs, shared)


def _structs(kind: StructType) -> Structs:
    return {
        field.name: _structs(field.dataType) if isinstance(field.dataType, StructType) else None
        for field in kind.fields
    }


def _leaves(kind: DataType, name: str, place: str = "") -> Iterator[tuple[str, tuple[str, DataType | None]]]:
    """The flat columns of a column: name, expression and type.

    The type is None for the boolean of a struct.
    """
    place = place or quoted(name)
    if not isinstance(kind, StructType):
        yield name, (place, kind)
        return
    yield name, (f"{place} IS NOT NULL", None)
    for n, field in enumerate(kind.fields):
        yield from _leaves(field.dataType, f"{name}/{n}", f"{place}.{quoted(field.name)}")
