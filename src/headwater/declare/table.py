"""Tables: inputs of a view with rows that are inserted and retracted, and the operations for them.

Spark's groupBy, join and distinct would count a retracted row as one more. They do not exist here:
`Table.group`, `Table.join` and `Table.distinct` do what is meant, and keep their results current.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from headwater.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


__all__ = ["Newest", "Table", "frame_of"]

WEIGHT = "_weight"
INSTEAD = {
    "agg": "group(by, name=F.sum(…))",
    "crossJoin": "join(other, on=…)",
    "cube": "group(by, name=F.sum(…))",
    "dropDuplicates": "distinct()",
    "drop_duplicates": "distinct()",
    "groupBy": "group(by, name=F.sum(…))",
    "groupby": "group(by, name=F.sum(…))",
    "limit": "group(by, newest=hw.newest_of(…)), which keeps the first rows of a group",
    "orderBy": "no order: a reader asks for one, like ?order=-cents&limit=10",
    "rollup": "group(by, name=F.sum(…))",
    "sort": "no order: a reader asks for one, like ?order=-cents&limit=10",
}


class Newest(msgspec.Struct, frozen=True):
    """An aggregate: the newest rows of a group, as an array."""

    columns: tuple[str, ...]
    order: tuple[str, ...]
    limit: int
    bare: bool = False
    """Whether the array has values instead of structs, because there is only one column."""


class TableError(UsageError, AttributeError):
    """A table does not have this operation or column."""


class Table:
    """The rows of a table, kept current: each change inserts rows and retracts those that it replaces.

    Columns are ``table.name`` or ``table["name"]``. What a view makes of a table is again a table.
    """

    def __init__(self, rows: "DataFrame") -> None:
        self._rows = rows

    @property
    def rows(self) -> "DataFrame":
        """The rows as a DataFrame with the hidden column ``_weight``: 1 inserts a row, -1 retracts one."""
        return self._rows

    @property
    def columns(self) -> list[str]:
        return [name for name in self._rows.columns if name != WEIGHT]

    @property
    def schema(self) -> "StructType":
        from pyspark.sql.types import StructType

        return StructType([field for field in self._rows.schema.fields if field.name != WEIGHT])

    # ---- row by row, by Spark ----------------------------------------------------------------------------

    def select(self, *columns: Any) -> Self:
        return self._with(self._rows.select(*columns))

    def selectExpr(self, *expressions: Any) -> Self:  # noqa: N802 (Spark's name)
        return self._with(self._rows.selectExpr(*expressions))

    def where(self, condition: "Column | str") -> Self:
        return self._with(self._rows.where(condition))

    def filter(self, condition: "Column | str") -> Self:
        return self.where(condition)

    def withColumn(self, name: str, column: "Column") -> Self:  # noqa: N802 (Spark's name)
        return self._with(self._rows.withColumn(name, column))

    def withColumns(self, columns: "Mapping[str, Column]") -> Self:  # noqa: N802 (Spark's name)
        return self._with(self._rows.withColumns(dict(columns)))

    def withColumnRenamed(self, existing: str, new: str) -> Self:  # noqa: N802 (Spark's name)
        return self._with(self._rows.withColumnRenamed(existing, new))

    def withColumnsRenamed(self, names: Mapping[str, str]) -> Self:  # noqa: N802 (Spark's name)
        return self._with(self._rows.withColumnsRenamed(dict(names)))

    def fillna(self, value: Any, subset: Sequence[str] | None = None) -> Self:
        return self._with(self._rows.fillna(value, list(subset or self.columns)))

    def dropna(
        self, how: str = "any", thresh: int | None = None, subset: Sequence[str] | None = None
    ) -> Self:
        return self._with(self._rows.dropna(how, thresh, list(subset or self.columns)))

    def drop(self, *columns: Any) -> Self:
        return self._with(self._rows.drop(*columns))

    def alias(self, name: str) -> Self:
        return self._with(self._rows.alias(name))

    def union(self, other: "Table | DataFrame") -> Self:
        """The rows of both, with columns by position; rows of a stream are never retracted."""
        return self._with(self._rows.union(frame_of(other)))

    def unionByName(  # noqa: N802 (Spark's name)
        self,
        other: "Table | DataFrame",
        *,
        allowMissingColumns: bool = False,  # noqa: N803 (Spark's name)
    ) -> Self:
        """The rows of both, with columns by name; rows of a stream are never retracted."""
        return self._with(self._rows.unionByName(frame_of(other), allowMissingColumns=allowMissingColumns))

    # ---- kept current by operators -----------------------------------------------------------------------

    def join(
        self,
        other: "Table | DataFrame",
        on: str | Sequence[str] | Mapping[str, str],
        how: str = "inner",
    ) -> "Table":
        """The pairs of rows with equal keys, like `headwater.join`; ``how`` is inner, left, right or full."""
        from headwater.declare.operators import join

        return join(self, other, on=on, how=how)

    def group(self, by: str | Sequence[str], **aggregates: "Column | Newest") -> "Table":
        """One row for each group, like `headwater.group`.

        For example ``orders.group("country", total=F.sum("cents"))``.
        """
        from headwater.declare.operators import group

        return group(self, by, **aggregates)

    def distinct(self) -> "Table":
        """Each different row once, as long as there is one."""
        return self.group(self.columns)

    # ---- columns -----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> "Column":
        return self._rows[name]

    def __getattr__(self, name: str) -> "Column":
        if not name.startswith("_") and name in self._rows.columns:
            return self._rows[name]
        if name == "_jdf":
            raise TableError(
                "a method of a DataFrame takes no table",
                expected="a method of the table, table.union(rows), or an operator, hw.enrich(rows, …)",
            )
        if name in INSTEAD:
            raise TableError(
                f"a table has no {name}(), since its rows are retracted when they change",
                expected=INSTEAD[name],
            )
        raise TableError(f"a table has no column {name!r}", expected=", ".join(self.columns))

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.dataType.simpleString()}" for field in self.schema.fields)
        return f"Table[{fields}]"

    def _with(self, rows: "DataFrame") -> Self:
        return type(self)(rows)


def frame_of(rows: "Table | DataFrame") -> "DataFrame":
    """The DataFrame of an operator's input. UsageError if it is neither a DataFrame nor a table."""
    if isinstance(rows, Table):
        return rows.rows
    if not hasattr(rows, "sparkSession"):
        raise UsageError(
            "the input of an operator is wrong",
            got=f"a value of type {type(rows).__name__}",
            expected="a DataFrame or a table",
        )
    return rows
