"""Clients that write frames of Kafka's protocol by hand, and a server in this process to write them to."""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

from headwater.door.kafka.listener.server import Server
from headwater.log.broker import Broker
from headwater.log.storage.memory import MemoryDisk
from headwater.protocol.kafka.codec import layout
from headwater.record import Record, encode_batch
from support.protocol import build

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 42, -1)


def frame(name: str, version: int, correlation: int, **fields: object) -> bytes:
    request = layout(name, "request")
    body = b"".join(request.encode(version, build(request, "", fields)))
    head = struct.pack(">hhih", request.api.key, version, correlation, -1)
    head += b"\0" if version in request.api.flexible else b""
    return struct.pack(">i", len(head) + len(body)) + head + body


def fetch(topic: str, correlation: int = 1, *, wait_ms: int = 0, max_bytes: int = 100 << 20) -> bytes:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": max_bytes}
    topics = [{"topic": topic, "partitions": [part]}]
    return frame(
        "Fetch",
        11,
        correlation,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=topics,
    )


def produce(topic: str, value: bytes, correlation: int = 1) -> bytes:
    data = encode_batch([Record(None, value, (), 1000)])
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    return frame("Produce", 7, correlation, acks=-1, timeout_ms=1000, topic_data=topics)


class Clients(contextlib.AsyncExitStack):
    """Clients whose system takes very little of what they do not read; they end with the test."""

    async def connect(self, server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, server.address)
        reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
        self.push_async_callback(self._end, writer)
        return reader, writer

    async def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def said(reader: asyncio.StreamReader) -> int:
    size, correlation = struct.unpack(">ii", await asyncio.wait_for(reader.readexactly(8), 10))
    left = size - 4
    while left:
        left -= len(await reader.read(min(left, 1 << 20)))
    return correlation


async def until(condition, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  the server has no event for it
            await asyncio.sleep(0.005)


def serving(steps, limit_bytes: int, users: dict[str, str] | None = None) -> None:
    async def run() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk(), flush="os")
        broker.catalog.create("t", 1, {"max.message.bytes": "20000000"})
        server = Server(broker, "127.0.0.1", 0, users=users, buffered_bytes_max=limit_bytes)
        await server.start()
        async with Clients() as clients:
            await steps(server, clients)
        await server.stop()

    asyncio.run(run())
