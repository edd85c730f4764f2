"""The SQL of a sink's table in PostgreSQL, made once from its layout.

    <table>              the columns of the feed, and what identifies a row as UNIQUE; with history: _partition, _offset, valid_from, valid_to
    headwater_position   sink, topic, partition, next_offset, claim, at_ms
    headwater_origin     sink, topic, origin: the id of the topic that the rows come from
    headwater_format     format: of these tables
    headwater_stage      temporary: state (0 a row, 1 a deletion, 2 a key with nulls), place and time in the log, and the columns of the feed as c0, c1, ...

Nulls in a key are why the key is UNIQUE and no PRIMARY KEY: such rows are deleted by IS NOT DISTINCT FROM before they are inserted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headwater.errors import UsageError
from headwater.formats import POSTGRES_SINK
from headwater.sink.layout import OFFSET, PARTITION, VERSION, Column, Layout, check_rows, quoted
from headwater.sink.postgres_copy import FORMAT

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
"""As PostgreSQL's catalogue has them."""
LOCK = 0x6865_6164
"""Of all sinks that make tables at the same time, one at a time does."""
ROW, GONE, NULL_KEY = range(3)
"""What a staged line is: a row, a deletion, the key with nulls of a row."""
STATE = {"state": "smallint"}
PLACE = {"log_partition": "integer", "log_offset": "bigint", "at_ms": "bigint"}


class Statements(msgspec.Struct, frozen=True):
    """What a store says to PostgreSQL."""

    table: str
    create: tuple[str, ...]
    wanted: dict[str, str]
    where: dict[str, str]
    """The schema and the name of the table, for the catalogue."""
    lead: tuple[str, ...]
    """What the stage has in front of the feed's columns: the state, and where rows are named by it the place in the log."""
    stage: str
    copy: str
    cast: str
    """Stages rows from arrays, the values as JSON: by PostgreSQL's own rules for what is of another type than its column."""
    upsert: str
    delete: str
    delete_null: str
    close: str
    """With history: ends the versions that hold, where newer ones have come."""
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
        """Makes the tables, or adds the columns that are missing; a column that is no longer in the feed stays, and is empty in new rows."""
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        for number, statement in enumerate(self.create[:-1]):
            connection.execute(statement)
            if number == 1:  # before anything else is touched
                self.check_format(connection)
        query = """
            SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = %(schema)s AND c.relname = %(table)s AND a.attnum > 0 AND NOT a.attisdropped
        """
        there = dict(connection.execute(query, self.where).fetchall())
        if not there:
            for statement in self.create[-1].split(";;"):
                connection.execute(statement)
            return
        check_rows(self.where["table"], there, self.wanted)
        for name, kind in self.wanted.items():
            if name not in there:
                connection.execute(f"ALTER TABLE {self.table} ADD COLUMN {quoted(name)} {kind}")
            elif there[name] != kind.partition("(")[0].strip():
                raise UsageError(
                    f"PostgreSQL table {self.table}: column {name!r} has another type",
                    got=there[name],
                    expected=kind,
                    hint="give the sink another table, or drop this one and the sink's lines in headwater_position",
                )

    def check_format(self, connection: Any) -> None:
        """UsageError when a newer version keeps the positions in this schema."""
        (found,) = connection.execute(self.format).fetchone()
        POSTGRES_SINK.check(found or 1, f"schema {self.where['schema']!r} of PostgreSQL")


