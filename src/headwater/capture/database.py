"""Declarations of databases: ``app.capture("shop", hw.capture.Postgres(url, tables=["public.orders"]))``."""

from pathlib import Path
from typing import Any, Protocol

import msgspec

from headwater.address import shown
from headwater.capture.outbox_router import OutboxRouter
from headwater.capture.source import Source

__all__ = ["Database", "Declaration"]


class Database(Protocol):
    """The declaration of a database. Creating one opens nothing."""

    @property
    def kind(self) -> str:
        """One word for messages: ``postgres``."""

    @property
    def partitions(self) -> int | None:
        """The number of partitions of new change topics; None for the number in the settings."""

    def check(self, name: str) -> None:
        """UsageError, before anything starts, if it cannot be captured as declared."""

    def open(self, name: str, folder: Path) -> Source:
        """The source of the capture ``name``, which may keep files in ``folder`` while it runs."""

    def outbox_router(self, name: str) -> OutboxRouter | None:
        """The router of the outbox among its tables; None without an outbox."""

    def restart_position(self) -> str:
        """The position of a capture that has published before and takes its snapshot again."""

    def prepare(self, name: str, *, begun: bool) -> list[str]:
        """Checks settings and rights, creates what the capture needs there, and returns lines for people.

        Idempotent. If the capture has `begun` and something is missing, changes were lost with it: nothing is
        created again, and CaptureError says what to do.
        """

    def remove(self, name: str) -> None:
        """Removes what the capture has created in the database, also while it runs. Idempotent."""


class Declaration(msgspec.Struct, frozen=True):
    """Base of declarations: their repr shows addresses without passwords."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, shown(value, user=True) if name == "url" else value) for name, value in fields]
