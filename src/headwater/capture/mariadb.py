"""MariaDBSource: the tables of a MariaDB or MySQL server as change topics, from its row binlog by GTID."""

import re
import ssl
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Literal

from msgspec import structs

from headwater.capture import mysqlvalue
from headwater.capture.binlog import Decoder
from headwater.capture.chunks import chunked
from headwater.capture.control import Command, Notice
from headwater.capture.gtid import gtids
from headwater.capture.mariachunks import Chunks
from headwater.capture.mariacounted import Counted
from headwater.capture.marialag import Behind
from headwater.capture.mariaplace import Place
from headwater.capture.mariasnapshot import Snapshot
from headwater.capture.mariastatement import names
from headwater.capture.mariatables import Tables
from headwater.capture.mysqladdress import Address
from headwater.capture.replica import Replica
from headwater.capture.source import Part, Progress
from headwater.capture.transactions import Transactions
from headwater.capture.versions import Versions
from headwater.clock import SystemClock
from headwater.errors import Away, CaptureError, UsageError

__all__ = ["MariaDBSource"]

CONNECT_S: Final = 10
SESSION: Final = (
    "SET time_zone = '+00:00', sql_mode = '', sql_select_limit = 18446744073709551615, sql_big_selects = 1"
    " /*M!100101 , max_statement_time = 0 */"
)
"""What a server may have set otherwise for new sessions: texts would be padded, rows left out, long queries ended."""
NEVER: Final = {
    1044: "the user has no right to the database",
    1045: "the user or its password is refused",
    1049: "there is no such database",
    1142: "the user may not read a table",
    1146: "a table does not exist",
    1227: "the user lacks a right",
    1236: "the server cannot send what comes behind the capture's position",
    1698: "the user or its password is refused",
    2026: "it does not encrypt connections, and ssl-mode asks for that",
}
"""Errors that trying again does not mend."""
RIGHTS: Final = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the user"
LOST: Final = "take a new snapshot, and keep binlogs for longer than a capture may stand still (binlog_expire_logs_seconds)"

HINTS: Final = {
    1236: LOST,
    1146: "create it, or leave it out",
    2026: "give the server a certificate (ssl_cert, ssl_key), or leave out ssl-mode",
}


