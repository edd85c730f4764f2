"""The libraries that stores need and an installation may lack."""

import importlib
from typing import Any

from headwater.errors import UsageError

__all__ = ["driver"]


def driver(module: str, extra: str) -> Any:
    """The library of a store; where it is missing, one line says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        raise UsageError(
            f"this sink needs the package {name!r}", hint=f"pip install 'headwater[{extra}]'"
        ) from error
