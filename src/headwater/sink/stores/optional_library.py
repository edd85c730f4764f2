"""The libraries of stores, which an installation may lack."""

import importlib
from typing import Any

from headwater.errors import UsageError

__all__ = ["import_library"]


def import_library(module: str, extra: str) -> Any:
    """The library of a store. UsageError, with the command that installs it, if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        raise UsageError(
            f"this sink needs the package {name!r}", hint=f"pip install 'headwater[{extra}]'"
        ) from error
