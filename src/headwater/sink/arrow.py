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
TIMES = frozenset({"TIMESTAMP", "TIMESTAMP_NTZ"})
ALIKE = PLAIN.keys() - {"BINARY", "DATE"} - REAL - TIMES
"""What Arrow's reader makes the same of, beside arrays and structs of it. It takes more for a number or a time than we do: columns of those are looked at."""
WHOLE_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:?\d\d)?$"

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
        if columns and all(each.name in REAL | TIMES or _is_alike(each) for each in kinds.values()):
            self._json = driver("pyarrow.json", "warehouse")
            self._compute = driver("pyarrow.compute", "warehouse")
            text = self._pa.string()
            read = [(name, text if kinds[name].name in TIMES else of) for name, of in fields[: self._shown]]
            self._options = self._json.ParseOptions(
                explicit_schema=self._pa.schema(read), unexpected_field_behavior="ignore"
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
            shown = [self._looked_at(found.column(n), self.schema.field(n)) for n in range(self._shown)]
        except self._pa.ArrowException:
            return None
        return shown if found.num_rows == len(changes) else None

    def _looked_at(self, column: Any, field: Any) -> Any:
        """A column that was read; ArrowInvalid if row by row it would not be the same."""
        types, compute = self._pa.types, self._compute
        if types.is_timestamp(field.type):
            whole = compute.match_substring_regex(column, WHOLE_TIME)
            if not compute.all(whole, min_count=0).as_py():
                raise self._pa.ArrowInvalid("a part of a time is missing")
            return column.cast(field.type)
        if types.is_floating(field.type):
            extremes = compute.min_max(column).as_py().values()
            if any(value is not None and math.isinf(value) for value in extremes):
                raise self._pa.ArrowInvalid("a number is too great")  # infinity itself is text in JSON
        return column

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
