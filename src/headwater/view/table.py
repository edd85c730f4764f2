"""ViewTable: reads the table of a view. Only `headwater.sink.table` writes it, and describes its format."""

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
from headwater.view import ready
from headwater.view.decimals import LOOK, columns_of, sortable
from headwater.view.query import OPERATORS, Filter, Query, number

__all__ = ["Complete", "Extent", "Row", "Snapshot", "ViewTable"]

HELD = (
    "json_extract(value, '$.valid_from') <= :as_of"
    " AND coalesce(json_extract(value, '$.valid_to') > :as_of, true)"
)
"""A row holds from a time, that microsecond with it, until another, or until now."""
EXTENT = "SELECT rows, (SELECT max(timestamp) FROM row WHERE value IS NOT NULL) FROM size"
COUNTED = "SELECT count(*), max(timestamp) FROM row WHERE value IS NOT NULL"
"""The same of a file that does not have its size yet."""
SAMPLE_ROWS = 50
"""The newest rows tell which columns a view has."""
KINDS = (dict, list, str, Decimal, float, int, bool)
"""Of several types that values of a column have, the first one here counts."""

Complete = Callable[[Position], str | None]
"""Up to when the rows of a table at a position are complete; None when that is not known."""


class Row(msgspec.Struct, frozen=True):
    """One row as it is stored: ``value`` is a JSON object, or None for a deleted key."""

    key: str
    value: str | None
    timestamp_ms: int

    def columns(self) -> dict[str, Any]:
        """The columns that a user sees: those that begin with ``_`` are ours."""
        return _shown(self._values())

    def marked(self, key: Sequence[str], complete: str | None) -> dict[str, Any]:
        """The columns that a user sees; those of a row that becomes complete also say whether it is, with ``_ready``."""
        values = self._values()
        until = ready.until(values, key)
        if until is None:
            return _shown(values)
        return _shown(values) | {"_ready": complete is not None and until <= complete}

    def until(self, key: Sequence[str]) -> str | None:
        """When it is complete; None for a row that never is, or that was deleted."""
        return None if self.value is None else ready.until_of(self.value, key)

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.json.decode(self.value or "{}")
        return values


class Snapshot(msgspec.Struct, frozen=True):
    """Rows and the position at which they stood so, from one transaction."""

    rows: tuple[Row, ...]
    position: Position
    more: bool = False
    """There are rows beyond the limit."""
    complete: str | None = None
    """Up to when, where that was asked for and is known."""


class Extent(msgspec.Struct, frozen=True):
    """The size of a table and when its log was last written to, with the position of that answer."""

    rows: int
    changed_at_ms: int | None
    position: Position


