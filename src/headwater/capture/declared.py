"""What an application declares of a database: ``app.capture("shop", hw.capture.Postgres(url, tables=["public.orders"]))``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from headwater.address import shown
from headwater.capture.outbox import Outbox, check_outbox, routed
from headwater.capture.source import Source
from headwater.errors import UsageError

if TYPE_CHECKING:
    from headwater.access import Log
    from headwater.capture.audit import Report
    from headwater.capture.postgres import PostgresSource

__all__ = ["Concealing", "Database", "Postgres"]

SNAPSHOT_WORKERS_MAX = 8


class Database(Protocol):
    """The declaration of a database. Making one opens nothing."""

    @property
    def kind(self) -> str:
        """One word for messages: ``postgres``."""

    @property
    def partitions(self) -> int | None:
        """How many partitions new change topics get; None: as the settings say."""

    def check(self, name: str) -> None:
        """UsageError, before anything starts, when it cannot be captured like this."""

    def open(self, name: str, folder: Path) -> Source:
        """The source of the capture ``name``, which may keep files in ``folder`` while it runs."""

    def routed(self, name: str) -> Outbox | None:
        """The outbox among its tables; None without one."""

    def anew(self) -> str:
        """The position of a capture that has published before and takes its snapshot again."""

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        """Checks settings and rights, and puts into the database what the capture needs there; says what it did. Idempotent.

        Of one that has `begun`, what is missing is not made again, since changes went with it: CaptureError, with the way out.
        """

    def remove(self, name: str) -> None:
        """Takes away what the capture has left in the database, also while it runs. Idempotent."""


class Concealing(msgspec.Struct, frozen=True):
    """A declaration that shows itself without the passwords of its addresses."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, shown(value, user=True) if name == "url" else value) for name, value in fields]


class Postgres(Concealing, frozen=True):
    """PostgreSQL 15 or later. Tables are ``schema.table``, ``table`` in schema public, or ``schema.*``."""

    url: str
    tables: Sequence[str]
    partitions: int | None = None
    root: bool = False
    """Whether rows of partitioned tables come under the name of the whole table; else under that of their partition."""
    decimals: Literal["precise", "string"] = "precise"
    """numeric and money as Debezium's bytes with a scale, or as text."""
    outbox: str | None = None
    """The table, one of `tables`, whose rows are events: they go to ``<name>.event.<aggregatetype>``, not to a topic of the table."""
    alarm_bytes: int = 1 << 30
    """When the server keeps that much of its log for the capture, that is told."""
    limit_bytes: int = 10 << 30
    """When it keeps that much, it is told what to do."""
    past_limit: Literal["tell", "stop"] = "tell"
    """Whether the capture then goes on, or stops and drops its slot: the server's disk is safe, and the capture must begin anew."""
    snapshot_workers: int = 2
    """How many connections read the rows of a snapshot, 8 at most."""

    @property
    def kind(self) -> str:
        return "postgres"

    def check(self, name: str) -> None:
        what = f"capture {name!r}"
        if isinstance(self.tables, str) or not self.tables:
            raise UsageError(f"{what} names no tables", expected="tables=['public.orders', …]")
        if not self.url.startswith(("postgres://", "postgresql://")):
            raise UsageError(
                f"{what}: the address is no PostgreSQL", expected="postgresql://user@host/database"
            )
        if self.decimals not in {"precise", "string"}:
            raise UsageError(
                f"{what}: decimals is wrong", got=repr(self.decimals), expected="'precise' or 'string'"
            )
        check_outbox(name, self.outbox and _whole(self.outbox), [_whole(table) for table in self.tables])
        if not 0 < self.alarm_bytes <= self.limit_bytes:
            raise UsageError(
                f"{what}: alarm_bytes is wrong",
                got=str(self.alarm_bytes),
                expected=f"1 to {self.limit_bytes} (limit_bytes)",
            )
        if self.past_limit not in {"tell", "stop"}:
            raise UsageError(
                f"{what}: past_limit is wrong", got=repr(self.past_limit), expected="'tell' or 'stop'"
            )
        if not 1 <= self.snapshot_workers <= SNAPSHOT_WORKERS_MAX:
            raise UsageError(
                f"{what}: snapshot_workers is wrong",
                got=str(self.snapshot_workers),
                expected=f"1 to {SNAPSHOT_WORKERS_MAX}",
            )
        if self.partitions is not None and self.partitions < 1:
            raise UsageError(f"{what}: partitions is wrong", got=str(self.partitions), expected="1 or more")

    def open(self, name: str, folder: Path) -> Source:
        return self._source(name, folder)

    def routed(self, name: str) -> Outbox | None:
        return routed(name, self.outbox and _whole(self.outbox))

    def audit(self, name: str, log: "Log", table: str) -> "Report":
        """Whether a table and its topic are the same. See ``capture/pgaudit.py``."""
        from headwater.capture.pgaudit import audit  # noqa: PLC0415  declaring loads no driver

        slot = self._source(name, None).slot
        return audit(name, self.url, _whole(table), log, slot=slot, decimals=self.decimals)

    def anew(self) -> str:
        from headwater.capture.pgplace import anew  # noqa: PLC0415  declaring loads no driver

        return anew()

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        return self._source(name, None).prepare(begun=begun)

    def remove(self, name: str) -> None:
        self._source(name, None).remove()

    def _source(self, name: str, folder: Path | None) -> "PostgresSource":
        from headwater.capture.postgres import PostgresSource  # noqa: PLC0415  declaring loads no driver

        return PostgresSource(
            name,
            self.url,
            tuple(self.tables),
            root=self.root,
            decimals=self.decimals,
            folder=folder,
            alarm_bytes=self.alarm_bytes,
            limit_bytes=self.limit_bytes,
            past_limit=self.past_limit,
            snapshot_workers=self.snapshot_workers,
        )


def _whole(table: str) -> str:
    return table if "." in table else f"public.{table}"
