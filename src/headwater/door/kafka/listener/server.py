"""Server: listens for clients of the Kafka protocol, and makes a connection for each of them."""

import asyncio
import errno
import ssl
from collections.abc import Mapping

from headwater.door.kafka.listener.connection import Connection, Connections
from headwater.door.kafka.listener.unauthenticated import AUTHENTICATION_S
from headwater.door.kafka.memory_budget import BUFFERED_BYTES_MAX, MemoryBudget
from headwater.errors import MachineError
from headwater.log.broker import Broker

__all__ = ["Server"]


class Server:
    """Listens on one address. The event loop of its broker owns it."""

    def __init__(
        self,
        broker: Broker,
        host: str,
        port: int,
        *,
        users: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        buffered_bytes_max: int = BUFFERED_BYTES_MAX,
    ) -> None:
        self.broker = broker
        self._tls = tls
        self.connections = Connections(broker, (host, port), users or {}, MemoryBudget(buffered_bytes_max))
        self._listener: asyncio.Server | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port; after ``start`` the port that was taken, if port 0 was asked for."""
        return self.connections.address

    async def start(self) -> None:
        host, port = self.address
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: Connection(self.connections),
                host,
                port,
                ssl=self._tls,
                ssl_handshake_timeout=AUTHENTICATION_S if self._tls else None,
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            hint = "stop the program that listens there or choose another port with --port"
            raise MachineError(f"port {port} on {host} is in use", hint=hint) from error
        self.connections.address = (host, self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Stops listening, ends the open connections, and closes the broker cleanly."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self.connections.open):
            connection.abort()
        await self.broker.close()
