"""A broker in this process, on a free port, in memory unless a disk is given."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import uvloop

from headwater.clock import Clock
from headwater.door.kafka.listener.server import Server
from headwater.log.broker import Broker
from headwater.log.storage.disk import Disk
from headwater.log.storage.memory import MemoryDisk
from headwater.log.storage.retention import INTERVAL_S

__all__ = ["RunningBroker", "broker"]


@dataclass(frozen=True)
class RunningBroker:
    """A broker on a free port of this machine."""

    bootstrap: str
    disk: Disk


@contextlib.contextmanager
def broker(
    *,
    disk: Disk | None = None,
    folder: Path = Path("/memory"),
    clock: Clock | None = None,
    flush: Literal["commit", "os"] = "commit",
    partitions: int = 1,
    retention_interval_s: float = INTERVAL_S,
) -> Iterator[RunningBroker]:
    """Starts a broker in a thread of this process, in memory unless a disk is given, and stops it cleanly.

    Retention and compaction check every partition each ``retention_interval_s``.
    """
    used_disk = disk or MemoryDisk()
    loop = uvloop.new_event_loop()

    async def start() -> Server:
        log = Broker(
            folder,
            flush=flush,
            partitions=partitions,
            disk=used_disk,
            clock=clock,
            retention_interval_s=retention_interval_s,
        )
        server = Server(log, "127.0.0.1", 0)
        await server.start()
        return server

    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="broker", daemon=True)
    thread.start()
    try:
        yield RunningBroker(f"127.0.0.1:{server.address[1]}", used_disk)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(timeout=30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
