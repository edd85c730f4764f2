"""Catalogue: queries of a PostgreSQL server about its settings, tables, keys, publications and slots."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headwater.capture.postgres.changes import TableDescription
from headwater.capture.postgres.connection import psycopg
from headwater.capture.postgres.messages import Column, Relation, parse_lsn
from headwater.capture.postgres.values import Decimals, Type, Types
from headwater.errors import CaptureError

__all__ = ["Catalogue", "PublishedTable", "Slot", "identifier", "string"]

TYPES = """
SELECT oid::int8, typbasetype::int8, typtypmod,
  CASE WHEN typinput = 'array_in'::regproc THEN typelem::int8 ELSE 0 END, typdelim::text
FROM pg_type WHERE typtype = 'd' OR typinput = 'array_in'::regproc
"""
KEYS = """
SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.n)
FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = {oid} AND k.n <= i.indnkeyatts AND (i.indisprimary OR i.indisreplident)
GROUP BY i.indexrelid
"""
COLUMNS = """
SELECT c.relreplident::text, c.relkind::text, greatest(c.reltuples, 0)::int8,
  a.attname::text, a.atttypid::int8, a.atttypmod
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = {oid} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
DROP_AGAIN_S = 0.1
MEMBERS = """
SELECT t.schemaname::text, t.tablename::text, c.oid::int8, coalesce((SELECT max(r.oid)::int8
    FROM pg_publication_rel r WHERE r.prpubid = p.oid
    AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))), 0)
FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = {publication}
"""
ENTRIES = """
SELECT n.nspname::text, c.relname::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = {publication}
"""
UNIDENTIFIED = """
SELECT t.schemaname::text, t.tablename::text FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = {publication} AND c.relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index i
    WHERE i.indrelid = c.oid
    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
"""


class Slot(NamedTuple):
    """A replication slot as the server shows it."""

    plugin: str
    database: str
    active: bool
    confirmed: int
    lost: bool


class PublishedTable(NamedTuple):
    """A table that is captured."""

    relation: Relation
    partitioned: bool
    rows: int
    """The planner's estimate of the number of rows."""


