"""Tools for tests: a broker in this process, a disk in memory, a clock to set, and views.

with headwater.testing.broker() as b:
    Producer({"bootstrap.servers": b.bootstrap}).produce("orders", b"...")

with headwater.testing.views(app) as t:
    t.send("orders", Order(...))
    assert t.rows("revenue") == [...]
"""

import importlib
from typing import TYPE_CHECKING, Any

from headwater.log.storage.memory import MemoryDisk
from headwater.testing.clock import SettableClock
from headwater.testing.server import RunningBroker, broker

if TYPE_CHECKING:
    from headwater.testing.kit import Views, views

__all__ = ["MemoryDisk", "RunningBroker", "SettableClock", "Views", "broker", "views"]


def __getattr__(name: str) -> Any:
    """Loads the kit when it is first used: a test of a log needs no Spark."""
    if name not in {"Views", "views"}:
        raise AttributeError(f"module 'headwater.testing' has no attribute {name!r}")
    return getattr(importlib.import_module("headwater.testing.kit"), name)