class MariaDBSource:
    """The source of ``mysql://user:password@host:port?ssl-mode=…``; making one opens nothing.

    Tables are named ``database.table``; ``*`` stands for any part of a name. Needs ``binlog_format=ROW``, ``binlog_row_image=FULL`` and
    ``binlog_row_metadata=FULL``, and a user with SELECT, REPLICATION SLAVE and REPLICATION CLIENT. On MySQL, which is served by the same
    code but is not what it is tested with, ``gtid_mode=ON`` and RELOAD for the snapshot. One thread calls.
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
                "decimals are written in one of two ways", got=decimals, expected="precise (base64) or string"
            )
        self._where = str(self._address)
        self.name = name
        self._patterns = tuple(tables)
        self._wanted = re.compile("|".join(re.escape(table).replace(r"\*", "[^.]*") for table in tables))
        self._decimal = mysqlvalue.number if decimals == "precise" else mysqlvalue.decimal
        self._connections: list[Any] = []
        self._versions = Versions()
        self._reading: Tables | None = None
        self._behind: Behind | None = None
        self.notices: list[Notice] = []

    def recall(self, records: list[bytes]) -> None:
        """The values of ``<name>.schema``: versions that are published already."""
        self._versions = Versions()
        for value in records:
            self._versions.recall(value)

    def read(self, position: str | None) -> Iterator[Part]:
        """See `Source.read`."""
        self.close()
        with self._border():
            connection = self._connect()
            server = self._server(connection)
            mariadb = "MariaDB" in server["version"]
            tables = self._known_tables(connection, server)
            self._reading = tables
            place = yield from tables.snapshot(Place.parse(position))
            have = gtids(place.gtid, mariadb=mariadb)
            checksum = server["binlog_checksum"] != "NONE"
            replica = Replica(self._connect(), self._server_id())
            replica.start(have, checksum=checksum)
            self._behind = Behind(self._connect(), SystemClock())
            decoder = Decoder(self._wants, checksum=checksum)
            since = {
                table: gtids(at, mariadb=mariadb)
                for table, at in (place.tables or {}).items()
                if not have.includes(at)
            }
            counted = Counted(tables, since, place.stopped, self._versions, self.notices)
            counted.leave_out(tables.looking().versioned())
            chunks = Chunks(
                place.snapshots,
                self.notices,
                tables.looking,
                lambda table, snapshot: tables.around(table, snapshot, "incremental"),
            )
            assembled = Transactions(counted, have, self._mentions)
            for part in self._stream(replica.events(), decoder, assembled, chunks):
                if part.position is None:
                    yield part
                    continue
                known = dict.fromkeys({*tables.born, *counted.stopped}, "") | (place.tables or {})
                place = Place(part.position, known, chunks.pending, counted.stopped)
                yield part._replace(position=str(place))

    def prepare(self) -> list[str]:
        """Checks settings, rights and tables; nothing is put into the server."""
        with self._border():
            connection = self._connect()
            try:
                server = self._server(connection)
                tables = self._known_tables(connection, server).readable()
                # Under another number than the capture's, whose connection the server would end.
                Replica(self._connect(), self._server_id() ^ 1).register()
            finally:
                self.close()
        return [
            f"the server at {self._where} ({server['version']}) logs what a capture needs, and the user may read it",
            f"tables are there: {', '.join(tables)}",
        ]

    def _known_tables(self, connection: Any, server: Mapping[str, str]) -> Tables:
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
        self, pieces: Iterator[list[bytes]], decoder: Decoder, assembled: Transactions, chunks: Chunks
    ) -> Iterator[Part]:
        """What the binlog has, transaction by transaction, and between them the chunks that were asked for; positions are those of the binlog."""
        for events in pieces:
            quiet = True
            for event in events:
                assembled.add(decoder.decode(event))
                due = bool(chunks.pending) and not assembled.open and chunks.come(event, assembled.file)
                if due or assembled.full:
                    yield from _passed(assembled, chunks)
                    quiet = False
                if due:
                    yield Part(chunks.emit(), assembled.position)
            if events and self._behind is not None:
                self._behind.passed(events[-1], assembled.file)
            for part in _passed(assembled, chunks):
                quiet = False
                yield part
            while not assembled.open and (before := chunks.pending):
                records = chunks.emit() if chunks.step() else []
                if chunks.pending == before:
                    break
                quiet = False
                yield Part(records, assembled.position)
            if quiet:
                yield Part([], None)

    def asked(self, position: str, command: Command) -> str:
        """A snapshot of one table: in chunks beside the stream, or anew with a truncate."""
        place = Place.parse(position)
        known = place.tables or {}
        if command.table not in known:
            raise CaptureError(
                f"table {command.table} is not captured",
                hint=f"there is {', '.join(sorted(known)) or 'none'}",
            )
        if not command.incremental:
            kept = {each: at for each, at in known.items() if each != command.table}
            left = tuple(each for each in place.snapshots if each.table != command.table)
            stopped = {each: why for each, why in place.stopped.items() if each != command.table}
            return str(structs.replace(place, tables=kept, snapshots=left, stopped=stopped))
        if command.table in place.stopped:
            raise CaptureError(
                f"table {command.table} is stopped",
                got=place.stopped[command.table],
                hint=f"`--table {command.table}` alone begins it anew",
            )
        if ":" in place.gtid:
            raise CaptureError(
                "MySQL does not say which place of its binlog a snapshot fits, as MariaDB does: rows cannot be read again beside the stream",
                hint=f"`--table {command.table}` alone begins it anew",
            )
        return str(structs.replace(place, snapshots=(*place.snapshots, chunked(command))))

    @property
    def lag_bytes(self) -> int:
        """How much of the binlog is not read yet."""
        with self._border():
            return 0 if self._behind is None else self._behind.bytes()

    @property
    def progress(self) -> Progress | None:
        """How far a snapshot is."""
        return None if self._reading is None else self._reading.progress

    @contextmanager
    def looking(self) -> Iterator[tuple[Snapshot, int]]:
        """A snapshot on a connection of its own, not begun, and the number of the server."""
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
        """The binlog is kept by time, not by who has read it: nothing to tell the server."""

    def close(self) -> None:
        """See `Source.close`."""
        self._behind = None
        for connection in self._connections:
            connection._force_close()  # noqa: SLF001  the one that streams would wait for an answer that never comes
        self._connections.clear()

    def _wants(self, schema: str, table: str) -> bool:
        return self._wanted.fullmatch(f"{schema}.{table}") is not None

    def _mentions(self, schema: str, statement: str) -> bool:
        """Whether a statement may be about a captured table: a word of it is the name of one."""
        return any(self._wants(*name) for name in names(statement, schema))

    def _server_id(self) -> int:
        """The same for every run of this capture: the server ends a connection that another has taken over."""
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
        """The server's settings; CaptureError for one that a capture cannot do with."""
        cursor = connection.cursor()
        cursor.execute(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'log_bin', 'binlog_format', 'binlog_row_image',"
            " 'binlog_row_metadata', 'binlog_checksum', 'gtid_mode', 'server_id')"
        )
        found: dict[str, str] = {name.lower(): value for name, value in cursor.fetchall()}
        needed = {
            "log_bin": "ON",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "binlog_row_metadata": "FULL",
        }
        if "MariaDB" not in found["version"]:
            needed["gtid_mode"] = "ON"
        for name, value in needed.items():
            if found.get(name, "OFF").upper() != value:
                hint = f"SET GLOBAL {name}={value}, also in its configuration; sessions that are open keep theirs"
                if name == "log_bin":
                    hint = "start it with log_bin, server_id, binlog_format=ROW and binlog_row_metadata=FULL"
                raise CaptureError(
                    f"the server at {self._where} does not log what a capture needs",
                    got=f"{name}={found.get(name, 'OFF')}",
                    expected=f"{name}={value}",
                    hint=hint,
                )
        return found

    @contextmanager
    def _border(self) -> Iterator[None]:
        """Errors of PyMySQL and of sockets as ours."""
        try:
            yield
        except OSError as error:
            raise Away(f"the database at {self._where} does not answer", got=str(error)) from error
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
            if code in NEVER:
                hint = HINTS.get(code, RIGHTS)
                raise CaptureError(
                    f"the database at {self._where}: {NEVER[code]}", got=str(text), hint=hint
                ) from error
            raise Away(f"the database at {self._where} does not answer", got=str(text or error)) from error


def _passed(assembled: Transactions, chunks: Chunks) -> Iterator[Part]:
    """What is complete; a chunk that waits gives up what the stream brings."""
    for part in assembled.parts():
        chunks.drop(part.records)
        yield part
