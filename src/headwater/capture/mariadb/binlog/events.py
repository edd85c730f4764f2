"""The events of a binlog, as values.

``decoder.py`` reads them from bytes; ``row_reader.py`` reads the rows of `Rows`.
"""

from typing import NamedTuple

from headwater.capture.mariadb.binlog.column_types import BINARY_COLLATION

__all__ = [
    "Annotate",
    "Column",
    "Event",
    "Format",
    "Gtid",
    "GtidList",
    "Heartbeat",
    "Incident",
    "Prepared",
    "Query",
    "Rotate",
    "Rows",
    "TableMap",
    "Xid",
]


class Column(NamedTuple):
    """One column, as described by a table map."""

    name: str
    kind: int
    """The number of its type (`column_types`); for an enum or set the real one, which the map encodes as a
    string."""
    size: int
    """Maximum length in bytes, precision, bits, bytes of an enum, or fractional digits, depending on the
    kind."""
    scale: int = 0
    nullable: bool = True
    unsigned: bool = False
    collation: int = BINARY_COLLATION
    labels: tuple[bytes, ...] = ()
    """The values of an enum or set, in its character set."""


class Format(NamedTuple):
    """The first event of a binlog file: the version of the server, and whether events carry checksums."""

    server: str
    checksum: bool


class Gtid(NamedTuple):
    """A transaction begins. Standalone: a single statement without a separate commit event."""

    domain: int | str
    """MariaDB's replication domain; MySQL's server UUID."""
    server: int
    number: int
    standalone: bool
    prepared: bool = False
    """Whether it ends with XA PREPARE; another transaction then commits it or rolls it back."""


class GtidList(NamedTuple):
    """MariaDB: the newest transaction of each domain and server in all files before this one."""

    gtids: tuple[tuple[int, int, int], ...]


class TableMap(NamedTuple):
    """The table to which the following row events belong."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]


class Rows(NamedTuple):
    """Rows of one table: ``c`` created, ``u`` updated (each before, then after), ``d`` deleted."""

    op: str
    table: TableMap
    data: bytes
    start: int
    """Where in the data the first row begins."""
    timestamp: int
    end: int
    """The position in its file after this event."""


class Query(NamedTuple):
    """A statement: every schema change, and BEGIN and COMMIT of engines without transactions."""

    schema: str
    statement: str
    timestamp: int
    end: int = 0
    """The position in its file after this event."""


class Xid(NamedTuple):
    """A transaction has committed."""

    timestamp: int


class Rotate(NamedTuple):
    """The binlog continues in another file."""

    file: str
    position: int


class Heartbeat(NamedTuple):
    """The server is idle."""


class Prepared(NamedTuple):
    """XA PREPARE: the rows of the transaction are not committed yet."""


class Incident(NamedTuple):
    """The server reports a gap in its binlog."""


class Annotate(NamedTuple):
    """MariaDB: the statement that caused the following row events."""

    statement: str


Event = (
    Format
    | Gtid
    | GtidList
    | TableMap
    | Rows
    | Query
    | Xid
    | Rotate
    | Heartbeat
    | Prepared
    | Incident
    | Annotate
)
