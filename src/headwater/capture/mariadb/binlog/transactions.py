"""Transactions: from the events of a binlog to parts with whole transactions in commit order, without I/O.

A transaction larger than `PART_RECORDS` or `PART_BYTES` becomes several parts; only the last one has a
position.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from headwater.capture.mariadb.binlog import events
from headwater.capture.mariadb.binlog.gtid import Gtids
from headwater.capture.source import Part, Record
from headwater.errors import CaptureError

__all__ = ["Changes", "Transactions"]

PART_RECORDS: Final = 5_000
PART_BYTES: Final = 4 << 20
COMMENT: Final = re.compile(r"\s*(/\*.*?\*/|--[^\n]*\n|#[^\n]*\n)\s*", re.DOTALL)
ROWS_AS_STATEMENT: Final = re.compile(r"(insert|update|delete|replace|load)\b", re.IGNORECASE)
SAVEPOINT: Final = re.compile(r"(savepoint|rollback\s+to(?:\s+savepoint)?)\s+(\S+)", re.IGNORECASE)


class Changes(Protocol):
    """Converts rows and statements to records."""

    def rows(self, rows: events.Rows, gtid: str, file: str) -> list[Record]:
        """The records of some rows."""

    def statement(self, query: events.Query, gtid: str, file: str) -> list[Record]:
        """The records of a statement that changes a schema or empties a table."""


class Transactions:
    """Assembles the transactions of one stream.

    `have` is the set of transactions before it, to which each transaction is added. `mentions` says whether a
    statement names a captured table.
    """

    def __init__(self, changes: Changes, have: Gtids, mentions: Callable[[str, str], bool]) -> None:
        self._changes = changes
        self._have = have
        self._mentions = mentions
        self._records: list[Record] = []
        self._bytes = 0
        self._committed = 0
        """How many of the records belong to committed transactions."""
        self._position: str | None = None
        self._divided = False
        """Whether a part with records of the open transaction was returned."""
        self._gtid: events.Gtid | None = None
        self._name = ""
        self._file = ""
        self._begun = False
        self._savepoints: dict[str, int] = {}
        self._truncated = False
        """Whether the records may contain a truncate."""

    def add(self, event: events.Event | None) -> None:
        """Adds the next event of the stream."""
        match event:
            case events.Rows():
                self._records += self._changes.rows(event, self._name, self._file)
                self._bytes += len(event.data)
            case events.Gtid():
                self._gtid, self._begun = event, False
                self._name = (
                    f"{event.domain}-{event.server}-{event.number}"
                    if event.server
                    else f"{event.domain}:{event.number}"
                )
            case events.Xid():
                self._commit()
            case events.Query():
                self._query(event)
            case events.Rotate():
                self._file = event.file
            case events.Prepared():
                if self._divided or len(self._records) > self._committed:
                    raise CaptureError(
                        f"transaction {self._name} is prepared (XA) and changes captured rows: not supported",
                        hint="leave the table out of the capture, or write it without XA",
                    )
                self._commit()
            case events.Incident():
                raise CaptureError("the binlog reports a gap (an incident event)", hint="take a new snapshot")
            case _:
                pass

    @property
    def open(self) -> bool:
        """Whether a transaction has begun and not ended."""
        return self._gtid is not None

    @property
    def position(self) -> str:
        """The position after the last transaction."""
        return str(self._have)

    @property
    def file(self) -> str:
        """The binlog file of the last event."""
        return self._file

    @property
    def full(self) -> bool:
        """Whether `parts` is due."""
        return len(self._records) >= PART_RECORDS or self._bytes >= PART_BYTES

    def parts(self) -> Iterator[Part]:
        """The committed transactions, and then the open one if it fills a part."""
        if self._position is not None:
            part = Part(self._records[: self._committed], self._position, truncated=self._truncated)
            del self._records[: self._committed]
            self._committed, self._position = 0, None
            yield part
        if self.full and self._records:
            part = Part(self._records, None, truncated=self._truncated)
            self._records, self._divided = [], True
            yield part
        if not self._records:
            self._bytes, self._truncated = 0, False

    def _commit(self) -> None:
        if self._gtid is not None:
            self._have.add(self._gtid)
        self._gtid, self._begun, self._divided = None, False, False
        self._committed = len(self._records)
        self._position = str(self._have)
        self._savepoints.clear()

    def _query(self, query: events.Query) -> None:
        text = query.statement
        while comment := COMMENT.match(text):
            text = text[comment.end() :]
        word = text[:12].upper().rstrip("; \n")
        if word == "BEGIN":
            self._begun = True
        elif word == "COMMIT":
            self._commit()
        elif word == "ROLLBACK":
            self._roll_back(self._committed)
            self._commit()
        elif savepoint := SAVEPOINT.match(text):
            if savepoint[1].upper() == "SAVEPOINT":
                self._savepoints[savepoint[2]] = -1 if self._divided else len(self._records)
            else:
                self._roll_back(self._savepoints.get(savepoint[2], -1))
        else:
            self._statement(query, text)

    def _statement(self, query: events.Query, text: str) -> None:
        if ROWS_AS_STATEMENT.match(text) and self._mentions(query.schema, text):
            raise CaptureError(
                f"transaction {self._name} has changed a captured table by a statement, not by rows",
                got=" ".join(text.split())[:200],
                expected="binlog_format=ROW in every session",
                hint="take a new snapshot: the effect of the statement is unknown",
            )
        truncates = self._changes.statement(query._replace(statement=text), self._name, self._file)
        self._records += truncates
        self._truncated = self._truncated or bool(truncates)
        if self._gtid is not None and (self._gtid.standalone or (not self._gtid.server and not self._begun)):
            self._commit()

    def _roll_back(self, count: int) -> None:
        """Keeps the first records only.

        A rollback is in the binlog if an engine without transactions took part.
        """
        if self._divided or count < 0:
            raise CaptureError(
                f"transaction {self._name} rolls back rows that were already published",
                hint="use no engine without transactions in large transactions, and take a new snapshot",
            )
        del self._records[count:]
