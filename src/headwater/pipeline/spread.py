"""Spread: structs as their columns, on the way into Python. Spark asks for the bytes of an Arrow batch at each row, and for a struct that is most of what
the row costs; and a struct that is only made for the way, like those of ``pair.py``, need not be made at all.

A struct ``s`` is a boolean of that name, which says whether it is there, and a column ``s/x`` for each of its fields. ``gathered`` makes it a struct again.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

__all__ = ["Structs", "expressions", "gathered", "structs"]

Structs = Mapping[str, "Structs | None"]
"""The fields of a struct, and of those that are structs theirs."""


def structs(kind: StructType) -> Structs:
    """What is made of what."""
    return {
        field.name: structs(field.dataType) if isinstance(field.dataType, StructType) else None
        for field in kind.fields
    }


def expressions(kind: StructType) -> list[str]:
    """The columns of a frame, with those of its structs in their place, for a select."""
    return [text for field in structs(kind).items() for text in _texts(*field, place="", name="")]


def _texts(field: str, inner: Structs | None, place: str, name: str) -> Iterator[str]:
    place, name = place + _quoted(field), name + field
    if inner is None:
        yield f"{place} AS {_quoted(name)}"
        return
    yield f"{place} IS NOT NULL AS {_quoted(name)}"
    for each in inner.items():
        yield from _texts(*each, place=f"{place}.", name=f"{name}/")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def gathered(rows: pa.RecordBatch, kind: Structs) -> pa.RecordBatch:
    """The columns of ``kind`` out of those that were spread, and behind them what else there is."""
    taken: set[str] = set()
    columns = {name: _gathered(rows, name, inner, taken) for name, inner in kind.items()}
    others = {name: rows.column(name) for name in rows.schema.names if name not in taken}
    both = columns | others
    return pa.record_batch(list(both.values()), names=list(both))


def _gathered(rows: pa.RecordBatch, name: str, inner: Structs | None, taken: set[str]) -> pa.Array:
    taken.add(name)
    column = rows.column(name)
    if inner is None:
        return column
    fields = {field: _gathered(rows, f"{name}/{field}", deeper, taken) for field, deeper in inner.items()}
    absent = pc.invert(column.fill_null(False))  # a tick has nothing in any column
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=absent)
