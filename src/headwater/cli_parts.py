"""What the commands of several modules share: arguments, and how examples are shown."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["AppFile", "Bootstrap", "examples"]

AppFile = Annotated[Path, typer.Argument(metavar="APP.PY", help="The application file.", show_default=False)]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="HOST:PORT",
        help="The log; kafkas://HOST:PORT over TLS.  [default: that of the settings]",
        show_default=False,
    ),
]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "Examples:\n\n" + "\n\n".join(f"  [cyan]{line}[/cyan]" for line in lines)
