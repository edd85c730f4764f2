"""Headwater: streams, views and live pages on durable logs.

    import headwater as hw

The names below are all that an application file needs. Each is loaded when it is first used: a broker needs none of them to start.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.errors import HeadwaterError, MachineError, ProtocolError, StorageError, UsageError
    from headwater.late import correct, drop, side
    from headwater.operators import count, latest
    from headwater.schema import Event

__all__ = [
    "App",
    "Event",
    "HeadwaterError",
    "MachineError",
    "ProtocolError",
    "StorageError",
    "UsageError",
    "correct",
    "count",
    "drop",
    "latest",
    "side",
]

_HOMES = {
    "App": "app",
    "Event": "schema",
    "correct": "late",
    "count": "operators",
    "drop": "late",
    "latest": "operators",
    "side": "late",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headwater.{_HOMES.get(name, 'errors')}"), name)
