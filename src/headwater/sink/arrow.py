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
        fields = [(name, self._type(kind(text))) for name, text in {**columns, **hidden}.items()]
        self.schema = self._pa.schema(fields)

    def table(self, changes: Sequence[Change], hidden: Callable[[Change], Mapping[str, Any]]) -> Any:
        """A row for each change; a deletion has its hidden columns alone. Poison names the first that does not fit."""
        rows = [{**self._row(each), **hidden(each)} for each in changes]
        try:
            return self._pa.Table.from_pylist(rows, schema=self.schema)
        except (self._pa.ArrowException, ValueError, TypeError, OverflowError):
            for change, row in zip(changes, rows, strict=True):
                self._try(change, row)
            raise

    def _row(self, change: Change) -> dict[str, Any]:
        return {} if change.value is None else self._read(change)

    def _try(self, change: Change, row: dict[str, Any]) -> None:
        try:
            self._pa.Table.from_pylist([row], schema=self.schema)
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