def statements(shape: Layout, schema: str, table: str, *, history: bool) -> Statements:
    full = f"{quoted(schema)}.{quoted(table)}"
    names = ("position", "origin", "format")
    position, origin, formats = (f"{quoted(schema)}.headwater_{name}" for name in names)
    ours = "WHERE sink = %(sink)s AND topic = %(topic)s"
    held = f"SELECT partition, next_offset, claim FROM {position} {ours} AND partition = ANY(%(partitions)s)"
    placed = shape.feed.append or history
    rows = _history(shape, full) if history else _keyed(shape, full)
    wanted = {column.name: _type(column) for column in shape.columns}
    if placed:
        wanted = {PARTITION: "integer", OFFSET: "bigint"} | wanted
    if history:
        wanted |= {"valid_from": TYPES["TIMESTAMP"], "valid_to": TYPES["TIMESTAMP"]}
    if shape.feed.versioned:
        wanted[VERSION] = "bigint"
    columns = staged(shape)
    lead = STATE | (PLACE if placed else {})
    listed = ", ".join([*lead, *(f"c{n}" for n in range(len(columns)))])
    return Statements(
        table=full,
        create=(
            f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}",
            f"CREATE TABLE IF NOT EXISTS {formats} (format integer PRIMARY KEY)",
            f"INSERT INTO {formats} VALUES ({POSTGRES_SINK.newest}) ON CONFLICT DO NOTHING",
            (
                f"CREATE TABLE IF NOT EXISTS {position} (sink text, topic text, partition integer, next_offset bigint, claim bigint NOT NULL, "
                "at_ms bigint, PRIMARY KEY (sink, topic, partition))"
            ),
            f"CREATE TABLE IF NOT EXISTS {origin} (sink text, topic text, origin text, PRIMARY KEY (sink, topic))",
            _create(shape, full, wanted, history=history),
        ),
        wanted=wanted,
        where={"schema": schema, "table": table},
        lead=tuple(lead),
        stage=_stage(lead, columns),
        copy=f"COPY headwater_stage ({listed}) FROM STDIN {FORMAT}",
        cast=_cast(lead, columns, listed),
        upsert=rows["upsert"],
        delete=rows["delete"],
        delete_null=rows["delete_null"],
        close=rows["close"],
        claim=f"INSERT INTO {position} AS p (sink, topic, partition, claim) "
        "SELECT %(sink)s, %(topic)s, n, 1 FROM unnest(%(partitions)s::integer[]) n ORDER BY n "
        "ON CONFLICT (sink, topic, partition) DO UPDATE SET claim = p.claim + 1 RETURNING partition, next_offset, claim",
        held=held,
        locked=f"{held} ORDER BY partition FOR UPDATE",
        move=f"UPDATE {position} AS p SET next_offset = m.upto, at_ms = greatest(p.at_ms, m.time) "
        "FROM unnest(%(partitions)s::integer[], %(offsets)s::bigint[], %(times)s::bigint[]) AS m(number, upto, time) "
        f"{ours} AND partition = m.number",
        reset=(
            # Counted on, not removed: whoever still holds a claim must not write behind this.
            f"UPDATE {position} SET next_offset = NULL, at_ms = NULL, claim = claim + 1 {ours}",
            f"DELETE FROM {origin} {ours}",
            f"TRUNCATE {full}",
        ),
        origin=f"SELECT origin FROM {origin} {ours}",
        adopt=f"INSERT INTO {origin} VALUES (%(sink)s, %(topic)s, %(origin)s) "
        "ON CONFLICT (sink, topic) DO UPDATE SET origin = excluded.origin",
        at_ms=f"SELECT partition, at_ms FROM {position} {ours} AND at_ms IS NOT NULL",
        format=f"SELECT max(format) FROM {formats}",
    )


def _create(shape: Layout, full: str, wanted: dict[str, str], *, history: bool) -> str:
    columns = [f"{quoted(name)} {kind}" for name, kind in wanted.items()]
    columns += [
        f"{quoted(start)} text GENERATED ALWAYS AS ({quoted(window)} ->> 'start') STORED"
        for start, window in shape.starts.items()
    ]
    key = (PARTITION, OFFSET) if history else shape.key
    create = f"CREATE TABLE {full} ({', '.join(columns)}, UNIQUE ({_names(key)}))"
    if history:
        create += f";;CREATE INDEX ON {full} ({_names(shape.key)}) WHERE valid_to IS NULL"
    return create


def staged(shape: Layout) -> tuple[Column, ...]:
    """The columns of the feed in the stage, in their order."""
    return (*shape.columns, Column(VERSION, "BIGINT")) if shape.feed.versioned else shape.columns


def _stage(lead: Mapping[str, str], columns: Sequence[Column]) -> str:
    kinds = [f"{name} {kind}" for name, kind in lead.items()]
    kinds += [f"c{n} {_wire_type(column)}" for n, column in enumerate(columns)]
    return f"CREATE TEMPORARY TABLE headwater_stage ({', '.join(kinds)}) ON COMMIT DELETE ROWS"


def _cast(lead: Mapping[str, str], columns: Sequence[Column], listed: str) -> str:
    arrays = ", ".join(f"%({name})s::{kind}[]" for name, kind in lead.items())
    kinds = ", ".join(f"{quoted(column.name)} {_wire_type(column)}" for column in columns).replace("%", "%%")
    return (
        f"INSERT INTO headwater_stage ({listed}) SELECT {', '.join(f's.{name}' for name in lead)}, r.* "
        f"FROM unnest({arrays}, %(value)s::text[]) AS s({', '.join(lead)}, value) "
        f"CROSS JOIN LATERAL json_to_record(s.value::json) AS r({kinds})"
    )


