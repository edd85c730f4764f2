"""Rows of a feed as Arrow tables.

Arrow reads the JSON of a whole batch itself where it reads it as we do. What it will not read is read again row by row: that names the row that
does not fit, and takes twice the time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwater.change import Change
from headwater.sink.columns import Kind, kind, reader
from headwater.sink.driver import driver
from headwater.sink.store import Poison

__all__ = ["Arrow"]

PLAIN: dict[str, Callable[[Any], Any]] = {
    "BOOLEAN": lambda pa: pa.bool_(),
    "TINYINT": lambda pa: pa.int8(),
    "SMALLINT": lambda pa: pa.int16(),
    "INT": lambda pa: pa.int32(),
    "BIGINT": lambda pa: pa.int64(),
    "FLOAT": lambda pa: pa.float32(),
    "DOUBLE": lambda pa: pa.float64(),
    "STRING": lambda pa: pa.string(),
    "BINARY": lambda pa: pa.binary(),
    "DATE": lambda pa: pa.date32(),
    "TIMESTAMP": lambda pa: pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": lambda pa: pa.timestamp("us"),
}
REAL = frozenset({"FLOAT", "DOUBLE"})
ALIKE = PLAIN.keys() - {"BINARY", "DATE"} - REAL
"""What Arrow's reader makes the same of, beside arrays and structs of it: it takes times without seconds as well, and no row for another."""

Columns = Sequence[Sequence[Any]]
Hidden = Callable[[Sequence[Change]], Columns]


class Arrow:
    """Makes tables of changes: their columns by the feed's types, and hidden ones of the caller's beside them."""

    def __init__(self, columns: Mapping[str, str], hidden: Mapping[str, str]) -> None:
        self._pa = driver("pyarrow", "warehouse")
        self._read = reader(columns)
        self._shown = len(columns)
        fields = [(name, self._type(kind(text))) for name, text in {**columns, **hidden}.items()]
        self.schema = self._pa.schema(fields)
        self._json = None
        kinds = {name: kind(text) for name, text in columns.items()}
        self._real = [name for name, each in kinds.items() if each.name in REAL]
        if columns and all(name in self._real or _is_alike(each) for name, each in kinds.items()):
            self._json = driver("pyarrow.json", "warehouse")
            self._compute = driver("pyarrow.compute", "warehouse")
            self._options = self._json.ParseOptions(
                explicit_schema=self._pa.schema(fields[: self._shown]), unexpected_field_behavior="ignore"
            )

    def table(self, changes: Sequence[Change], hidden: Hidden) -> Any:
        """A row for each change, with its values in the hidden columns; a deletion has these alone. Poison names the first that does not fit."""
        shown = self._parsed(changes)
        if shown is not None:
            return self._joined(shown, hidden(changes))
        rows = [self._row(each) for each in changes]
        try:
            return self._made(rows, hidden(changes))
        except (self._pa.ArrowException, ValueError, TypeError, OverflowError):
            for change, row in zip(changes, rows, strict=True):
                self._try(change, row, hidden([change]))
            raise

    def _parsed(self, changes: Sequence[Change]) -> list[Any] | None:
        """The columns of the changes' values by Arrow's reader; None when it cannot."""
        if self._json is None or not changes:
            return None
        text = "\n".join([each.value or "{}" for each in changes]).encode()
        try:
            found = self._json.read_json(self._pa.BufferReader(text), parse_options=self._options)
        except self._pa.ArrowException:
            return None
        if found.num_rows != len(changes) or any(
            self._is_infinite(found.column(name)) for name in self._real
        ):
            return None
        return [found.column(name) for name in self.schema.names[: self._shown]]

    def _is_infinite(self, column: Any) -> bool:
        """Whether a number was too great: infinity itself is text in JSON, which Arrow refuses."""
        extremes = self._compute.min_max(column).as_py()
        return any(value is not None and math.isinf(value) for value in extremes.values())

    def _made(self, rows: Sequence[Mapping[str, Any]], hidden: Columns) -> Any:
        # By columns: a dict for each row, with what is hidden in it, would take twice the time.
        fields = list(self.schema)[: self._shown]
        shown = [self._pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
        return self._joined(shown, hidden)

    def _joined(self, shown: list[Any], hidden: Columns) -> Any:
        fields = list(self.schema)[self._shown :]
        beside = [self._pa.array(values, field.type) for values, field in zip(hidden, fields, strict=True)]
        return self._pa.Table.from_arrays(shown + beside, schema=self.schema)

    def _row(self, change: Change) -> dict[str, Any]:
        return {} if change.value is None else self._read(change)

    def _try(self, change: Change, row: dict[str, Any], hidden: Columns) -> None:
        try:
            self._made([row], hidden)
        except (self._pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Poison(change.partition, change.offset, f"the value does not fit: {error}") from error

    def _type(self, given: Kind) -> Any:
        pa = self._pa
        if given.name == "DECIMAL":
            return pa.decimal128(*given.numbers)
        if given.name == "ARRAY":
            return pa.list_(self._type(given.inner[0]))
        if given.name == "MAP":
            return pa.map_(self._type(given.inner[0]), self._type(given.inner[1]))
        if given.name == "STRUCT":
            return pa.struct(
                [(name, self._type(each)) for name, each in zip(given.names, given.inner, strict=True)]
            )
        return PLAIN[given.name](pa)


def _is_alike(given: Kind) -> bool:
    return given.name in ALIKE or (given.name in {"ARRAY", "STRUCT"} and all(map(_is_alike, given.inner)))
