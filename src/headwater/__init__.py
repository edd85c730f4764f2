"""Headwater: streams, views and live pages on durable logs.

    import headwater as hw

The names below are all that an application file needs; importing them starts nothing and loads no Spark.
"""

from headwater.app import App
from headwater.errors import HeadwaterError, MachineError, ProtocolError, StorageError, UsageError
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
    "count",
    "latest",
]
