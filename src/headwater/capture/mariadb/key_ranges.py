"""Rows of a MariaDB table by ranges of its key, from a snapshot, in the form in which they are published."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from headwater.capture.mariadb.snapshot import BYTES, Snapshot, quoted_name
from headwater.capture.messages import Range
from headwater.capture.reread.condition import Condition
from headwater.capture.reread.incremental import Span
from headwater.capture.stray_keys import Ghosts, key_values
from headwater.errors import CaptureError

__all__ = ["Rows"]

INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
NUMBERS: Final = INTEGERS | {"decimal"}
TEXTS: Final = frozenset(
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid", "inet4", "inet6"}
)
TIMES: Final = frozenset({"date", "time", "datetime", "timestamp"})
WHOLE: Final = "take a new snapshot of the whole table"


class Rows:
    """Reads rows of one table during a snapshot.

    CaptureError if its key cannot be compared with SQL texts.
    """

    def __init__(self, snapshot: Snapshot, table: str) -> None:
        schema, _, name = table.partition(".")
        self._snapshot = snapshot
        self._table = described = snapshot.table(schema, name)
        self.names = [column.name for column in described.columns]
        kinds = {column.name: column.type.removesuffix(" unsigned") for column in described.columns}
        self._key = [(quoted_name(column), kinds[column]) for column in described.key]
        if not described.key:
            raise CaptureError(f"table {table} has no key to read it by", hint=WHOLE)
        for column, kind in self._key:
            if kind not in NUMBERS | TEXTS | TIMES | BYTES:
                raise CaptureError(
                    f"table {table} cannot be read by ranges of its key", got=f"{column} {kind}", hint=WHOLE
                )

    def span(self, within: Range, where: str = "", most: int | None = None) -> Span:
        """The first rows of a range."""
        last = self._last(within, where, most)
        if last is None:
            return Span({}, None)
        condition = self._where(Range(after=within.after, upto=last), where)
        rows = {
            key or b"": (row or b"").decode("latin-1")
            for keys, images in self._snapshot.rows(self._table, f"{condition} ORDER BY {self._order()}")
            for key, row in zip(keys, images, strict=True)
        }
        return Span(rows, last)

    def ghosts(self, keys: Iterable[str]) -> Ghosts:
        """Which of these record keys have no row in the table."""
        gone, left, conditions = set[str](), 0, dict[str, str]()
        queried: dict[str, list[Any]] = {}
        for key in keys:
            values = key_values(key, self._table.key)
            comparable = [_is_comparable(*pair) for pair in zip(self._kinds(), values or (), strict=False)]
            if values is None or False in comparable:
                gone.add(key)
            elif None in comparable:
                left += 1
            else:
                queried[key] = values
                conditions[key] = self._equal([str(value) for value in values])
        if not queried:
            return Ghosts(gone, left)
        existing = set[str]()
        for row_keys, _ in self._snapshot.rows(self._table, f" WHERE {' OR '.join(conditions.values())}"):
            existing |= {(key or b"").decode() for key in row_keys}
        rows = [key_values(key, self._table.key) for key in existing]
        respelled = {key for key, values in queried.items() if key not in existing and values in rows}
        return Ghosts(gone | (queried.keys() - existing - respelled), left + len(respelled))

    def _last(self, within: Range, where: str, most: int | None) -> tuple[str, ...] | None:
        """The key of the last row that `span` returns."""
        condition = self._where(within, where)
        if most is not None:
            key = self._first_key(f"{condition} ORDER BY {self._order()} LIMIT 1 OFFSET {most - 1}")
            if key is not None:
                return key
        return self._first_key(f"{condition} ORDER BY {self._order(' DESC')} LIMIT 1")

    def _first_key(self, rest: str) -> tuple[str, ...] | None:
        selected = ", ".join(
            f"HEX({name})" if kind in BYTES else f"CAST({name} AS CHAR)" for name, kind in self._key
        )
        return self._snapshot.first_row(f"SELECT {selected} FROM {self._table.full_name}{rest}")  # noqa: S608  quoted

    def _where(self, within: Range, where: str) -> str:
        conditions = [f"({Condition(where).sql(quoted_name, self._snapshot.literal)})"] if where else []
        for sign, last, bound in ((">", ">", within.after), ("<", "<=", within.upto)):
            if bound is not None:
                conditions.append(self._beyond(bound, sign, last))
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _beyond(self, bound: Sequence[str], sign: str, last: str) -> str:
        """A comparison of keys, column by column: the server uses no index to compare row values."""
        steps = []
        for at, (name, kind) in enumerate(self._key):
            operator = last if at == len(self._key) - 1 else sign
            before = [self._same(i, bound[i]) for i in range(at)]
            steps.append(" AND ".join([*before, f"{name} {operator} {self._literal(kind, bound[at])}"]))
        return "(" + " OR ".join(f"({step})" for step in steps) + ")"

    def _equal(self, values: Sequence[str]) -> str:
        return "(" + " AND ".join(self._same(at, value) for at, value in enumerate(values)) + ")"

    def _same(self, at: int, text: str) -> str:
        name, kind = self._key[at]
        return f"{name} = {self._literal(kind, text)}"

    def _literal(self, kind: str, text: str) -> str:
        if kind in NUMBERS and text.lstrip("-").replace(".", "", 1).isdigit():
            return text
        if kind in BYTES:
            return f"x'{bytes.fromhex(text).hex()}'"
        return self._snapshot.literal(text)

    def _order(self, direction: str = "") -> str:
        return ", ".join(f"{name}{direction}" for name, _ in self._key)

    def _kinds(self) -> list[str]:
        return [kind for _, kind in self._key]


def _is_comparable(kind: str, value: Any) -> bool | None:
    """Whether a JSON value is written the same in SQL; False if no row has the value, None if SQL differs."""
    if kind in INTEGERS:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str) if kind in TEXTS else None
