"""Headwater: streams, views and live pages on durable logs.

    import headwater as hw

The names below are all that an application file needs. Each is loaded when it is first used: a broker needs none of them to start.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater import sketch
    from headwater.app import App
    from headwater.errors import (
        Behind,
        HeadwaterError,
        MachineError,
        Overloaded,
        ProtocolError,
        StorageError,
        UsageError,
    )
    from headwater.late import ARRIVAL, correct, drop, side
    from headwater.operators import (
        calendar,
        corrected_time,
        count,
        distinct,
        enrich,
        history,
        latest,
        match,
        sessions,
        sliding,
        unmatched,
        versions,
    )
    from headwater.position import Position
    from headwater.relations import (
        average_of,
        count_of,
        group,
        join,
        max_of,
        min_of,
        newest_of,
        sum_of,
        valid,
    )
    from headwater.schema import Event
    from headwater.write import Writer

__all__ = [
    "ARRIVAL",
    "App",
    "Behind",
    "Event",
    "HeadwaterError",
    "MachineError",
    "Overloaded",
    "Position",
    "ProtocolError",
    "StorageError",
    "UsageError",
    "Writer",
    "average_of",
    "calendar",
    "capture",
    "correct",
    "corrected_time",
    "count",
    "count_of",
    "distinct",
    "drop",
    "enrich",
    "group",
    "history",
    "join",
    "latest",
    "match",
    "max_of",
    "min_of",
    "newest_of",
    "sessions",
    "side",
    "sink",
    "sketch",
    "sliding",
    "sum_of",
    "unmatched",
    "valid",
    "versions",
]

_HOMES = {
    "ARRIVAL": "late",
    "App": "app",
    "Event": "schema",
    "Position": "position",
    "Writer": "write",
    "average_of": "relations",
    "calendar": "operators",
    "correct": "late",
    "corrected_time": "operators",
    "count": "operators",
    "count_of": "relations",
    "distinct": "operators",
    "drop": "late",
    "enrich": "operators",
    "group": "relations",
    "history": "operators",
    "join": "relations",
    "latest": "operators",
    "match": "operators",
    "max_of": "relations",
    "min_of": "relations",
    "newest_of": "relations",
    "sessions": "operators",
    "side": "late",
    "sliding": "operators",
    "sum_of": "relations",
    "unmatched": "operators",
    "valid": "relations",
    "versions": "operators",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    if name in {"capture", "sink", "sketch"}:
        return importlib.import_module(f"headwater.{name}")
    return getattr(importlib.import_module(f"headwater.{_HOMES.get(name, 'errors')}"), name)
