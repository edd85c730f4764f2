"""Catalogue: what a PostgreSQL server says of itself, its tables and their keys, and what a capture needs of it."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headwater.capture.pgchanges import Described
from headwater.capture.pgconnect import psycopg
from headwater.capture.pgoutput import Column, Relation, parse_lsn
from headwater.capture.pgtypes import Decimals, Type, Types
from headwater.errors import CaptureError

__all__ = ["Catalogue", "Published", "Slot", "identifier", "string"]

TYPES = """
SELECT oid::int8, typbasetype::int8, typtypmod, CASE WHEN typinput = 'array_in'::regproc THEN typelem::int8 ELSE 0 END,
  typdelim::text
FROM pg_type WHERE typtype = 'd' OR typinput = 'array_in'::regproc
"""
KEYS = """
SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.n)
FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, n)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = {oid} AND k.n <= i.indnkeyatts AND (i.indisprimary OR i.indisreplident) GROUP BY i.indexrelid
"""
COLUMNS = """
SELECT c.relreplident::text, c.relkind::text, greatest(c.reltuples, 0)::int8, a.attname::text, a.atttypid::int8, a.atttypmod
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = {oid} AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum
"""
DROP_AGAIN_S = 0.1
MEMBERS = """
SELECT t.schemaname::text, t.tablename::text, c.oid::int8, coalesce((SELECT max(r.oid)::int8 FROM pg_publication_rel r
    WHERE r.prpubid = p.oid AND (r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid)))), 0)
FROM pg_publication_tables t JOIN pg_publication p ON p.pubname = t.pubname
JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = {publication}
"""
UNIDENTIFIED = """
SELECT t.schemaname::text, t.tablename::text FROM pg_publication_tables t
JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
WHERE t.pubname = {publication} AND c.relreplident <> 'f' AND NOT EXISTS (SELECT FROM pg_index i
    WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END)
