"""What an application declares of a PostgreSQL database. Creating one opens nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headwater.capture.database import Declaration
from headwater.capture.outbox_router import OutboxRouter, check_outbox, outbox_router
from headwater.capture.source import Source
from headwater.errors import UsageError

if TYPE_CHECKING:
    from headwater.access import Log
    from headwater.capture.postgres.source import PostgresSource
    from headwater.capture.reread.audit import Report

__all__ = ["Postgres"]


SNAPSHOT_WORKERS_MAX = 8


class Postgres(Declaration, frozen=True):
    """PostgreSQL 15 or later. Tables are ``schema.table``, ``table`` in schema public, or ``schema.*``."""

    url: str
    tables: Sequence[str]
    partitions: int | None = None
    root: bool = False
    """Whether the topic of rows of partitioned tables is that of the whole table, or that of their
    partition."""
    decimals: Literal["precise", "string"] = "precise"
    """numeric and money as Debezium's bytes with a scale, or as text."""
    outbox: str | None = None
    """The table, one of `tables`, whose rows are events: they go to ``<name>.event.<aggregatetype>`` instead
    of a topic of the table."""
    alarm_bytes: int = 1 << 30
    """When the server retains this much of its log for the capture, there is a notification."""
    limit_bytes: int = 10 << 30
    """When it retains this much, the notification says what to do."""
    past_limit: Literal["tell", "stop"] = "tell"
    """Whether the capture then continues, or stops and drops its slot: the server's disk is safe, and the
    capture needs a new snapshot."""
    snapshot_workers: int = 2
    """How many connections read the rows of a snapshot, at most 8."""

    @property
    def kind(self) -> str:
        return "postgres"

    def check(self, name: str) -> None:
        what = f"capture {name!r}"
        if isinstance(self.tables, str) or not self.tables:
            raise UsageError(f"{what} names no tables", expected="tables=['public.orders', …]")
        if not self.url.startswith(("postgres://", "postgresql://")):
            raise UsageError(
                f"{what}: the address is not PostgreSQL's", expected="postgresql://user@host/database"
            )
        if self.decimals not in {"precise", "string"}:
            raise UsageError(
                f"{what}: decimals is wrong", got=repr(self.decimals), expected="'precise' or 'string'"
            )
        check_outbox(
            name, self.outbox and _full_name(self.outbox), [_full_name(table) for table in self.tables]
        )
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

    def outbox_router(self, name: str) -> OutboxRouter | None:
        return outbox_router(name, self.outbox and _full_name(self.outbox))

    def audit(self, name: str, log: "Log", table: str) -> "Report":
        """Whether a table and its topic are the same. See ``audit.py``."""
        from headwater.capture.postgres.audit import audit  # noqa: PLC0415  declaring loads no driver

        slot = self._source(name, None).slot
        return audit(name, self.url, _full_name(table), log, slot=slot, decimals=self.decimals)

    def restart_position(self) -> str:
        from headwater.capture.postgres.position import restart_position  # noqa: PLC0415  declaring loads no driver

        return restart_position()

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        return self._source(name, None).prepare(begun=begun)

    def remove(self, name: str) -> None:
        self._source(name, None).remove()

    def _source(self, name: str, folder: Path | None) -> "PostgresSource":
        from headwater.capture.postgres.source import PostgresSource  # noqa: PLC0415  declaring loads no driver

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


def _full_name(table: str) -> str:
    return table if "." in table else f"public.{table}"
