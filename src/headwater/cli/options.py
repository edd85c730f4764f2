"""Arguments and options of several commands, the log that ``--log`` selects, and the form of examples."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headwater.config import Settings, load
from headwater.errors import UsageError

__all__ = ["AppFile", "LogAddress", "examples", "print_rows", "print_table", "settings_for"]

PIPE_WIDTH = 10_000

AppFile = Annotated[Path, typer.Argument(metavar="APP.PY", help="The application file.", show_default=False)]
LogAddress = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="HOST:PORT",
        help="Another log than that of the settings; kafka://HOST:PORT or kafkas://HOST:PORT also sets TLS.",
        show_default=False,
    ),
]


def settings_for(log: str | None) -> Settings:
    """The settings with the log that ``--log`` names.

    An address alone is reached as the log of the settings is, with its TLS, user and options. A URL sets TLS
    itself.
    """
    import msgspec

    if log is None or "://" in log:
        return load(log=log)
    settings = load()
    addresses = [address.rpartition(":") for address in log.split(",")]
    if not all(host and port.isdecimal() for host, _, port in addresses):
        raise UsageError("--log is wrong", got=repr(log), expected="HOST:PORT, or kafka://HOST:PORT")
    if settings.embedded is not None and len(addresses) == 1:
        ((host, _, port),) = addresses
        return msgspec.structs.replace(settings, host=host, broker_port=int(port))
    access = settings.access
    return msgspec.structs.replace(
        settings,
        log=f"{'kafkas' if access.tls else 'kafka'}://{log}",
        log_user=access.user,
        log_password=access.password,
        log_ca=access.ca,
    )


def print_table(table: Table) -> None:
    """Prints a table. Only a terminal has a width: in a pipe no name is broken."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    Console(width=PIPE_WIDTH if piped else None).print(table, soft_wrap=False)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: int = 1) -> None:
    """Prints a table whose columns from ``right`` on are numbers; what is not known is a dash."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i >= right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    print_table(table)


def _cell(content: object) -> str:
    if content is None:
        return "-"
    return escape(f"{content:,}" if isinstance(content, int) else str(content))


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "Examples:\n\n" + "\n\n".join(f"  [cyan]{line}[/cyan]" for line in lines)
