"""MariaDBSource: the tables of a MariaDB or MySQL server as change topics, from its row binlog by GTID."""

import re
import ssl
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Literal

from msgspec import structs

from headwater.capture.mariadb.address import Address
from headwater.capture.mariadb.binlog import values
from headwater.capture.mariadb.binlog.decoder import Decoder
from headwater.capture.mariadb.binlog.gtid import gtids
from headwater.capture.mariadb.binlog.replica import Replica
from headwater.capture.mariadb.binlog.transactions import Transactions
from headwater.capture.mariadb.filter import ChangeFilter
from headwater.capture.mariadb.incremental import Chunks
from headwater.capture.mariadb.lag import BinlogLag
from headwater.capture.mariadb.position import Place
from headwater.capture.mariadb.snapshot import Snapshot
from headwater.capture.mariadb.statement import names
from headwater.capture.mariadb.tables import Tables
from headwater.capture.messages import Command, Notice
from headwater.capture.reread.incremental import incremental_snapshot
from headwater.capture.reread.schema_versions import TableSchema, Versions
from headwater.capture.reread.table_states import TableEvent, TableState, TableStates
from headwater.capture.source import Part, Progress
from headwater.clock import SystemClock
from headwater.errors import CaptureError, UnavailableError, UsageError

__all__ = ["MariaDBSource"]

CONNECT_S: Final = 10
SESSION: Final = (
    "SET time_zone = '+00:00', sql_mode = '', sql_select_limit = 18446744073709551615, sql_big_selects = 1"
    " /*M!100101 , max_statement_time = 0 */"
)
"""Settings that a server may have changed for new sessions: padded texts, limited rows, limited query
time."""
PERMANENT: Final = {
    1044: "the user has no right to the database",
    1045: "the user or its password is refused",
    1049: "the database does not exist",
    1142: "the user may not read a table",
    1146: "a table does not exist",
    1227: "the user lacks a right",
    1236: "the server no longer has the binlog after the capture's position",
    1698: "the user or its password is refused",
    2026: "it does not encrypt connections, and ssl-mode requires that",
}
"""Errors that do not pass by trying again."""
RIGHTS: Final = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the user"
LOST: Final = (
    "take a new snapshot, and keep binlogs for longer than a capture may be stopped"
    " (binlog_expire_logs_seconds)"
)
HINTS: Final = {
    1236: LOST,
    1146: "create it, or leave it out",
    2026: "give the server a certificate (ssl_cert, ssl_key), or leave out ssl-mode",
}


