"""ViewTable: reads the table of a view. ``writer.py`` alone writes it, and describes its format."""

import difflib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec

from headwater.errors import StorageError, UsageError
from headwater.formats import VIEW_TABLE
from headwater.position import Position
from headwater.view.tables import completeness
from headwater.view.tables.decimals import LOOK, columns_of, sortable
from headwater.view.tables.query import OPERATORS, Filter, RowQuery, number

__all__ = ["Complete", "TableExtent", "TableRow", "TableSnapshot", "ViewTable"]

VALID = (
    "json_extract(value, '$.valid_from') <= :as_of"
    " AND coalesce(json_extract(value, '$.valid_to') > :as_of, true)"
)
"""A row is valid from a time, included, until another, excluded, or until now."""
EXTENT = "SELECT rows, (SELECT max(timestamp) FROM row WHERE value IS NOT NULL) FROM size"
COUNTED = "SELECT count(*), max(timestamp) FROM row WHERE value IS NOT NULL"
"""The same for a file without the table ``size``."""
SAMPLE_ROWS = 50
"""How many of the newest rows are sampled for the columns of a view."""
KINDS = (dict, list, str, Decimal, float, int, bool)
"""If the values of a column have several types, the first one here counts."""

Complete = Callable[[Position], str | None]
"""Up to when the rows of a table at a position are complete; None if that is not known."""


class TableRow(msgspec.Struct, frozen=True):
    """One stored row: ``value`` is a JSON object, or None for a deleted key."""

    key: str
    value: str | None
    timestamp_ms: int

    def columns(self) -> dict[str, Any]:
        """The columns for users: those that begin with ``_`` are hidden."""
        return _shown(self._values())

    def marked(self, key: Sequence[str], complete: str | None) -> dict[str, Any]:
        """The columns for users, and ``_ready`` if the row becomes complete: whether it is."""
        values = self._values()
        until = completeness.until(values, key)
        if until is None:
            return _shown(values)
        return _shown(values) | {"_ready": complete is not None and until <= complete}

    def until(self, key: Sequence[str]) -> str | None:
        """When it is complete; None if it never is, or was deleted."""
        return None if self.value is None else completeness.until_of(self.value, key)

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.json.decode(self.value or "{}")
        return values


class TableSnapshot(msgspec.Struct, frozen=True):
    """Rows and the position of the table, from one transaction."""

    rows: tuple[TableRow, ...]
    position: Position
    more: bool = False
    """There are more rows than the limit."""
    complete: str | None = None
    """Up to when the rows are complete, if it is known."""


class TableExtent(msgspec.Struct, frozen=True):
    """The number of rows of a table and the time of its newest record, with the position of both."""

    rows: int
    changed_at_ms: int | None
    position: Position


