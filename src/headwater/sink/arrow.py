"""Rows of a feed as Arrow tables."""

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


class Arrow:
    """Makes tables of changes: their columns by the feed's types, and hidden ones of the caller's beside them."""

    def __init__(self, columns: Mapping[str, str], hidden: Mapping[str, str]) -> None:
        self._pa = driver("pyarrow", "warehouse")
        self._read = reader(columns)
        self._hidden = len(hidden)
        fields = [(name, self._type(kind(text))) for name, text in {**columns, **hidden}.items()]
        self.schema = self._pa.schema(fields)

    def table(self, changes: Sequence[Change], hidden: Callable[[Change], tuple[Any, ...]]) -> Any:
        """A row for each change, with the values of its hidden columns; a deletion has these alone. Poison names the first that does not fit."""
        rows = [self._row(each) for each in changes]
        beside = [hidden(each) for each in changes]
        try:
            return self._made(rows, beside)
        except (self._pa.ArrowException, ValueError, TypeError, OverflowError):
            for change, row, more in zip(changes, rows, beside, strict=True):
                self._try(change, row, more)
            raise

    def _made(self, rows: Sequence[Mapping[str, Any]], hidden: Sequence[tuple[Any, ...]]) -> Any:
        # By columns: a dict for each row, with what is hidden in it, would take twice the time.
        shown = len(self.schema) - self._hidden
        columns = [[row.get(name) for row in rows] for name in self.schema.names[:shown]]
        columns += [list(each) for each in zip(*hidden, strict=True)] or [[] for _ in range(self._hidden)]
        arrays = [
            self._pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)
        ]
        return self._pa.Table.from_arrays(arrays, schema=self.schema)

    def _row(self, change: Change) -> dict[str, Any]:
        return {} if change.value is None else self._read(change)

    def _try(self, change: Change, row: dict[str, Any], hidden: tuple[Any, ...]) -> None:
        try:
            self._made([row], [hidden])
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
