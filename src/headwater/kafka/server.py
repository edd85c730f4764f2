"""Sockets to requests and back: framing, dispatch, order of answers, back-pressure. The only sockets of the log.

All connections read into one scratch buffer, since a read and its handling are one step of the event loop; only a frame
that has not arrived whole has a buffer of its own, so an idle connection costs none. Each request goes to its handler
at once, and the answers leave in the order of the requests, as Kafka's do. A connection handles nothing more while too many
answers are outstanding, a fetch waits, or its client does not take what was sent: a slow client costs its own time. What all
of them may hold together is the business of ``flow.py``, what those may who have not said who they are that of ``stranger.py``.
"""

import asyncio
import errno
import logging
import mmap
import ssl
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from headwater.errors import MachineError, ProtocolError, Refused
from headwater.kafka import admin, catalog, fetch, group, produce, sasl, transaction
from headwater.kafka.api import HANDLERS, Handler, Request, Waiting
from headwater.kafka.codec import Message
from headwater.kafka.flow import BUFFERED_BYTES_MAX, Flow
from headwater.kafka.sasl import Authentication
from headwater.kafka.session import Sessions
from headwater.kafka.stranger import AUTHENTICATION_S, STRANGER_BYTES_MAX, Strangers
from headwater.log.broker import Broker

__all__ = ["Server"]

logger = logging.getLogger(__name__)

FAMILIES = (admin, catalog, fetch, group, produce, sasl, transaction)
"""Importing a family registers its handlers."""

REQUEST_BYTES_MAX = 104_857_600
SCRATCH_BYTES = 1 << 18
MAPPED_BYTES = 1 << 22
"""From this size on a buffer comes from the system, page by page as it fills: to fill it with zeros first would hold up the loop."""
OUTSTANDING_MAX = 64
JOIN_BYTES = 1 << 16
TURN_BYTES_MAX = 1 << 22
"""Large requests and answers in one turn of the event loop; who comes next waits for the next turn, behind everybody's small ones."""
FETCH = 1
API_VERSIONS = 18

_head = struct.Struct(">hhi")
_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_plain_head = struct.Struct(">ii")
_flexible_head = struct.Struct(">iix")

Reply = Waiting | list[Any]