class ViewTable:
    """The read side of one view's file. Any thread or process may use it while the writer writes.

    Every call is a read transaction. A file that does not exist yet is an empty table. ``key`` has the
    columns of the view's key: the window among them says until when a row may change. ``columns`` has the
    types of the columns, or none if they are not known: then decimals are recognized by their form.
    """

    def __init__(
        self,
        path: Path,
        key: tuple[str, ...] = (),
        complete: Complete = lambda _: None,
        columns: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.path = path
        self.topic = path.stem
        self.key = key
        self._complete = complete
        self._columns = columns

    def rows(self, query: RowQuery | None = None) -> TableSnapshot:
        """The rows of a query. UsageError for an unknown column, with the nearest name."""
        query = query or RowQuery()
        with self._reading() as connection:
            if connection is None:
                return TableSnapshot((), Position(), complete=self._complete(Position()))
            types = _check(connection, query, self._columns())
            upto = self._complete(self._position(connection))
            where, parameters = _where(query.filters, types)
            if query.as_of is not None:
                where, parameters = f"{where} AND {VALID}", parameters | {"as_of": query.as_of}
            if query.ready is not None:
                condition, more = _ready(self.key, query.ready, upto)
                where, parameters = f"{where} AND {condition}", parameters | more
            terms = [
                f"{_value(f':o{i}', types.get(o.column))}{' DESC' * o.descending}"
                for i, o in enumerate(query.order)
            ]
            parameters |= {f"o{i}": _path(o.column) for i, o in enumerate(query.order)}
            order = ", ".join([*terms, "key"])
            snapshot = self._snapshot(connection, f"{where} ORDER BY {order}", parameters, query.limit)
            return msgspec.structs.replace(snapshot, complete=upto)

    def newest(self, limit: int) -> TableSnapshot:
        """The rows that changed last, newest first."""
        with self._reading() as connection:
            if connection is None:
                return TableSnapshot((), Position())
            return self._snapshot(connection, "value IS NOT NULL ORDER BY timestamp DESC, key", {}, limit)

    def since(self, position: Position, limit: int) -> TableSnapshot | None:
        """The rows that changed since ``position``, deleted ones with value None, oldest change first.

        None if the table does not know: it was rebuilt since, has not reached ``position``, has forgotten
        keys that were deleted since, or more than ``limit`` rows changed. The reader then needs a whole
        snapshot.
        """
        with self._reading() as connection:
            reached = Position() if connection is None else self._position(connection)
            if connection is None or not reached.covers(position):
                return None
            starts = [(p, position.of(self.topic).get(p, 0)) for p in reached.of(self.topic)]
            floor = _floor(connection)
            if any(offset < floor.get(p, 0) for p, offset in starts):
                return None
            where = (
                " OR ".join(f"partition = {p:d} AND offset >= {offset:d}" for p, offset in starts) or "false"
            )
            clauses = f"({where}) ORDER BY timestamp, partition, offset"
            snapshot = self._snapshot(connection, clauses, {}, limit)
            return None if snapshot.more else snapshot

    def extent(self) -> TableExtent:
        """The size of the table, without reading its rows."""
        with self._reading() as connection:
            if connection is None:
                return TableExtent(0, None, Position())
            rows, changed_at = connection.execute(EXTENT if _has(connection, "size") else COUNTED).fetchone()
            return TableExtent(rows, changed_at, self._position(connection))

    def position(self) -> Position:
        """The position up to which the log is applied."""
        with self._reading() as connection:
            return Position() if connection is None else self._position(connection)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        if not self.path.exists():
            yield None
            return
        try:
            with closing(
                sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)
            ) as connection:
                connection.isolation_level = None
                connection.create_function("sortable", 1, sortable, deterministic=True)
                connection.execute("BEGIN")
                VIEW_TABLE.check(
                    connection.execute("PRAGMA user_version").fetchone()[0], f"view table {self.path}"
                )
                yield connection if _has(connection, "build") else None
        except sqlite3.Error as error:
            raise StorageError(f"view table {self.path}: {error}") from error

    def _position(self, connection: sqlite3.Connection) -> Position:
        offsets = dict(connection.execute("SELECT partition, offset FROM position").fetchall())
        build = int(connection.execute("SELECT build FROM build").fetchone()[0])
        return Position({self.topic: offsets} if offsets else {}, build)

    def _snapshot(
        self, connection: sqlite3.Connection, clauses: str, parameters: Mapping[str, Any], limit: int | None
    ) -> TableSnapshot:
        statement = f"SELECT key, value, timestamp FROM row WHERE {clauses} LIMIT :limit"  # noqa: S608  ours
        bound = {**parameters, "limit": -1 if limit is None else limit + 1}
        rows = tuple(TableRow(*row) for row in connection.execute(statement, bound))
        more = limit is not None and len(rows) > limit
        return TableSnapshot(rows[:limit] if more else rows, self._position(connection), more)


def _floor(connection: sqlite3.Connection) -> dict[int, int]:
    """By partition, the offset before which deletions are forgotten.

    A file of an earlier version forgets none.
    """
    exists = _has(connection, "floor")
    return dict(connection.execute("SELECT partition, offset FROM floor").fetchall()) if exists else {}