class ViewTable:
    """The read side of one view's file; any thread or process may use it beside the writer.

    Every call is one read transaction of its own. A file that is not there yet is an empty table. ``key`` are
    the columns of the view's key: the window among them says until when a row may change. ``columns`` says the types of
    the columns, none where they are not known: decimals are then known by their form.
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

    def rows(self, query: Query | None = None) -> Snapshot:
        """The rows that a query asks for; an unknown column is a UsageError that names the nearest."""
        query = query or Query()
        with self._reading() as connection:
            if connection is None:
                return Snapshot((), Position(), complete=self._complete(Position()))
            known = _check(connection, query, self._columns())
            upto = self._complete(self._position(connection))
            where, parameters = _where(query.filters, known)
            if query.as_of is not None:
                where, parameters = f"{where} AND {HELD}", parameters | {"as_of": query.as_of}
            if query.ready is not None:
                condition, more = _ready(self.key, query.ready, upto)
                where, parameters = f"{where} AND {condition}", parameters | more
            terms = [
                f"{_value(f':o{i}', known.get(o.column))}{' DESC' * o.descending}"
                for i, o in enumerate(query.order)
            ]
            parameters |= {f"o{i}": _path(o.column) for i, o in enumerate(query.order)}
            order = ", ".join([*terms, "key"])
            found = self._snapshot(connection, f"{where} ORDER BY {order}", parameters, query.limit)
            return msgspec.structs.replace(found, complete=upto)

    def newest(self, limit: int) -> Snapshot:
        """The rows that changed last, newest first."""
        with self._reading() as connection:
            if connection is None:
                return Snapshot((), Position())
            return self._snapshot(connection, "value IS NOT NULL ORDER BY timestamp DESC, key", {}, limit)

    def since(self, position: Position, limit: int) -> Snapshot | None:
        """The rows (deleted ones with value None) that changed behind ``position``, oldest change first.

        None when this cannot be told: the table was rebuilt since, has not reached ``position``, no longer knows
        which keys were deleted since then, or more than ``limit`` rows changed. The reader then takes a whole snapshot.
        """
        with self._reading() as connection:
            here = Position() if connection is None else self._position(connection)
            if connection is None or not here.covers(position):
                return None
            behind = [(p, position.of(self.topic).get(p, 0)) for p in here.of(self.topic)]
            floor = _floor(connection)
            if any(offset < floor.get(p, 0) for p, offset in behind):
                return None
            where = (
                " OR ".join(f"partition = {p:d} AND offset >= {offset:d}" for p, offset in behind) or "false"
            )
            found = self._snapshot(connection, f"({where}) ORDER BY timestamp, partition, offset", {}, limit)
            return None if found.more else found

    def extent(self) -> Extent:
        """How much there is, without reading the rows."""
        with self._reading() as connection:
            if connection is None:
                return Extent(0, None, Position())
            rows, changed_at = connection.execute(EXTENT if _has(connection, "size") else COUNTED).fetchone()
            return Extent(rows, changed_at, self._position(connection))

    def position(self) -> Position:
        """Up to where the log is applied."""
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
    ) -> Snapshot:
        statement = f"SELECT key, value, timestamp FROM row WHERE {clauses} LIMIT :limit"  # noqa: S608 clauses are ours
        bound = {**parameters, "limit": -1 if limit is None else limit + 1}
        rows = tuple(Row(*found) for found in connection.execute(statement, bound))
        more = limit is not None and len(rows) > limit
        return Snapshot(rows[:limit] if more else rows, self._position(connection), more)


def _floor(connection: sqlite3.Connection) -> dict[int, int]:
    """By partition, the offset before which deletions are forgotten; a file that an earlier version has made forgets none."""
    made = _has(connection, "floor")
    return dict(connection.execute("SELECT partition, offset FROM floor").fetchall()) if made else {}


def _has(connection: sqlite3.Connection, table: str) -> bool:
    """Whether the file has a table, which one that an earlier version has made may not have."""
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    return bool(found[0])


def _value(path: str, kind: type | None) -> str:
    """SQL for a column as it sorts."""
    return f"sortable(json_extract(value, {path}))" if kind is Decimal else f"json_extract(value, {path})"


def _where(filters: tuple[Filter, ...], known: Mapping[str, type]) -> tuple[str, dict[str, Any]]:
    clauses = ["value IS NOT NULL"]
    parameters: dict[str, Any] = {}
    for i, found in enumerate(filters):
        parameters |= {f"p{i}": _path(found.column), f"t{i}": found.value, f"n{i}": number(found.value)}
        sign = OPERATORS[found.operator]
        missing = f"'null' {sign} :t{i}" if found.operator in ("eq", "ne") else "0"
        if known.get(found.column) is Decimal:
            compared = f"{_value(f':p{i}', Decimal)} {sign} sortable(:t{i})"
            clauses.append(
                f"CASE coalesce(json_type(value, :p{i}), 'null') WHEN 'null' THEN {missing} ELSE {compared} END"
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
    """Only rows that are complete, or only those that are not yet; one that never is is neither."""
    until, parameters = ready.until_sql(key)
    condition = f"{until} <= :complete" if wanted else f"{until} > coalesce(:complete, '')"
    return condition, {**parameters, "complete": complete}


def _shown(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith("_")}


def _path(column: str) -> str:
    return "$" + "".join(f'."{part}"' for part in column.split("."))


def _check(connection: sqlite3.Connection, query: Query, columns: Mapping[str, str]) -> dict[str, type]:
    """Refuses columns that no row has, and comparisons that could never be true; column → type of its values."""
    if not query.filters and not query.order and query.as_of is None:
        return {}
    known = _sample(connection, by_form=not columns) | dict.fromkeys(columns_of(columns), Decimal)
    if query.as_of is not None and known and not {"valid_from", "valid_to"} <= known.keys():
        raise UsageError(
            "the rows of this view have no time from which they hold",
            got="as_of",
            expected="the columns valid_from and valid_to, as hw.versions makes them",
        )
    for column in [*(f.column for f in query.filters), *(o.column for o in query.order)]:
        _check_column(connection, column, known)
    for found in query.filters:
        kind = known.get(found.column)
        numeric = kind in (int, float) and number(found.value) is not None
        if (
            kind in (int, float, Decimal)
            and not numeric
            and sortable(found.value) is None
            and found.value != "null"
        ):
            raise UsageError(f"column {found.column!r} holds numbers", got=repr(found.value[:40]))
    return known


def _check_column(connection: sqlite3.Connection, column: str, known: Mapping[str, type]) -> None:
    if known.get(column, dict) is not dict or not known:
        return
    inner = [name for name in known if name.startswith(f"{column}.")]
    if inner:
        raise UsageError(f"column {column!r} has parts", expected=" or ".join(inner))
    hidden = column.startswith("_") or '"' in column
    exists = "SELECT 1 FROM row WHERE value IS NOT NULL AND json_type(value, ?) IS NOT NULL LIMIT 1"
    if not hidden and connection.execute(exists, (_path(column),)).fetchone():
        return
    names = [name for name, kind in known.items() if kind is not dict]
    near = difflib.get_close_matches(column, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"columns are: {', '.join(names)}"
    raise UsageError(f"unknown column {column!r}", hint=hint)


def _sample(connection: sqlite3.Connection, *, by_form: bool) -> dict[str, type]:
    """Column → type of its values, nested ones with dots, as the newest rows have them; texts that are all decimals ``by_form`` are such."""
    newest = "SELECT value FROM row WHERE value IS NOT NULL ORDER BY timestamp DESC LIMIT ?"
    kinds: dict[str, set[type]] = {}
    for (value,) in connection.execute(newest, (SAMPLE_ROWS,)):
        _note_kinds(msgspec.json.decode(value), "", kinds, by_form=by_form)
    return {
        column: next((kind for kind in KINDS if kind in found), NoneType) for column, found in kinds.items()
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
