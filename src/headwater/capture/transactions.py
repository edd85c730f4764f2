"""Transactions: events of a binlog in, parts of a capture out. Whole transactions, in the order of their commits, without I/O.

A transaction that is larger than `PART_RECORDS` or `PART_BYTES` goes out in several parts, without a position before its end.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from headwater.capture import binlog
from headwater.capture.gtid import Gtids
from headwater.capture.source import Part, Record
from headwater.errors import CaptureError

__all__ = ["Changes", "Transactions"]

PART_RECORDS: Final = 5_000
PART_BYTES: Final = 4 << 20
COMMENT: Final = re.compile(r"\s*(/\*.*?\*/|--[^\n]*\n|#[^\n]*\n)\s*", re.DOTALL)
ROWS_AS_STATEMENT: Final = re.compile(r"(insert|update|delete|replace|load)\b", re.IGNORECASE)
SAVEPOINT: Final = re.compile(r"(savepoint|rollback\s+to(?:\s+savepoint)?)\s+(\S+)", re.IGNORECASE)


class Changes(Protocol):
    """What becomes of rows and statements."""

    def rows(self, rows: binlog.Rows, gtid: str, file: str) -> list[Record]:
        """The records of some rows."""

    def statement(self, query: binlog.Query, gtid: str, file: str) -> list[Record]:
        """The records of a statement that changes a schema, or empties a table."""


class Transactions:
    """Assembles one stream; `have` is the set of transactions that came before it, and grows with it."""

    def __init__(self, changes: Changes, have: Gtids, mentions: Callable[[str, str], bool]) -> None:
        self._changes = changes
        self._have = have
        self._mentions = mentions
        self._records: list[Record] = []
        self._bytes = 0
        self._whole = 0
        """How many of the records belong to committed transactions."""
        self._position: str | None = None
        self._cut = False
        """Whether some of the open transaction has gone out."""
        self._gtid: binlog.Gtid | None = None
        self._name = ""
        self._file = ""
        self._begun = False
        self._savepoints: dict[str, int] = {}
        self._truncated = False
        """Whether there may be a truncate among the records."""

    def add(self, event: binlog.Event | None) -> None:
        """Takes in the next event of the stream."""
        match event:
            case binlog.Rows():
                self._records += self._changes.rows(event, self._name, self._file)
                self._bytes += len(event.data)
            case binlog.Gtid():
                self._gtid, self._begun = event, False
                self._name = (
                    f"{event.domain}-{event.server}-{event.number}"
                    if event.server
                    else f"{event.domain}:{event.number}"
                )
            case binlog.Xid():
                self._commit()
            case binlog.Query():
                self._query(event)
            case binlog.Rotate():
                self._file = event.file
            case binlog.Prepared():
                if self._cut or len(self._records) > self._whole:
                    raise CaptureError(
                        f"transaction {self._name} is a prepared one (XA) with rows of a captured table, which is not supported",
                        hint="leave the table out of the capture, or write it without XA",
                    )
                self._commit()
            case binlog.Incident():
                raise CaptureError(
                    "the binlog says that it has a gap (an incident event)", hint="take a new snapshot"
                )
            case _:
                pass

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and not come to its end."""
        return self._gtid is not None

    @property
    def position(self) -> str:
        """Behind the last transaction."""
        return str(self._have)

    @property
    def file(self) -> str:
        """The file of the binlog that the last event stands in."""
        return self._file

    @property
    def full(self) -> bool:
        """Whether it is time for `parts`."""
        return len(self._records) >= PART_RECORDS or self._bytes >= PART_BYTES

    def parts(self) -> Iterator[Part]:
        """What is complete, and as much of an open transaction as fills a part."""
        if self._position is not None:
            part = Part(self._records[: self._whole], self._position, truncated=self._truncated)
            del self._records[: self._whole]
            self._whole, self._position = 0, None
            yield part
        if self.full and self._records:
            part = Part(self._records, None, truncated=self._truncated)
            self._records, self._cut = [], True
            yield part
        if not self._records:
            self._bytes, self._truncated = 0, False

    def _commit(self) -> None:
        if self._gtid is not None:
            self._have.add(self._gtid)
        self._gtid, self._begun, self._cut = None, False, False
        self._whole = len(self._records)
        self._position = str(self._have)
        self._savepoints.clear()

    def _query(self, query: binlog.Query) -> None:
        text = query.statement
        while comment := COMMENT.match(text):
            text = text[comment.end() :]
        word = text[:12].upper().rstrip("; \n")
        if word == "BEGIN":
            self._begun = True
        elif word == "COMMIT":
            self._commit()
        elif word == "ROLLBACK":
            self._forget(self._whole)
            self._commit()
        elif place := SAVEPOINT.match(text):
            if place[1].upper() == "SAVEPOINT":
                self._savepoints[place[2]] = -1 if self._cut else len(self._records)
            else:
                self._forget(self._savepoints.get(place[2], -1))
        else:
            self._other(query, text)

    def _other(self, query: binlog.Query, text: str) -> None:
        if ROWS_AS_STATEMENT.match(text) and self._mentions(query.schema, text):
            raise CaptureError(
                f"transaction {self._name} has changed a captured table by a statement, not by rows",
                got=" ".join(text.split())[:200],
                expected="binlog_format=ROW in every session",
                hint="take a new snapshot: what the statement did cannot be known",
            )
        emptied = self._changes.statement(query._replace(statement=text), self._name, self._file)
        self._records += emptied
        self._truncated = self._truncated or bool(emptied)
        if self._gtid is not None and (self._gtid.standalone or (not self._gtid.server and not self._begun)):
            self._commit()

    def _forget(self, count: int) -> None:
        """A server writes what it has rolled back only where an engine without transactions took part."""
        if self._cut or count < 0:
            raise CaptureError(
                f"transaction {self._name} rolls back rows that have gone out already",
                hint="do not mix engines with and without transactions in large transactions, and take a new snapshot",
            )
        del self._records[count:]
