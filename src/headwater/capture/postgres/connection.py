"""Connections to PostgreSQL, and the translation of its errors into ours."""

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

from headwater.address import check_postgres
from headwater.errors import CaptureError, HeadwaterError, UnavailableError, UsageError, one_line

__all__ = ["Wire", "connect", "failures", "psycopg"]

try:
    import psycopg
    from psycopg.errors import error_from_result
except ImportError as missing:
    raise UsageError("PostgreSQL needs a library", hint="pip install headwater[postgres]") from missing

SESSION = (
    "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c lc_monetary=C -c bytea_output=hex"
    " -c standard_conforming_strings=on -c extra_float_digits=1 -c client_encoding=UTF8"
    " -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
CONNECT_S = 10
TEMPORARY = ("08", "40", "53", "57", "58")
"""Classes of SQLSTATE that may pass: lost connections, conflicts, a full server, a server that stops or
starts."""
IN_USE = "55006"
REFUSED = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "must be superuser or replication",
)
NEW_SNAPSHOT = "`headwater capture snapshot NAME app.py` takes a new snapshot"
STATUS = struct.Struct(">cQQQqB")
EPOCH_US = 946_684_800_000_000


def connect(url: str, *, replication: bool = False) -> Any:
    """A connection in autocommit mode, with the formats that ``values.py`` reads."""
    check_postgres("capture", url)
    options: dict[str, Any] = {"replication": "database"} if replication else {}
    return psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=CONNECT_S,
        options=SESSION,
        application_name="headwater",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        prepare_threshold=None,
        **options,
    )


@contextlib.contextmanager
def failures(what: str) -> Iterator[None]:
    """Translates errors of the library into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise _translated(what, error) from error


def _translated(what: str, error: Any) -> HeadwaterError:
    state = error.sqlstate or ""
    text = one_line(error)
    if state == "42501" or "permission denied" in text:
        return CaptureError(
            f"{what}: the role lacks a right", got=text, hint="docs/capture.md lists the rights"
        )
    if not state and any(refusal in text for refusal in REFUSED):
        return CaptureError(
            f"{what}: the server refuses the connection", got=text, hint="see the address of the capture"
        )
    if not state or (state[:2] in TEMPORARY and "has already been removed" not in text) or state == IN_USE:
        return UnavailableError(f"{what}: the database does not answer", got=text)
    if "can no longer get changes" in text or "has already been removed" in text:
        return CaptureError(
            f"{what}: the server no longer has the changes after the position",
            got=text,
            hint=f"{NEW_SNAPSHOT}; max_slot_wal_keep_size says how much the server keeps",
        )
    if state == "42704":
        return CaptureError(f"{what}: its publication or slot was dropped", got=text, hint=NEW_SNAPSHOT)
    return CaptureError(what, got=text)


class Wire:
    """A connection on the level of libpq, for the replication protocol and for COPY."""

    def __init__(self, url: str, *, replication: bool = True) -> None:
        self.connection = connect(url, replication=replication)
        self.pg = self.connection.pgconn

    def command(self, text: str) -> list[tuple[str, ...]]:
        """Runs a command and returns its rows as texts; a copy begins with no rows."""
        result = self.pg.exec_(text.encode())
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise error_from_result(result)
        return [
            tuple((result.get_value(row, column) or b"").decode() for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def finish_copy(self) -> None:
        """After the last row of a copy: raises the error that has ended it, if any."""
        while (result := self.pg.get_result()) is not None:
            if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
                raise error_from_result(result)

    def status(self, lsn: int, now_us: int, *, reply: bool) -> None:
        """Reports to the server the LSN up to which changes are durable in the log."""
        self.pg.put_copy_data(STATUS.pack(b"r", lsn, lsn, lsn, now_us - EPOCH_US, reply))
        self.pg.flush()

    def close(self) -> None:
        self.connection.close()