def _has(connection: sqlite3.Connection, table: str) -> bool:
    """Whether the file has a table: one of an earlier version may lack it."""
    (count,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return bool(count)


def _value(path: str, kind: type | None) -> str:
    """The SQL of a column's value for comparisons."""
    return f"sortable(json_extract(value, {path}))" if kind is Decimal else f"json_extract(value, {path})"


def _where(filters: tuple[Filter, ...], types: Mapping[str, type]) -> tuple[str, dict[str, Any]]:
    clauses = ["value IS NOT NULL"]
    parameters: dict[str, Any] = {}
    for i, term in enumerate(filters):
        parameters |= {f"p{i}": _path(term.column), f"t{i}": term.value, f"n{i}": number(term.value)}
        sign = OPERATORS[term.operator]
        missing = f"'null' {sign} :t{i}" if term.operator in ("eq", "ne") else "0"
        if types.get(term.column) is Decimal:
            compared = f"{_value(f':p{i}', Decimal)} {sign} sortable(:t{i})"
            clauses.append(
                f"CASE coalesce(json_type(value, :p{i}), 'null')"
                f" WHEN 'null' THEN {missing} ELSE {compared} END"
            )
            continue
        clauses.append(
            f"CASE json_type(value, :p{i}) WHEN 'text' THEN json_extract(value, :p{i}) {sign} :t{i}"
            f" WHEN 'integer' THEN json_extract(value, :p{i}) {sign} :n{i}"
            f" WHEN 'real' THEN json_extract(value, :p{i}) {sign} :n{i}"
            f" WHEN 'true' THEN 'true' {sign} :t{i} WHEN 'false' THEN 'false' {sign} :t{i}"
            f" ELSE {missing} END"
        )
    return " AND ".join(clauses), parameters


def _ready(key: tuple[str, ...], wanted: bool, complete: str | None) -> tuple[str, dict[str, Any]]:
    """A condition for rows that are complete, or for those that are not yet."""
    until, parameters = completeness.until_sql(key)
    condition = f"{until} <= :complete" if wanted else f"{until} > coalesce(:complete, '')"
    return condition, {**parameters, "complete": complete}


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith("_")}


def _path(column: str) -> str:
    return "$" + "".join(f'."{part}"' for part in column.split("."))


def _check(connection: sqlite3.Connection, query: RowQuery, columns: Mapping[str, str]) -> dict[str, type]:
    """The types of columns.

    UsageError for columns that no row has, and for comparisons that are never true.
    """
    if not query.filters and not query.order and query.as_of is None:
        return {}
    types = _sample(connection, by_form=not columns) | dict.fromkeys(columns_of(columns), Decimal)
    if query.as_of is not None and types and not {"valid_from", "valid_to"} <= types.keys():
        raise UsageError(
            "the rows of this view have no time from which they are valid",
            got="as_of",
            expected="the columns valid_from and valid_to of hw.versions",
        )
    for column in [*(f.column for f in query.filters), *(o.column for o in query.order)]:
        _check_column(connection, column, types)
    for term in query.filters:
        kind = types.get(term.column)
        numeric = kind in (int, float) and number(term.value) is not None
        if (
            kind in (int, float, Decimal)
            and not numeric
            and sortable(term.value) is None
            and term.value != "null"
        ):
            raise UsageError(f"column {term.column!r} holds numbers", got=repr(term.value[:40]))
    return types


def _check_column(connection: sqlite3.Connection, column: str, types: Mapping[str, type]) -> None:
    if types.get(column, dict) is not dict or not types:
        return
    inner = [name for name in types if name.startswith(f"{column}.")]
    if inner:
        raise UsageError(f"column {column!r} has parts", expected=" or ".join(inner))
    hidden = column.startswith("_") or '"' in column
    exists = "SELECT 1 FROM row WHERE value IS NOT NULL AND json_type(value, ?) IS NOT NULL LIMIT 1"
    if not hidden and connection.execute(exists, (_path(column),)).fetchone():
        return
    names = [name for name, kind in types.items() if kind is not dict]
    near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"columns are: {', '.join(names)}"
    raise UsageError(f"unknown column {column!r}", hint=hint)


def _sample(connection: sqlite3.Connection, *, by_form: bool) -> dict[str, type]:
    """From column to the type of its values in the newest rows; nested columns have dots.

    ``by_form``: texts that look like decimals are decimals.
    """
    newest = "SELECT value FROM row WHERE value IS NOT NULL ORDER BY timestamp DESC LIMIT ?"
    kinds: dict[str, set[type]] = {}
    for (value,) in connection.execute(newest, (SAMPLE_ROWS,)):
        _note_kinds(msgspec.json.decode(value), "", kinds, by_form=by_form)
    return {
        column: next((kind for kind in KINDS if kind in seen), NoneType) for column, seen in kinds.items()
    }


def _note_kinds(
    columns: Mapping[str, Any], prefix: str, kinds: dict[str, set[type]], *, by_form: bool
) -> None:
    for name, value in columns.items():
        if name.startswith("_"):
            continue
        column = f"{prefix}{name}"
        decimal = by_form and isinstance(value, str) and LOOK.fullmatch(value)
        kinds.setdefault(column, set()).add(Decimal if decimal else type(value))
        if isinstance(value, dict):
            _note_kinds(value, f"{column}.", kinds, by_form=by_form)
