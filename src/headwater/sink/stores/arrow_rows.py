"""Rows of a feed as Arrow tables.

Arrow parses the JSON of a whole batch if it parses these columns as we do. A batch that it refuses is
parsed again row by row: that names the row that does not fit, and takes twice the time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwater.change import Change
from headwater.sink.store import Poison
from headwater.sink.stores.optional_library import import_library
from headwater.sink.stores.spark_types import SparkType, change_reader, parse_type

__all__ = ["ArrowTables"]

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
TIMES = frozenset({"TIMESTAMP", "TIMESTAMP_NTZ"})
ALIKE = PLAIN.keys() - {"BINARY", "DATE"} - REAL - TIMES
"""The types, and arrays and structs of them, for which Arrow's parser gives the same result as ours.

It accepts more forms of numbers and times than we do: columns of these are checked afterwards."""
WHOLE_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:?\d\d)?$"

Columns = Sequence[Sequence[Any]]
Hidden = Callable[[Sequence[Change]], Columns]


class ArrowTables:
    """Builds tables from changes: columns with the feed's types, and further ones of the caller."""

    def __init__(self, columns: Mapping[str, str], hidden: Mapping[str, str]) -> None:
        self._pa = import_library("pyarrow", "warehouse")
        self._read = change_reader(columns)
        self._shown = len(columns)
        fields = [(name, self._type(parse_type(text))) for name, text in {**columns, **hidden}.items()]
        self.schema = self._pa.schema(fields)
        self._json = None
        types = {name: parse_type(text) for name, text in columns.items()}
        if columns and all(column.name in REAL | TIMES or _is_alike(column) for column in types.values()):
            self._json = import_library("pyarrow.json", "warehouse")
            self._compute = import_library("pyarrow.compute", "warehouse")
            text = self._pa.string()
            read = [(name, text if types[name].name in TIMES else of) for name, of in fields[: self._shown]]
            self._options = self._json.ParseOptions(
                explicit_schema=self._pa.schema(read), unexpected_field_behavior="ignore"
            )

    def table(self, changes: Sequence[Change], hidden: Hidden) -> Any:
        """A row for each change, with its values in the hidden columns; a deletion has only these.

        Poison for the first change that does not fit.
        """
        shown = self._parsed(changes)
        if shown is not None:
            return self._build(shown, hidden(changes))
        rows = [self._row(change) for change in changes]
        try:
            return self._build_rows(rows, hidden(changes))
        except (self._pa.ArrowException, ValueError, TypeError, OverflowError):
            for change, row in zip(changes, rows, strict=True):
                self._try(change, row, hidden([change]))
            raise

    def _parsed(self, changes: Sequence[Change]) -> list[Any] | None:
        """The columns of the changes' values, parsed by Arrow; None if it cannot."""
        if self._json is None or not changes:
            return None
        text = "\n".join([change.value or "{}" for change in changes]).encode()
        try:
            parsed = self._json.read_json(self._pa.BufferReader(text), parse_options=self._options)
            shown = [self._checked(parsed.column(n), self.schema.field(n)) for n in range(self._shown)]
        except self._pa.ArrowException:
            return None
        return shown if parsed.num_rows == len(changes) else None

    def _checked(self, column: Any, field: Any) -> Any:
        """A parsed column with its type; ArrowInvalid if our own parser would give another result."""
        types, compute = self._pa.types, self._compute
        if types.is_timestamp(field.type):
            whole = compute.match_substring_regex(column, WHOLE_TIME)
            if not compute.all(whole, min_count=0).as_py():
                raise self._pa.ArrowInvalid("a part of a time is missing")
            return column.cast(field.type)
        if types.is_floating(field.type):
            extremes = compute.min_max(column).as_py().values()
            if any(value is not None and math.isinf(value) for value in extremes):
                raise self._pa.ArrowInvalid("a number is too large")  # infinity itself is text in JSON
        return column

    def _build_rows(self, rows: Sequence[Mapping[str, Any]], hidden: Columns) -> Any:
        # By columns: a dict for each row, with its hidden columns, would take twice the time.
        fields = list(self.schema)[: self._shown]
        shown = [self._pa.array([row.get(field.name) for row in rows], field.type) for field in fields]
        return self._build(shown, hidden)

    def _build(self, shown: list[Any], hidden: Columns) -> Any:
        fields = list(self.schema)[self._shown :]
        arrays = [self._pa.array(values, field.type) for values, field in zip(hidden, fields, strict=True)]
        return self._pa.Table.from_arrays(shown + arrays, schema=self.schema)

    def _row(self, change: Change) -> dict[str, Any]:
        return {} if change.value is None else self._read(change)

    def _try(self, change: Change, row: dict[str, Any], hidden: Columns) -> None:
        try:
            self._build_rows([row], hidden)
        except (self._pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise Poison(change.partition, change.offset, f"the value does not fit: {error}") from error

    def _type(self, column: SparkType) -> Any:
        pa = self._pa
        if column.name == "DECIMAL":
            return pa.decimal128(*column.numbers)
        if column.name == "ARRAY":
            return pa.list_(self._type(column.inner[0]))
        if column.name == "MAP":
            return pa.map_(self._type(column.inner[0]), self._type(column.inner[1]))
        if column.name == "STRUCT":
            parts = zip(column.names, column.inner, strict=True)
            return pa.struct([(name, self._type(part)) for name, part in parts])
        return PLAIN[column.name](pa)


def _is_alike(column: SparkType) -> bool:
    return column.name in ALIKE or (column.name in {"ARRAY", "STRUCT"} and all(map(_is_alike, column.inner)))
