"""The SQL of a sink's table in PostgreSQL: its statements, and how the tables are created and migrated.

    <table>              the columns of the feed, and what identifies a row as UNIQUE;
                         with history: _partition, _offset, valid_from, valid_to
    headwater_position   sink, topic, partition, next_offset, claim, at_ms
    headwater_origin     sink, topic, origin: the id of the topic that the rows are from
    headwater_format     format: of these tables
    headwater_stage      temporary: state (0 a row, 1 a deletion, 2 a key with nulls), place and time in the
                         log, and the columns of the feed as c0, c1, ...

A key may have nulls, so it is UNIQUE and not a PRIMARY KEY: rows with such a key are deleted by IS NOT
DISTINCT FROM before they are inserted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headwater.errors import UsageError
from headwater.formats import POSTGRES_SINK
from headwater.sink.stores.postgres_copy import FORMAT
from headwater.sink.stores.sql_table import (
    OFFSET,
    PARTITION,
    VERSION,
    SqlColumn,
    TableLayout,
    check_rows,
    quoted,
)

__all__ = ["GONE", "NULL_KEY", "ROW", "Statements", "staged", "statements"]

TYPES = {
    "BIGINT": "bigint",
    "DOUBLE": "double precision",
    "TEXT": "text",
    "BOOLEAN": "boolean",
    "TIMESTAMP": "timestamp with time zone",
    "DATE": "date",
    "DECIMAL": "numeric",
    "BINARY": "bytea",
    "JSON": "jsonb",
}
"""The names of types in PostgreSQL's catalogue."""
LOCK = 0x6865_6164
"""The number of the advisory lock under which one sink at a time creates its tables."""
ROW, GONE, NULL_KEY = range(3)
"""The state of a staged line: a row, a deletion, or the key of a row with nulls in it."""
STATE = {"state": "smallint"}
PLACE = {"log_partition": "integer", "log_offset": "bigint", "at_ms": "bigint"}


class Statements(msgspec.Struct, frozen=True):
    """The statements of a store."""

    table: str
    create: tuple[str, ...]
    wanted: dict[str, str]
    where: dict[str, str]
    """The schema and the name of the table, for the catalogue."""
    lead: tuple[str, ...]
    """The columns of the stage before those of the feed: the state, and the place in the log if it
    identifies rows."""
    stage: str
    copy: str
    cast: str
    """Stages rows from arrays, the values as JSON: PostgreSQL casts values of another type than their
    column's."""
    upsert: str
    delete: str
    delete_null: str
    close: str
    """With history: ends the current versions of the keys that have newer ones."""
    claim: str
    held: str
    locked: str
    move: str
    reset: tuple[str, ...]
    origin: str
    adopt: str
    at_ms: str
    format: str

    def prepare(self, connection: Any) -> None:
        """Creates the tables, or adds missing columns.

        A column that the feed no longer has stays, and is empty in new rows.
        """
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        for number, statement in enumerate(self.create[:-1]):
            connection.execute(statement)
            if number == 1:  # before anything else is touched
                self.check_format(connection)
        query = """
            SELECT a.attname, format_type(a.atttypid, NULL)
            FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %(schema)s AND c.relname = %(table)s
                AND a.attnum > 0 AND NOT a.attisdropped
        """
        existing = dict(connection.execute(query, self.where).fetchall())
        if not existing:
            for statement in self.create[-1].split(";;"):
                connection.execute(statement)
            return
        check_rows(self.where["table"], existing, self.wanted)
        for name, kind in self.wanted.items():
            if name not in existing:
                connection.execute(f"ALTER TABLE {self.table} ADD COLUMN {quoted(name)} {kind}")
            elif existing[name] != kind.partition("(")[0].strip():
                raise UsageError(
                    f"PostgreSQL table {self.table}: column {name!r} has another type",
                    got=existing[name],
                    expected=kind,
                    hint="give the sink another table,"
                    " or drop this one and the sink's lines in headwater_position",
                )

    def check_format(self, connection: Any) -> None:
        """UsageError if a newer version has written the positions in this schema."""
        (stored,) = connection.execute(self.format).fetchone()
        POSTGRES_SINK.check(stored or 1, f"schema {self.where['schema']!r} of PostgreSQL")


def statements(layout: TableLayout, schema: str, table: str, *, history: bool) -> Statements:
    """The statements for the table of a feed."""
    full = f"{quoted(schema)}.{quoted(table)}"
    placed = layout.feed.append or history
    wanted = _wanted(layout, placed=placed, history=history)
    columns = staged(layout)
    lead = STATE | (PLACE if placed else {})
    listed = ", ".join([*lead, *(f"c{n}" for n in range(len(columns)))])
    own_tables, own_statements = _own(schema, full)
    return Statements(
        table=full,
        create=(
            f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}",
            *own_tables,
            _create(layout, full, wanted, history=history),
        ),
        wanted=wanted,
        where={"schema": schema, "table": table},
        lead=tuple(lead),
        stage=_stage(lead, columns),
        copy=f"COPY headwater_stage ({listed}) FROM STDIN {FORMAT}",
        cast=_cast(lead, columns, listed),
        **(_history(layout, full) if history else _keyed(layout, full)),
        **own_statements,
    )