class Catalogue:
    """Queries over one connection; on the connection of a snapshot, the results are as of the snapshot."""

    def __init__(self, connection: Any, decimals: Decimals = "precise") -> None:
        self._connection = connection
        self._decimals = decimals
        self._types: Types | None = None

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query without parameters, as a replication connection requires."""
        return list(self._connection.execute(query).fetchall())

    def describe(self, relation: Relation) -> TableDescription:
        """The key of a table's topic, and the types of its columns."""
        oids = {column.oid for column in relation.columns}
        if self._types is None or any(oid >= 16_384 and oid not in self._types for oid in oids):
            self._types = Types((Type(*row) for row in self.rows(TYPES)), decimals=self._decimals)
        return TableDescription(self._key(relation), self._types)

    def _key(self, relation: Relation) -> tuple[str, ...]:
        """The columns that every change contains: the primary key, or those of another index as identity.

        The flags of the Relation message are as of the change, the catalogue is as of now, and only the
        catalogue has the order of the columns.
        """
        flagged = tuple(column.name for column in relation.columns if column.is_key)
        primary, identity = self._keys(relation.oid)
        if relation.identity == "d":
            return primary if set(primary) == set(flagged) else flagged
        if relation.identity == "i":
            if primary and set(primary) <= set(flagged):
                return primary
            return identity if set(identity) == set(flagged) else flagged
        names = {column.name for column in relation.columns}
        return primary if set(primary) <= names else ()

    def _keys(self, oid: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        keys = {bool(primary): tuple(names) for primary, names in self.rows(KEYS.format(oid=oid))}
        return keys.get(True, ()), keys.get(False, ())

    def published(self, publication: str) -> list[tuple[str, str]]:
        """The tables of a publication, by schema and name: partitions or their roots, as it was declared."""
        query = (
            "SELECT schemaname::text, tablename::text FROM pg_publication_tables"  # noqa: S608  quoted
            f" WHERE pubname = {string(publication)} ORDER BY 1, 2"
        )
        return [(schema, table) for schema, table in self.rows(query)]

    def entries(self, publication: str) -> set[tuple[str, str]]:
        """The tables that a publication names, by schema and name."""
        query = ENTRIES.format(publication=string(publication))
        return {(schema, name) for schema, name in self.rows(query)}

    def members(self, publication: str) -> dict[str, str]:
        """By full name, the ids of each published table and of its entry in the publication.

        They differ if the table was created again or left out in between.
        """
        query = MEMBERS.format(publication=string(publication))
        return {f"{schema}.{table}": f"{oid}/{entry}" for schema, table, oid, entry in self.rows(query)}

    def unidentified(self, publication: str) -> set[tuple[str, str]]:
        """The published tables without a replica identity: the server refuses updates and deletes of them."""
        query = UNIDENTIFIED.format(publication=string(publication))
        return {(schema, table) for schema, table in self.rows(query)}

    def type_name(self, oid: int, modifier: int) -> str:
        """A type as SQL writes it; ``???`` for a type that does not exist."""
        return str(self.rows(f"SELECT format_type({oid}, {modifier})")[0][0])

    def exists(self, schema: str, name: str) -> bool:
        """Whether the table exists."""
        return bool(self.rows(f"SELECT {regclass(schema, name)} IS NOT NULL")[0][0])

    def table(self, schema: str, name: str) -> PublishedTable:
        """A table as a Relation message would describe it now."""
        oid = self.rows(f"SELECT {regclass(schema, name)}::int8")[0][0]
        columns = self.rows(COLUMNS.format(oid=oid or 0))
        if not columns:
            raise CaptureError(f"table {schema}.{name} does not exist or has no columns")
        identity = columns[0][0]
        primary, index = self._keys(oid)
        keys = {"d": primary, "i": index}.get(identity, ())
        described = tuple(
            Column(column, kind, typmod, identity == "f" or column in keys)
            for _, _, _, column, kind, typmod in columns
        )
        return PublishedTable(
            Relation(oid, schema, name, identity, described), columns[0][1] == "p", columns[0][2]
        )

    def blocks(self, oid: int) -> int:
        """The number of blocks of a table."""
        rows = self.rows(f"SELECT pg_relation_size({oid}) / current_setting('block_size')::int8")
        return int(rows[0][0] or 0)

    def slot(self, name: str) -> Slot | None:
        """The slot, if it exists."""
        rows = self.rows(
            "SELECT plugin::text, database::text, active,"  # noqa: S608  quoted
            " coalesce(confirmed_flush_lsn, restart_lsn)::text,"
            " coalesce(wal_status = 'lost', false)"
            " OR (restart_lsn IS NULL AND confirmed_flush_lsn IS NOT NULL)"
            f" FROM pg_replication_slots WHERE slot_name = {string(name)}"
        )
        if not rows:
            return None
        plugin, database, active, confirmed, lost = rows[0]
        return Slot(plugin, database, active, parse_lsn(confirmed or "0/0"), lost)

    def drop_slot(self, name: str, wait_s: float) -> None:
        """Drops a slot, after ending its reader: a slot in use cannot be dropped."""
        limit = time.monotonic() + wait_s
        query = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = {string(name)}"  # noqa: S608  quoted
        while readers := self.rows(query):
            (pid,) = readers[0]
            if pid is None:
                with contextlib.suppress(psycopg.errors.ObjectInUse):  # a reader came in between
                    self.rows(f"SELECT pg_drop_replication_slot({string(name)})")
                continue
            if time.monotonic() > limit:
                raise CaptureError(
                    f"slot {name} is in use and cannot be dropped",
                    got=f"a reader, process {pid} of the server, that did not end in {wait_s:.0f} s",
                    hint="end the process that reads, then try again",
                )
            self._end_reader(pid)
            time.sleep(DROP_AGAIN_S)

    def _end_reader(self, pid: int) -> None:
        # The role may not end readers of other roles. The capture was also asked to end.
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self.rows(f"SELECT pg_terminate_backend({pid})")

    def end(self) -> int:
        """The end of the server's log."""
        return parse_lsn(self.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def retained_bytes(self, slot: str) -> int:
        """How much of its log the server retains for a slot."""
        rows = self.rows(
            "SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8"  # noqa: S608  quoted
            f" FROM pg_replication_slots WHERE slot_name = {string(slot)}"
        )
        return max(0, rows[0][0]) if rows else 0

    def check_server(self) -> None:
        """CaptureError if the server or the role cannot do logical replication."""
        level = self.rows("SHOW wal_level")[0][0]
        if level != "logical":
            raise CaptureError(
                "the server's log lacks what logical replication needs",
                got=f"wal_level = {level}",
                expected="logical",
                hint="ALTER SYSTEM SET wal_level = logical, then restart the server",
            )
        may, role = self.rows(
            "SELECT rolreplication OR rolsuper, rolname::text FROM pg_roles WHERE rolname = current_user"
        )[0]
        if not may:
            raise CaptureError(
                f"role {role} may not replicate", hint=f"ALTER ROLE {identifier(role)} REPLICATION"
            )

    def expand(self, tables: Sequence[str]) -> list[tuple[str, str]]:
        """Schema and name of declared tables, which may be ``schema.*`` or names without a schema."""
        expanded: dict[tuple[str, str], None] = {}
        for declared in tables:
            schema, _, name = declared.rpartition(".")
            schema = schema or "public"
            if name == "*":
                query = (
                    "SELECT relname::text FROM pg_class"  # noqa: S608  quoted
                    " WHERE relkind IN ('r', 'p') AND NOT relispartition"
                    f" AND relnamespace = to_regnamespace({string(identifier(schema))}) ORDER BY 1"
                )
                expanded |= {(schema, table): None for (table,) in self.rows(query)}
            else:
                expanded[schema, name] = None
        self._check_tables(expanded)
        return list(expanded)

    def _check_tables(self, tables: Iterable[tuple[str, str]]) -> None:
        for schema, name in tables:
            exists, may, role = self.rows(
                "SELECT t IS NOT NULL, coalesce(has_table_privilege(t, 'SELECT'), false)"  # noqa: S608  quoted
                f" AND has_schema_privilege({string(schema)}, 'USAGE'),"
                f" current_user::text FROM (SELECT {regclass(schema, name)} AS t) AS wanted"
            )[0]
            if not exists:
                raise CaptureError(f"table {schema}.{name} does not exist", hint="see tables= of the capture")
            if not may:
                raise CaptureError(
                    f"role {role} may not read table {schema}.{name}",
                    hint=f"GRANT USAGE ON SCHEMA {identifier(schema)} TO {identifier(role)};"
                    f" GRANT SELECT ON {identifier(schema)}.{identifier(name)} TO {identifier(role)}",
                )


def identifier(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def string(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def regclass(schema: str, name: str) -> str:
    """An SQL expression for a table's id; null if the table does not exist."""
    return f"to_regclass({string(f'{identifier(schema)}.{identifier(name)}')})"
