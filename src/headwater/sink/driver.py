"""The libraries that stores need and an installation may lack, and addresses without their secrets."""

import importlib
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from headwater.errors import UsageError

__all__ = ["driver", "shown"]


def driver(module: str, extra: str) -> Any:
    """The library of a store; where it is missing, one line says how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        raise UsageError(
            f"this sink needs the package {name!r}", hint=f"pip install 'headwater[{extra}]'"
        ) from error


def shown(url: str) -> str:
    """An address as it may be printed: without user, password and query, where secrets stand."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