def _keyed(shape: Layout, full: str) -> dict[str, str]:
    names = [column.name for column in staged(shape)]
    values = [_value(n, column) for n, column in enumerate(staged(shape))]
    if shape.feed.append:
        names, values = [PARTITION, OFFSET, *names], ["s.log_partition", "s.log_offset", *values]
    changed = [name for name in names if name not in shape.key]
    action = "DO NOTHING"
    if changed and not shape.feed.append:
        action = f"DO UPDATE SET {', '.join(f'{quoted(name)} = excluded.{quoted(name)}' for name in changed)}"
    if shape.feed.versioned:
        action += (
            f" WHERE excluded.{VERSION} IS NULL OR t.{VERSION} IS NULL OR excluded.{VERSION} >= t.{VERSION}"
        )
    upsert = (
        f"INSERT INTO {full} AS t ({_names(names)}) SELECT {', '.join(values)} FROM headwater_stage s WHERE s.state = {ROW} "
        f"ON CONFLICT ({_names(shape.key)}) {action}"
    )
    if shape.feed.append:
        return {"upsert": upsert, "delete": "", "delete_null": "", "close": ""}
    return {
        "upsert": upsert,
        "delete": f"DELETE FROM {full} t USING headwater_stage s WHERE s.state = {GONE} AND {_same(shape, '=')}",
        "delete_null": f"DELETE FROM {full} t USING headwater_stage s WHERE s.state = {NULL_KEY} AND {_same(shape, 'IS NOT DISTINCT FROM')}",
        "close": "",
    }


def _history(shape: Layout, full: str) -> dict[str, str]:
    names = [column.name for column in shape.columns]
    values = [_value(n, column) for n, column in enumerate(shape.columns)]
    # Records of a key are in one partition, or moved to another when the topic got more of them: the greater number is the newer one.
    keys = ", ".join(_key(shape, name) for name in shape.key)
    time = "to_timestamp(at_ms / 1000.0)"
    first = (
        f"SELECT DISTINCT ON ({keys}) {', '.join(f'{_key(shape, name)} AS k{n}' for n, name in enumerate(shape.key))}, at_ms "
        f"FROM headwater_stage s ORDER BY {keys}, log_partition, log_offset"
    )
    same = " AND ".join(f"t.{quoted(name)} IS NOT DISTINCT FROM f.k{n}" for n, name in enumerate(shape.key))
    close = (
        f"UPDATE {full} t SET valid_to = to_timestamp(f.at_ms / 1000.0) FROM ({first}) f "
        f"WHERE t.valid_to IS NULL AND {same}"
    )
    columns = [*(f"{value} AS c{n}" for n, value in enumerate(values))]
    inner = (
        f"SELECT s.state, s.log_partition, s.log_offset, {time} AS since, "
        f"lead({time}) OVER (PARTITION BY {keys} ORDER BY s.log_partition, s.log_offset) AS until, {', '.join(columns)} FROM headwater_stage s"
    )
    listed = ", ".join(f"c{n}" for n in range(len(values)))
    insert = (
        f"INSERT INTO {full} ({_names([PARTITION, OFFSET, *names])}, valid_from, valid_to) "
        f"SELECT log_partition, log_offset, {listed}, since, until FROM ({inner}) v WHERE state = {ROW} "
        f"ON CONFLICT ({_names([PARTITION, OFFSET])}) DO NOTHING"
    )
    return {"upsert": insert, "delete": "", "delete_null": "", "close": close}


def _value(number: int, column: Column) -> str:
    """The expression of a column's value in a staged row."""
    return f"decode(s.c{number}, 'base64')" if column.kind == "BINARY" else f"s.c{number}"


def _key(shape: Layout, name: str) -> str:
    """The expression of a key column in a staged row."""
    wanted = shape.starts.get(name, name)
    number, column = next((n, c) for n, c in enumerate(shape.columns) if c.name == wanted)
    return f"(s.c{number} ->> 'start')" if name in shape.starts else _value(number, column)


def _same(shape: Layout, operator: str) -> str:
    return " AND ".join(f"t.{quoted(name)} {operator} {_key(shape, name)}" for name in shape.key)


def _type(column: Column) -> str:
    return TYPES[column.kind] + column.digits


def _wire_type(column: Column) -> str:
    """The type of a column in the stage: binary values come as text."""
    return "text" if column.kind == "BINARY" else _type(column)


def _names(names: Any) -> str:
    return ", ".join(quoted(name) for name in names)
