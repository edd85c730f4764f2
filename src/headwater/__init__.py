"""Headwater: streams, views and live pages on durable logs.

    import headwater as hw

The names below are all that an application file needs. Each is loaded when it is first used: a broker needs
none of them to start.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.declare import lateness as late
    from headwater.declare import sketch
    from headwater.declare.app import App
    from headwater.declare.backoff import backoff
    from headwater.declare.field_types import AnyFloat, Decimal
    from headwater.declare.lateness import ARRIVAL
    from headwater.declare.operators import (
        calendar,
        corrected_time,
        count,
        distinct,
        enrich,
        group,
        history,
        join,
        latest,
        match,
        newest_of,
        sessions,
        sliding,
        unmatched,
        valid,
        versions,
    )
    from headwater.declare.schema import Event, Row
    from headwater.declare.table import Table
    from headwater.errors import (
        CaptureError,
        FencedError,
        HeadwaterError,
        MachineError,
        NoReplyError,
        NotReachedError,
        OverloadedError,
        ProtocolError,
        RejectError,
        RequestError,
        RetryError,
        StorageError,
        UnavailableError,
        UsageError,
    )
    from headwater.follow.follower import Follower, wait
    from headwater.position import Position
    from headwater.worker.work import Work
    from headwater.write.requester import Requester
    from headwater.write.writer import Writer

__all__ = [
    "ARRIVAL",
    "AnyFloat",
    "App",
    "CaptureError",
    "Decimal",
    "Event",
    "FencedError",
    "Follower",
    "HeadwaterError",
    "MachineError",
    "NoReplyError",
    "NotReachedError",
    "OverloadedError",
    "Position",
    "ProtocolError",
    "RejectError",
    "RequestError",
    "Requester",
    "RetryError",
    "Row",
    "StorageError",
    "Table",
    "UnavailableError",
    "UsageError",
    "Work",
    "Writer",
    "backoff",
    "calendar",
    "capture",
    "corrected_time",
    "count",
    "distinct",
    "enrich",
    "group",
    "history",
    "join",
    "late",
    "latest",
    "match",
    "newest_of",
    "sessions",
    "sink",
    "sketch",
    "sliding",
    "unmatched",
    "valid",
    "versions",
    "wait",
]

_MODULES = {"capture": "capture", "late": "declare.lateness", "sink": "sink", "sketch": "declare.sketch"}
_HOMES = {
    "ARRIVAL": "declare.lateness",
    "AnyFloat": "declare.field_types",
    "App": "declare.app",
    "Decimal": "declare.field_types",
    "Event": "declare.schema",
    "Follower": "follow.follower",
    "Position": "position",
    "Requester": "write.requester",
    "Row": "declare.schema",
    "Table": "declare.table",
    "Work": "worker.work",
    "Writer": "write.writer",
    "backoff": "declare.backoff",
    "calendar": "declare.operators",
    "corrected_time": "declare.operators",
    "count": "declare.operators",
    "distinct": "declare.operators",
    "enrich": "declare.operators",
    "group": "declare.operators",
    "history": "declare.operators",
    "join": "declare.operators",
    "latest": "declare.operators",
    "match": "declare.operators",
    "newest_of": "declare.operators",
    "sessions": "declare.operators",
    "sliding": "declare.operators",
    "unmatched": "declare.operators",
    "valid": "declare.operators",
    "versions": "declare.operators",
    "wait": "follow.follower",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"headwater.{_MODULES[name]}")
    return getattr(importlib.import_module(f"headwater.{_HOMES.get(name, 'errors')}"), name)