"""


class Slot(NamedTuple):
    """A replication slot as the server shows it."""

    plugin: str
    database: str
    active: bool
    confirmed: int
    lost: bool


class Published(NamedTuple):
    """A table that is captured."""

    relation: Relation
    partitioned: bool
    rows: int
    """About how many it has, as the planner believes."""


class Catalogue:
    """Questions over one connection, which may be that of a snapshot: it then answers as of the snapshot."""

    def __init__(self, connection: Any, decimals: Decimals = "precise") -> None:
        self._connection = connection
        self._decimals = decimals
        self._types: Types | None = None

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query without parameters: a replication connection takes no others."""
        return list(self._connection.execute(query).fetchall())

    def describe(self, relation: Relation) -> Described:
        """The key of a table's topic, and the types of its columns."""
        wanted = {column.oid for column in relation.columns}
        if self._types is None or any(oid >= 16_384 and oid not in self._types for oid in wanted):
            self._types = Types((Type(*row) for row in self.rows(TYPES)), decimals=self._decimals)
        return Described(self._key(relation), self._types)

    def _key(self, relation: Relation) -> tuple[str, ...]:
        """The columns whose values every change tells: the primary key, unless the replica identity is an index without it.

        The flags of the Relation message are as of the change, the catalogue is as of now, and only the catalogue knows the order.
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
        found = {bool(primary): tuple(names) for primary, names in self.rows(KEYS.format(oid=oid))}
        return found.get(True, ()), found.get(False, ())

    def published(self, publication: str) -> list[tuple[str, str]]:
        """The tables of a publication, by schema and name: partitions, or their roots, as it was made."""
        query = "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = {} ORDER BY 1, 2"
        return [(schema, table) for schema, table in self.rows(query.format(string(publication)))]

    def members(self, publication: str) -> dict[str, str]:
        """By whole name, which table is published and by which entry: another text where it was dropped or left out in between."""
        query = MEMBERS.format(publication=string(publication))
        return {f"{schema}.{table}": f"{oid}/{entry}" for schema, table, oid, entry in self.rows(query)}

    def unidentified(self, publication: str) -> set[tuple[str, str]]:
        """The tables of a publication whose rows the server cannot tell apart: it refuses to update and delete them."""
        query = UNIDENTIFIED.format(publication=string(publication))
        return {(schema, table) for schema, table in self.rows(query)}

    def type_name(self, oid: int, modifier: int) -> str:
        """A type as SQL writes it; ``???`` for one that is gone."""
        return str(self.rows(f"SELECT format_type({oid}, {modifier})")[0][0])

    def exists(self, schema: str, name: str) -> bool:
        """Whether there is a table of that name."""
        return bool(self.rows(f"SELECT {regclass(schema, name)} IS NOT NULL")[0][0])

    def table(self, schema: str, name: str) -> Published:
        """A table as a Relation message would describe it now."""
        found = self.rows(f"SELECT {regclass(schema, name)}::int8")
        oid = found[0][0]
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
        return Published(
            Relation(oid, schema, name, identity, described), columns[0][1] == "p", columns[0][2]
        )

    def blocks(self, oid: int) -> int:
        """How many blocks a table has now."""
        found = self.rows(f"SELECT pg_relation_size({oid}) / current_setting('block_size')::int8")
        return int(found[0][0] or 0)

    def slot(self, name: str) -> Slot | None:
        """The slot, if there is one."""
        found = self.rows(
            "SELECT plugin::text, database::text, active, coalesce(confirmed_flush_lsn, restart_lsn)::text,"  # noqa: S608  quoted
            " coalesce(wal_status = 'lost', false) OR (restart_lsn IS NULL AND confirmed_flush_lsn IS NOT NULL)"
            f" FROM pg_replication_slots WHERE slot_name = {string(name)}"
        )
        if not found:
            return None
        plugin, database, active, confirmed, lost = found[0]
        return Slot(plugin, database, active, parse_lsn(confirmed or "0/0"), lost)

    def drop_slot(self, name: str, wait_s: float) -> None:
        """Drops a slot; who reads from it is ended first, since one that is in use cannot be dropped."""
        limit = time.monotonic() + wait_s
        while found := self.rows(
            f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = {string(name)}"  # noqa: S608  quoted
        ):
            (pid,) = found[0]
            if pid is None:
                with contextlib.suppress(psycopg.errors.ObjectInUse):  # somebody came in between
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
        # A reader of another role is not ours to end; the capture itself was asked to end too.
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self.rows(f"SELECT pg_terminate_backend({pid})")

    def end(self) -> int:
        """Where the server's log ends now."""
        return parse_lsn(self.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def retained_bytes(self, slot: str) -> int:
        """How much of the log the server keeps for a slot."""
        found = self.rows(
            "SELECT coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8"  # noqa: S608  quoted
            f" FROM pg_replication_slots WHERE slot_name = {string(slot)}"
        )
        return max(0, found[0][0]) if found else 0

    def check_server(self) -> None:
        """Whether the server and the role can do logical replication at all."""
        level = self.rows("SHOW wal_level")[0][0]
        if level != "logical":
            raise CaptureError(
                "the server writes too little into its log",
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
        """Names as given, ``schema.*`` and names without a schema included."""
        found: dict[tuple[str, str], None] = {}
        for given in tables:
            schema, _, name = given.rpartition(".")
            schema = schema or "public"
            if name == "*":
                query = (
                    "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"  # noqa: S608  quoted
                    f" AND relnamespace = to_regnamespace({string(identifier(schema))}) ORDER BY 1"
                )
                found |= {(schema, each): None for (each,) in self.rows(query)}
            else:
                found[schema, name] = None
        self._check_tables(found)
        return list(found)

    def _check_tables(self, tables: Iterable[tuple[str, str]]) -> None:
        role = None
        for schema, name in tables:
            there, may, role = self.rows(
                f"SELECT t IS NOT NULL, coalesce(has_table_privilege(t, 'SELECT'), false) AND has_schema_privilege({string(schema)}, 'USAGE'),"  # noqa: S608  quoted
                f" current_user::text FROM (SELECT {regclass(schema, name)} AS t) AS found"
            )[0]
            if not there:
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
    """An expression for a table, which is null if there is none."""
    return f"to_regclass({string(f'{identifier(schema)}.{identifier(name)}')})"
