"""Headwater: streams, views and live pages on durable logs.

    import headwater as hw

The names below are all that an application file needs. Each is loaded when it is first used: a broker needs none of them to start.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.app import App
    from headwater.errors import Behind, HeadwaterError, MachineError, ProtocolError, StorageError, UsageError
    from headwater.late import correct, drop, side
    from headwater.operators import corrected_time, count, latest
    from headwater.position import Position
    from headwater.schema import Event
    from headwater.write import Writer

__all__ = [
    "App",
    "Behind",
    "Event",
    "HeadwaterError",
    "MachineError",
    "Position",
    "ProtocolError",
    "StorageError",
    "UsageError",
    "Writer",
    "correct",
    "corrected_time",
    "count",
    "drop",
    "latest",
    "side",
]

_HOMES = {
    "App": "app",
    "Event": "schema",
    "Position": "position",
    "Writer": "write",
    "correct": "late",
    "corrected_time": "operators",
    "count": "operators",
    "drop": "late",
    "latest": "operators",
    "side": "late",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headwater.{_HOMES.get(name, 'errors')}"), name)