class Connection(asyncio.BufferedProtocol):
    """One client. The event loop calls it; everything in here is synchronous."""

    __slots__ = (
        "_authentication",
        "_begun",
        "_fetches",
        "_filled",
        "_held_bytes",
        "_host",
        "_moved_bytes",
        "_queued_bytes",
        "_reading",
        "_replies",
        "_rest",
        "_server",
        "_stranger",
        "_transport",
        "_wants_room",
        "_writable",
    )

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._host = ""
        self._begun: bytearray | mmap.mmap | None = None
        self._filled = 0
        self._rest: memoryview | None = None
        """What arrived and cannot be handled yet; nothing is read behind it."""
        self._wants_room = False
        self._held_bytes = 0
        self._moved_bytes = 0
        self._replies: deque[tuple[Handler, int, int, Reply]] = deque()
        self._queued_bytes = 0
        self._fetches = 0
        self._writable = True
        self._reading = True
        self._authentication = Authentication(server.users)
        self._stranger = not self._authentication.is_known

    # ---- called by the event loop ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._host = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._server.connections.add(self)
        if self._stranger:
            self._server.strangers.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._server.connections.discard(self)
        self._server.strangers.leave(self)
        self._server.flow.forget(self)
        replies = list(self._replies)
        self._replies.clear()
        for *_, reply in replies:
            if not isinstance(reply, list):
                reply.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self._begun is None:
            return self._server.scratch
        return memoryview(self._begun)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._moved_bytes += nbytes
        if self._begun is None:
            self._take(self._server.scratch[:nbytes])
            return
        self._filled += nbytes
        if self._filled == len(self._begun):
            frame, self._begun = self._begun, None
            self._take(memoryview(frame))
        else:
            self._hold()

    def _take(self, data: memoryview) -> None:
        try:
            self._take_frames(data)
            self._hold()
            self._throttle()
        except ProtocolError as error:
            self.close(str(error))
        except Exception:
            logger.exception("request of %s failed; closing its connection", self._host)
            self._transport.abort()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._hold()
        self._throttle()

    def room_given(self) -> None:
        self._wants_room = False
        self._throttle()

    def close(self, reason: str) -> None:
        """Ends the connection, saying why in the log."""
        logger.warning("closing connection of %s: %s", self._host, reason)
        self._transport.abort()

    # ---- requests --------------------------------------------------------------------------------------

    def _take_frames(self, data: memoryview) -> None:
        """Handles every whole frame; the begun one behind them gets a buffer of its own, of just its size."""
        start, end = 0, len(data)
        while end - start >= 4:
            if not self._open or self._server.turn_bytes >= TURN_BYTES_MAX:
                self._keep(data[start:])
                return
            (size,) = _int32.unpack_from(data, start)
            largest = STRANGER_BYTES_MAX - 4 if self._stranger else REQUEST_BYTES_MAX
            if not 8 <= size <= largest:
                what = "a request of a client that has not authenticated" if self._stranger else "a request"
                raise ProtocolError(
                    f"{what} has an impossible size", got=f"{size} bytes", expected=f"8 to {largest}"
                )
            if start + 4 + size > end:
                self._begin(data[start:], 4 + size)
                return
            self._handle(data[start + 4 : start + 4 + size])
            if self._transport.is_closing():
                return
            if self._stranger and self._authentication.is_known:
                self._stranger = False
                self._server.strangers.leave(self)
            start += 4 + size
        if start < end:
            self._begin(data[start:], 4)

    def _begin(self, part: memoryview, size: int) -> None:
        if size > SCRATCH_BYTES and not self._server.flow.has_room(self, size):
            self._wants_room = True
            self._keep(part)
            return
        self._begun = bytearray(size) if size < MAPPED_BYTES else mmap.mmap(-1, size)
        self._begun[: len(part)] = part
        self._filled = len(part)

    def _keep(self, rest: memoryview) -> None:
        """For later; the scratch buffer is everybody's, so a part of it is copied."""
        self._rest = memoryview(bytearray(rest)) if rest.obj is self._server.scratch.obj else rest

    def _take_rest(self) -> None:
        if self._rest is None or not self._open:
            return
        if self._server.turn_bytes >= TURN_BYTES_MAX:
            asyncio.get_running_loop().call_soon(self._take_rest)
            return
        rest, self._rest = self._rest, None
        self._take(rest)

    @property
    def _open(self) -> bool:
        """Whether the next request may be handled."""
        few = len(self._replies) < OUTSTANDING_MAX and not self._fetches
        return few and self._writable and not self._wants_room

    def _handle(self, frame: memoryview) -> None:
        if self._authentication.expects_token:
            self._take_token(bytes(frame))
            return
        key, version, correlation = _head.unpack_from(frame)
        self._authentication.check_allowed(key)
        handler = HANDLERS.get(key)
        if handler is None:
            raise ProtocolError("a request has an unknown API key", got=str(key))
        if not handler.first <= version <= handler.last:
            if key == API_VERSIONS:
                self._answer(handler, 0, correlation, catalog.unsupported_version())
                return
            raise ProtocolError(
                f"{handler.request.api.name} version {version} is not supported",
                expected=f"{handler.first} to {handler.last}",
            )
        if len(frame) > JOIN_BYTES:
            self._server.spend(len(frame))
        client_id, position = _client_id(frame)
        if version >= handler.flexible:
            position = _skip_tags(frame, position)
        body = handler.request.decode(version, frame, position)
        server = self._server
        request = Request(
            body,
            version,
            client_id,
            self._host,
            server.broker,
            server.address,
            server.sessions,
            self._authentication,
            server.flow.answer_bytes_max,
        )
        answer = handler.function(request)
        if answer is not None:
            self._answer(handler, version, correlation, answer)

    def _take_token(self, token: bytes) -> None:
        """The frame after SaslHandshake 0: a token without a header, answered by an empty frame."""
        try:
            self._authentication.authenticate(token)
        except Refused as refused:
            raise ProtocolError(str(refused)) from refused
        self._transport.write(_int32.pack(0))

    # ---- answers ---------------------------------------------------------------------------------------

    def _answer(self, handler: Handler, version: int, correlation: int, answer: Message | Waiting) -> None:
        if not isinstance(answer, Message):
            self._replies.append((handler, version, correlation, answer))
            self._fetches += handler.key == FETCH
            answer.add_done_callback(self._send_finished)
            return
        pieces = _encode(handler, version, correlation, answer)
        if self._replies:
            self._replies.append((handler, version, correlation, pieces))
            self._fetches += handler.key == FETCH
            self._queued_bytes += sum(map(len, pieces))
        else:
            self._write(pieces)

    def _send_finished(self, _: object) -> None:
        try:
            while self._replies:
                handler, version, correlation, reply = self._replies[0]
                if not isinstance(reply, list):
                    if not reply.done():
                        break
                    reply = _encode(handler, version, correlation, reply.result())
                else:
                    self._queued_bytes -= sum(map(len, reply))
                self._replies.popleft()
                self._fetches -= handler.key == FETCH
                self._write(reply)
        except asyncio.CancelledError:
            return
        except Exception:
            logger.exception("answer for %s failed; closing its connection", self._host)
            self._transport.abort()
        self._throttle()

    def _write(self, pieces: list[Any]) -> None:
        size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
        if size > JOIN_BYTES:
            self._server.spend(size)
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        if not self._writable:
            self._hold()

    def _hold(self) -> None:
        """Tells the account of all connections what this one holds. Little is not worth the trouble."""
        held = self._queued_bytes
        held += len(self._begun) if self._begun is not None else 0
        held += len(self._rest) if self._rest is not None else 0
        if not self._writable:
            held += self._transport.get_write_buffer_size()
        if self._transport.is_closing():
            return
        if self._stranger:
            if held > STRANGER_BYTES_MAX:
                self.close(f"it holds {held} bytes and has not said who it is")
        elif held or self._held_bytes:
            self._held_bytes = held
            self._server.flow.hold(self, held, self._moved_bytes)
            self._moved_bytes = 0

    def _throttle(self) -> None:
        """Reads while nothing is kept for later, so that a client that goes is noticed also while its fetch waits."""
        reading = self._rest is None
        if self._transport.is_closing():
            return
        if not reading and self._open:
            # In a turn of its own: this may have been called from within another connection's request.
            asyncio.get_running_loop().call_soon(self._take_rest)
        if reading == self._reading:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class Server:
    """Listens, and knows the connections. ``start`` and ``stop`` belong to the event loop of its broker."""

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
        self.users = users or {}
        self._tls = tls
        self.address = (host, port)
        self.connections: set[Connection] = set()
        self.sessions = Sessions()
        self.flow = Flow(buffered_bytes_max)
        self.strangers = Strangers()
        self.turn_bytes = 0
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        host, port = self.address
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: Connection(self),
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
        self.address = (host, self._listener.sockets[0].getsockname()[1])

    def spend(self, size_bytes: int) -> None:
        """Takes note of something large that was done in this turn of the event loop."""
        if not self.turn_bytes:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self.turn_bytes += size_bytes

    def _begin_turn(self) -> None:
        self.turn_bytes = 0

    async def stop(self) -> None:
        """Takes no new connection, ends the open ones, and leaves the broker closed and clean."""
        if self._listener is not None:
            self._listener.close()
        for connection in tuple(self.connections):
            connection._transport.abort()  # noqa: SLF001
        await self.broker.close()


def _client_id(frame: memoryview) -> tuple[str, int]:
    (length,) = _int16.unpack_from(frame, 8)
    if length < 0:
        return "", 10
    if 10 + length > len(frame):
        raise ProtocolError("the client id of a request reaches past its end", got=f"{length} bytes")
    return str(frame[10 : 10 + length], "utf-8", "replace"), 10 + length


def _skip_tags(frame: memoryview, position: int) -> int:
    if position < len(frame) and frame[position] == 0:
        return position + 1
    raise ProtocolError("a request header has tagged fields", expected="none")


def _encode(handler: Handler, version: int, correlation: int, message: Message) -> list[Any]:
    flexible = version >= handler.flexible and handler.key != API_VERSIONS
    head = _flexible_head if flexible else _plain_head
    pieces = handler.response.encode(version, message, head.pack(0, correlation))
    size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
    _int32.pack_into(pieces[0], 0, size - 4)
    return pieces