def _own(schema: str, full: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """How the tables that sinks keep for themselves are created, and the statements for them."""
    names = ("position", "origin", "format")
    position, origin, formats = (f"{quoted(schema)}.headwater_{name}" for name in names)
    ours = "WHERE sink = %(sink)s AND topic = %(topic)s"
    held = f"SELECT partition, next_offset, claim FROM {position} {ours} AND partition = ANY(%(partitions)s)"
    position_columns = (
        "sink text, topic text, partition integer, next_offset bigint, claim bigint NOT NULL, at_ms bigint"
    )
    origin_columns = "sink text, topic text, origin text"
    tables = (
        f"CREATE TABLE IF NOT EXISTS {formats} (format integer PRIMARY KEY)",
        f"INSERT INTO {formats} VALUES ({POSTGRES_SINK.newest}) ON CONFLICT DO NOTHING",
        f"CREATE TABLE IF NOT EXISTS {position} ({position_columns}, PRIMARY KEY (sink, topic, partition))",
        f"CREATE TABLE IF NOT EXISTS {origin} ({origin_columns}, PRIMARY KEY (sink, topic))",
    )
    return tables, {
        "claim": f"INSERT INTO {position} AS p (sink, topic, partition, claim) "
        "SELECT %(sink)s, %(topic)s, n, 1 FROM unnest(%(partitions)s::integer[]) n ORDER BY n "
        "ON CONFLICT (sink, topic, partition) DO UPDATE SET claim = p.claim + 1 "
        "RETURNING partition, next_offset, claim",
        "held": held,
        "locked": f"{held} ORDER BY partition FOR UPDATE",
        "move": f"UPDATE {position} AS p SET next_offset = m.upto, at_ms = greatest(p.at_ms, m.time) "
        "FROM unnest(%(partitions)s::integer[], %(offsets)s::bigint[], %(times)s::bigint[])"
        f" AS m(number, upto, time) {ours} AND partition = m.number",
        "reset": (
            # Claims are incremented, not removed: a process that still has one must not write after this.
            f"UPDATE {position} SET next_offset = NULL, at_ms = NULL, claim = claim + 1 {ours}",
            f"DELETE FROM {origin} {ours}",
            f"TRUNCATE {full}",
        ),
        "origin": f"SELECT origin FROM {origin} {ours}",
        "adopt": f"INSERT INTO {origin} VALUES (%(sink)s, %(topic)s, %(origin)s) "
        "ON CONFLICT (sink, topic) DO UPDATE SET origin = excluded.origin",
        "at_ms": f"SELECT partition, at_ms FROM {position} {ours} AND at_ms IS NOT NULL",
        "format": f"SELECT max(format) FROM {formats}",
    }


def _wanted(layout: TableLayout, *, placed: bool, history: bool) -> dict[str, str]:
    """The columns of the table with their types."""
    columns = {column.name: _type(column) for column in layout.columns}
    if placed:
        columns = {PARTITION: "integer", OFFSET: "bigint"} | columns
    if history:
        columns |= {"valid_from": TYPES["TIMESTAMP"], "valid_to": TYPES["TIMESTAMP"]}
    if layout.feed.versioned:
        columns[VERSION] = "bigint"
    return columns


def _create(layout: TableLayout, full: str, wanted: dict[str, str], *, history: bool) -> str:
    columns = [f"{quoted(name)} {kind}" for name, kind in wanted.items()]
    columns += [
        f"{quoted(start)} text GENERATED ALWAYS AS ({quoted(window)} ->> 'start') STORED"
        for start, window in layout.starts.items()
    ]
    key = (PARTITION, OFFSET) if history else layout.key
    create = f"CREATE TABLE {full} ({', '.join(columns)}, UNIQUE ({_names(key)}))"
    if history:
        create += f";;CREATE INDEX ON {full} ({_names(layout.key)}) WHERE valid_to IS NULL"
    return create


def staged(layout: TableLayout) -> tuple[SqlColumn, ...]:
    """The columns of the feed in the stage, in their order."""
    return (*layout.columns, SqlColumn(VERSION, "BIGINT")) if layout.feed.versioned else layout.columns


def _stage(lead: Mapping[str, str], columns: Sequence[SqlColumn]) -> str:
    kinds = [f"{name} {kind}" for name, kind in lead.items()]
    kinds += [f"c{n} {_wire_type(column)}" for n, column in enumerate(columns)]
    return f"CREATE TEMPORARY TABLE headwater_stage ({', '.join(kinds)}) ON COMMIT DELETE ROWS"


def _cast(lead: Mapping[str, str], columns: Sequence[SqlColumn], listed: str) -> str:
    arrays = ", ".join(f"%({name})s::{kind}[]" for name, kind in lead.items())
    kinds = ", ".join(f"{quoted(column.name)} {_wire_type(column)}" for column in columns).replace("%", "%%")
    return (
        f"INSERT INTO headwater_stage ({listed}) SELECT {', '.join(f's.{name}' for name in lead)}, r.* "
        f"FROM unnest({arrays}, %(value)s::text[]) AS s({', '.join(lead)}, value) "
        f"CROSS JOIN LATERAL json_to_record(s.value::json) AS r({kinds})"
    )


def _keyed(layout: TableLayout, full: str) -> dict[str, Any]:
    names = [column.name for column in staged(layout)]
    values = [_value(n, column) for n, column in enumerate(staged(layout))]
    if layout.feed.append:
        names, values = [PARTITION, OFFSET, *names], ["s.log_partition", "s.log_offset", *values]
    changed = [name for name in names if name not in layout.key]
    action = "DO NOTHING"
    if changed and not layout.feed.append:
        action = f"DO UPDATE SET {', '.join(f'{quoted(name)} = excluded.{quoted(name)}' for name in changed)}"
    if layout.feed.versioned:
        action += (
            f" WHERE excluded.{VERSION} IS NULL OR t.{VERSION} IS NULL OR excluded.{VERSION} >= t.{VERSION}"
        )
    upsert = (
        f"INSERT INTO {full} AS t ({_names(names)}) SELECT {', '.join(values)} "
        f"FROM headwater_stage s WHERE s.state = {ROW} ON CONFLICT ({_names(layout.key)}) {action}"
    )
    if layout.feed.append:
        return {"upsert": upsert, "delete": "", "delete_null": "", "close": ""}
    delete = f"DELETE FROM {full} t USING headwater_stage s WHERE s.state = "
    return {
        "upsert": upsert,
        "delete": f"{delete}{GONE} AND {_same(layout, '=')}",
        "delete_null": f"{delete}{NULL_KEY} AND {_same(layout, 'IS NOT DISTINCT FROM')}",
        "close": "",
    }


def _history(layout: TableLayout, full: str) -> dict[str, Any]:
    names = [column.name for column in layout.columns]
    values = [_value(n, column) for n, column in enumerate(layout.columns)]
    # The records of a key are in one partition, or in several if the topic got more partitions: the greater
    # number is then the newer one.
    keys = ", ".join(_key(layout, name) for name in layout.key)
    time = "to_timestamp(at_ms / 1000.0)"
    named = ", ".join(f"{_key(layout, name)} AS k{n}" for n, name in enumerate(layout.key))
    first = (
        f"SELECT DISTINCT ON ({keys}) {named}, at_ms "
        f"FROM headwater_stage s ORDER BY {keys}, log_partition, log_offset"
    )
    same = " AND ".join(f"t.{quoted(name)} IS NOT DISTINCT FROM f.k{n}" for n, name in enumerate(layout.key))
    close = (
        f"UPDATE {full} t SET valid_to = to_timestamp(f.at_ms / 1000.0) FROM ({first}) f "
        f"WHERE t.valid_to IS NULL AND {same}"
    )
    columns = [f"{value} AS c{n}" for n, value in enumerate(values)]
    inner = (
        f"SELECT s.state, s.log_partition, s.log_offset, {time} AS since, "
        f"lead({time}) OVER (PARTITION BY {keys} ORDER BY s.log_partition, s.log_offset) AS until, "
        f"{', '.join(columns)} FROM headwater_stage s"
    )
    listed = ", ".join(f"c{n}" for n in range(len(values)))
    insert = (
        f"INSERT INTO {full} ({_names([PARTITION, OFFSET, *names])}, valid_from, valid_to) "
        f"SELECT log_partition, log_offset, {listed}, since, until FROM ({inner}) v WHERE state = {ROW} "
        f"ON CONFLICT ({_names([PARTITION, OFFSET])}) DO NOTHING"
    )
    return {"upsert": insert, "delete": "", "delete_null": "", "close": close}


def _value(number: int, column: SqlColumn) -> str:
    """The expression of a column's value in a staged row."""
    return f"decode(s.c{number}, 'base64')" if column.kind == "BINARY" else f"s.c{number}"


def _key(layout: TableLayout, name: str) -> str:
    """The expression of a key column in a staged row."""
    wanted = layout.starts.get(name, name)
    number, column = next((n, c) for n, c in enumerate(layout.columns) if c.name == wanted)
    return f"(s.c{number} ->> 'start')" if name in layout.starts else _value(number, column)


def _same(layout: TableLayout, operator: str) -> str:
    return " AND ".join(f"t.{quoted(name)} {operator} {_key(layout, name)}" for name in layout.key)


def _type(column: SqlColumn) -> str:
    return TYPES[column.kind] + column.digits


def _wire_type(column: SqlColumn) -> str:
    """The type of a column in the stage, where binary values are text."""
    return "text" if column.kind == "BINARY" else _type(column)


def _names(names: Any) -> str:
    return ", ".join(quoted(name) for name in names)