class MariaDBSource:
    """The source of ``mysql://user:password@host:port?ssl-mode=…``; creating one opens nothing.

    Tables are named ``database.table``; ``*`` matches any part of a name. The server needs
    ``binlog_format=ROW``, ``binlog_row_image=FULL`` and ``binlog_row_metadata=FULL``, the user SELECT,
    REPLICATION SLAVE and REPLICATION CLIENT. MySQL also needs ``gtid_mode=ON``, and RELOAD for the snapshot;
    it is supported by the same code, which is tested on MariaDB. One thread calls.
    """

    def __init__(
        self,
        name: str,
        url: str,
        tables: Sequence[str],
        *,
        decimals: Literal["precise", "string"] = "precise",
    ) -> None:
        self._address = Address(url)
        if (
            isinstance(tables, str)
            or not tables
            or not all(re.fullmatch(r"[^.]+\.[^.]+", table) for table in tables)
        ):
            raise UsageError(
                "a MariaDB source needs the tables to capture",
                got=repr(list(tables)),
                expected="names like shop.orders",
            )
        if decimals not in {"precise", "string"}:
            raise UsageError(
                "decimals of a MariaDB source is wrong", got=decimals, expected="precise (base64) or string"
            )
        self._where = str(self._address)
        self.name = name
        self._patterns = tuple(tables)
        self._wanted = re.compile("|".join(re.escape(table).replace(r"\*", "[^.]*") for table in tables))
        self._decimal = values.number if decimals == "precise" else values.decimal
        self._connections: list[Any] = []
        self._versions = Versions(TableSchema)
        self._tables: Tables | None = None
        """Those of the current reading."""
        self._lag: BinlogLag | None = None
        self.notices: list[Notice] = []

    def recall(self, records: list[bytes]) -> None:
        """The values of ``<name>.schema``: versions that are published already."""
        self._versions.recall(records)

    def read(self, position: str | None) -> Iterator[Part]:
        """See `Source.read`."""
        self.close()
        with self._border():
            connection = self._connect()
            server = self._server(connection)
            mariadb = "MariaDB" in server["version"]
            tables = self._tables = self._open_tables(connection, server)
            place = yield from tables.snapshot(Place.parse(position))
            have = gtids(place.gtid, mariadb=mariadb)
            checksum = server["binlog_checksum"] != "NONE"
            replica = Replica(self._connect(), self._server_id())
            replica.start(have, checksum=checksum)
            self._lag = BinlogLag(self._connect(), SystemClock())
            decoder = Decoder(self._wants, checksum=checksum)
            since = {
                table: gtids(at, mariadb=mariadb)
                for table, at in (place.tables or {}).items()
                if not have.includes(at)
            }
            states = TableStates(place.tables or {}, place.stopped)
            changes = ChangeFilter(tables, since, states, self._versions, self.notices)
            changes.leave_out(tables.open_snapshot().versioned())
            chunks = Chunks(
                place.snapshots,
                self.notices,
                tables.open_snapshot,
                lambda table, snapshot: tables.context(table, snapshot, "incremental"),
            )
            transactions = Transactions(changes, have, self._mentions)
            for part in self._stream(replica.events(), decoder, transactions, chunks):
                if part.position is None:
                    yield part
                    continue
                for table in tables.streamed:
                    if states.of(table) is TableState.NEW:
                        states.change(table, TableEvent.SNAPSHOT_FINISHED)
                published = dict.fromkeys(states.stopped, "") | states.read
                place = Place(part.position, published, chunks.pending, states.stopped)
                yield part._replace(position=str(place))

    def prepare(self) -> list[str]:
        """Checks settings, rights and tables; nothing is created in the server."""
        with self._border():
            connection = self._connect()
            try:
                server = self._server(connection)
                tables = self._open_tables(connection, server).readable()
                # With another id than the capture's: the server would end the capture's connection.
                Replica(self._connect(), self._server_id() ^ 1).register()
            finally:
                self.close()
        version = f"the server at {self._where} ({server['version']})"
        return [
            f"{version} logs what a capture needs, and the user may read it",
            f"tables are there: {', '.join(tables)}",
        ]

    def _open_tables(self, connection: Any, server: Mapping[str, str]) -> Tables:
        return Tables(
            self.name,
            self._patterns,
            self._wants,
            connection,
            mariadb="MariaDB" in server["version"],
            server=server,
            decimal=self._decimal,
            versions=self._versions,
        )

    def _stream(
        self, batches: Iterator[list[bytes]], decoder: Decoder, transactions: Transactions, chunks: Chunks
    ) -> Iterator[Part]:
        """Parts of whole transactions, and of due chunks between them, with positions as GTID sets."""
        for events in batches:
            quiet = True
            for event in events:
                transactions.add(decoder.decode(event))
                due = (
                    bool(chunks.pending)
                    and not transactions.open
                    and chunks.advance(event, transactions.file)
                )
                if due or transactions.full:
                    yield from _parts(transactions, chunks)
                    quiet = False
                if due:
                    yield Part(chunks.emit(), transactions.position)
            if events and self._lag is not None:
                self._lag.passed(events[-1], transactions.file)
            for part in _parts(transactions, chunks):
                quiet = False
                yield part
            while not transactions.open and (before := chunks.pending):
                records = chunks.emit() if chunks.step() else []
                if chunks.pending == before:
                    break
                quiet = False
                yield Part(records, transactions.position)
            if quiet:
                yield Part([], None)

    def with_snapshot(self, position: str, command: Command) -> str:
        """See `SnapshotSource.with_snapshot`."""
        place = Place.parse(position)
        states = TableStates(place.tables or {}, place.stopped)
        if not command.incremental:
            states.change(command.table, TableEvent.SNAPSHOT)
            left = tuple(snapshot for snapshot in place.snapshots if snapshot.table != command.table)
            place = structs.replace(place, tables=states.read, snapshots=left, stopped=states.stopped)
            return str(place)
        states.change(command.table, TableEvent.INCREMENTAL)
        if ":" in place.gtid:
            raise CaptureError(
                "MySQL does not report the binlog position of a snapshot: no incremental snapshots",
                hint=f"`--table {command.table}` alone takes a new snapshot of it",
            )
        return str(structs.replace(place, snapshots=(*place.snapshots, incremental_snapshot(command))))

    @property
    def lag_bytes(self) -> int:
        """How much of the binlog is not read yet."""
        with self._border():
            return 0 if self._lag is None else self._lag.bytes()

    @property
    def progress(self) -> Progress | None:
        """How far a snapshot is."""
        return None if self._tables is None else self._tables.progress

    @contextmanager
    def open_snapshot(self) -> Iterator[tuple[Snapshot, int]]:
        """A snapshot on a connection of its own, not begun, and the id of the server."""
        with self._border(), ExitStack() as stack:
            stack.callback(self.close)
            connection = self._connect()
            server = self._server(connection)
            if "MariaDB" not in server["version"]:
                raise CaptureError(
                    "tables are compared with their topics on MariaDB only", got=server["version"]
                )
            snapshot = Snapshot(connection, self._wants, mariadb=True, decimal=self._decimal)
            yield snapshot, int(server["server_id"])

    def confirm(self, position: str) -> None:
        """Nothing to do: the server keeps its binlog by time."""

    def close(self) -> None:
        """See `Source.close`."""
        self._lag = None
        for connection in self._connections:
            connection._force_close()  # noqa: SLF001  a normal close waits for an answer that the stream never has
        self._connections.clear()

    def _wants(self, schema: str, table: str) -> bool:
        return self._wanted.fullmatch(f"{schema}.{table}") is not None

    def _mentions(self, schema: str, statement: str) -> bool:
        """Whether a statement may concern a captured table: one of its words is the table's name."""
        return any(self._wants(*name) for name in names(statement, schema))

    def _server_id(self) -> int:
        """The same id for every run of this capture: the server ends the connection of an earlier run."""
        return zlib.crc32(repr((self.name, self._patterns)).encode()) | 1 << 31

    def _connect(self) -> Any:
        try:
            import pymysql  # noqa: PLC0415  an optional dependency
        except ImportError:
            raise UsageError(
                "capturing from MariaDB needs PyMySQL, which is not installed",
                hint="pip install headwater[mariadb]",
            ) from None
        connection = pymysql.connect(
            **self._address.settings(),
            charset="utf8mb4",
            connect_timeout=CONNECT_S,
            read_timeout=None,
            autocommit=True,
            init_command=SESSION,
        )
        self._connections.append(connection)
        self._address.check_connected(connection)
        return connection

    def _server(self, connection: Any) -> Mapping[str, str]:
        """The server's settings; CaptureError if a capture needs another value."""
        cursor = connection.cursor()
        cursor.execute(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'log_bin', 'binlog_format',"
            " 'binlog_row_image', 'binlog_row_metadata', 'binlog_checksum', 'gtid_mode', 'server_id')"
        )
        settings: dict[str, str] = {name.lower(): value for name, value in cursor.fetchall()}
        needed = {
            "log_bin": "ON",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
        }
        if "MariaDB" not in settings["version"]:
            needed["gtid_mode"] = "ON"
        for name, value in needed.items():
            if settings.get(name, "OFF").upper() != value:
                hint = (
                    f"SET GLOBAL {name}={value}, also in its configuration; open sessions keep the old value"
                )
                if name == "log_bin":
                    hint = "start it with log_bin, server_id, binlog_format=ROW and binlog_row_metadata=FULL"
                raise CaptureError(
                    f"the server at {self._where} does not log what a capture needs",
                    got=f"{name}={settings.get(name, 'OFF')}",
                    expected=f"{name}={value}",
                    hint=hint,
                )
        return settings

    @contextmanager
    def _border(self) -> Iterator[None]:
        """Translates errors of PyMySQL and of sockets."""
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f"the database at {self._where} does not answer", got=str(error)
            ) from error
        except Exception as error:
            if type(error).__module__ != "pymysql.err":
                raise
            code, text = (*error.args, "", "")[:2]
            if isinstance(getattr(error, "original_exception", None), ssl.SSLCertVerificationError):
                raise CaptureError(
                    f"the database at {self._where}: its certificate is not trusted",
                    got=str(text),
                    hint="ssl-ca=FILE of the address names the authority that has signed it",
                ) from error
            if code in PERMANENT:
                hint = HINTS.get(code, RIGHTS)
                raise CaptureError(
                    f"the database at {self._where}: {PERMANENT[code]}", got=str(text), hint=hint
                ) from error
            raise UnavailableError(
                f"the database at {self._where} does not answer", got=str(text or error)
            ) from error


def _parts(transactions: Transactions, chunks: Chunks) -> Iterator[Part]:
    """The complete parts; their rows are removed from the waiting chunk."""
    for part in transactions.parts():
        chunks.drop(part.records)
        yield part
