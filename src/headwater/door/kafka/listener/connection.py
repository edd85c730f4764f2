"""Connection: one client's socket to requests and back: framing, dispatch, order of answers, back-pressure.

All connections read into one scratch buffer, since a read and its handling are one step of the event loop;
only a frame that has not arrived whole has a buffer to itself, so an idle connection takes no memory. Each
request goes to its handler at once, and the answers leave in the order of the requests, as Kafka's do. A
connection handles no more requests while too many answers are outstanding, while a fetch waits, and while its
client does not read what was sent: so a slow client delays only itself. ``memory_budget.py`` bounds what all
connections hold together, ``unauthenticated.py`` those of clients that have not authenticated.
"""

import asyncio
import logging
import mmap
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

from headwater.door.kafka.api import Handler, Request, Waiting
from headwater.door.kafka.authentication import Authentication
from headwater.door.kafka.fetch_session import FetchSessions
from headwater.door.kafka.handlers import HANDLERS, unsupported_version
from headwater.door.kafka.listener.frames import (
    API_VERSIONS,
    encode_response,
    read_client_id,
    read_head,
    read_size,
    skip_tags,
)
from headwater.door.kafka.listener.unauthenticated import STRANGER_BYTES_MAX, Strangers
from headwater.door.kafka.memory_budget import MemoryBudget
from headwater.errors import ProtocolError, RequestError
from headwater.log.broker import Broker
from headwater.protocol.kafka.codec import Message

__all__ = ["Connection", "Connections"]

logger = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 104_857_600
SCRATCH_BYTES = 1 << 18
MAPPED_BYTES = 1 << 22
"""A buffer of this size or more is mapped memory.

The system fills it with zeros page by page as it is used; to fill it at once would hold up the loop.
"""
OUTSTANDING_MAX = 64
JOIN_BYTES = 1 << 16
TURN_BYTES_MAX = 1 << 22
"""Bytes of large requests and answers in one turn of the event loop.

A connection beyond that waits for the next turn, after the small requests of all others.
"""
FETCHES = frozenset({1, 78})
"""Fetch and ShareFetch, which may wait for records."""
EMPTY_FRAME = bytes(4)

Reply = Waiting | list[Any]


class Connections:
    """What the connections of one server share. The event loop owns it."""

    def __init__(
        self, broker: Broker, address: tuple[str, int], users: Mapping[str, str], budget: MemoryBudget
    ) -> None:
        self.broker = broker
        self.address = address
        """The host and port at which clients find this broker."""
        self.users = users
        self.budget = budget
        self.sessions = FetchSessions()
        self.strangers = Strangers()
        self.open: set[Connection] = set()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.turn_bytes = 0

    def spend(self, size_bytes: int) -> None:
        """Counts something large that was done in this turn of the event loop."""
        if not self.turn_bytes:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self.turn_bytes += size_bytes

    def _begin_turn(self) -> None:
        self.turn_bytes = 0


class Connection(asyncio.BufferedProtocol):
    """One client. The event loop calls it; every method is synchronous."""

    __slots__ = (
        "_authentication",
        "_fetches",
        "_filled",
        "_held_bytes",
        "_host",
        "_incomplete",
        "_moved_bytes",
        "_queued_bytes",
        "_reading",
        "_replies",
        "_rest",
        "_shared",
        "_stranger",
        "_transport",
        "_wants_room",
        "_writable",
    )

    def __init__(self, shared: Connections) -> None:
        self._shared = shared
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._host = ""
        self._incomplete: bytearray | mmap.mmap | None = None
        self._filled = 0
        self._rest: memoryview | None = None
        """Bytes that have arrived and cannot be handled yet; nothing is read until they are."""
        self._wants_room = False
        self._held_bytes = 0
        self._moved_bytes = 0
        self._replies: deque[tuple[Handler, int, int, Reply]] = deque()
        self._queued_bytes = 0
        self._fetches = 0
        self._writable = True
        self._reading = True
        self._authentication = Authentication(shared.users)
        self._stranger = not self._authentication.is_known

    # ---- called by the event loop ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._host = f"{peer[0]}:{peer[1]}" if peer else "?"
        # A peer whose machine is gone sends nothing more; without this its sessions would never end.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._shared.open.add(self)
        if self._stranger:
            self._shared.strangers.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._shared.open.discard(self)
        self._shared.strangers.leave(self)
        self._shared.budget.forget(self)
        replies = list(self._replies)
        self._replies.clear()
        self._rest = None
        for *_, reply in replies:
            if not isinstance(reply, list):
                reply.cancel()
        self._shared.broker.shares.disconnect(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self._incomplete is None:
            return self._shared.scratch
        return memoryview(self._incomplete)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._moved_bytes += nbytes
        if self._incomplete is None:
            self._take(self._shared.scratch[:nbytes])
            return
        self._filled += nbytes
        if self._filled == len(self._incomplete):
            frame, self._incomplete = self._incomplete, None
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
        """Ends the connection and logs the reason."""
        logger.warning("closing connection of %s: %s", self._host, reason)
        self.abort()

    def abort(self) -> None:
        self._transport.abort()

    # ---- requests --------------------------------------------------------------------------------------

    def _take_frames(self, data: memoryview) -> None:
        """Handles every whole frame; an incomplete one after them gets a buffer of exactly its size."""
        start, end = 0, len(data)
        while end - start >= 4:
            if not self._open or self._shared.turn_bytes >= TURN_BYTES_MAX:
                self._keep(data[start:])
                return
            (size,) = read_size(data, start)
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
                self._shared.strangers.leave(self)
            start += 4 + size
        if start < end:
            self._begin(data[start:], 4)

    def _begin(self, part: memoryview, size: int) -> None:
        if size > SCRATCH_BYTES and not self._shared.budget.has_room(self, size):
            self._wants_room = True
            self._keep(part)
            return
        self._incomplete = bytearray(size) if size < MAPPED_BYTES else mmap.mmap(-1, size)
        self._incomplete[: len(part)] = part
        self._filled = len(part)

    def _keep(self, rest: memoryview) -> None:
        """Keeps bytes for later; a part of the scratch buffer, which all connections use, is copied."""
        self._rest = memoryview(bytearray(rest)) if rest.obj is self._shared.scratch.obj else rest

    def _take_rest(self) -> None:
        if self._rest is None or not self._open:
            return
        if self._shared.turn_bytes >= TURN_BYTES_MAX:
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
        key, version, correlation = read_head(frame)
        self._authentication.check_allowed(key)
        handler = HANDLERS.get(key)
        if handler is None:
            raise ProtocolError("a request has an unknown API key", got=str(key))
        if not handler.first <= version <= handler.last:
            if key == API_VERSIONS:
                self._answer(handler, 0, correlation, unsupported_version())
                return
            raise ProtocolError(
                f"{handler.request.api.name} version {version} is not supported",
                expected=f"{handler.first} to {handler.last}",
            )
        if len(frame) > JOIN_BYTES:
            self._shared.spend(len(frame))
        client_id, position = read_client_id(frame)
        if version >= handler.flexible:
            position = skip_tags(frame, position)
        body = handler.request.decode(version, frame, position)
        shared = self._shared
        request = Request(
            body,
            version,
            client_id,
            self._host,
            shared.broker,
            shared.address,
            shared.sessions,
            self._authentication,
            shared.budget.answer_bytes_max,
            self,
        )
        answer = handler.function(request)
        if answer is not None:
            self._answer(handler, version, correlation, answer)

    def _take_token(self, token: bytes) -> None:
        """The frame after SaslHandshake 0: a token without a header, answered by an empty frame."""
        try:
            self._authentication.authenticate(token)
        except RequestError as refused:
            raise ProtocolError(str(refused)) from refused
        self._transport.write(EMPTY_FRAME)

    # ---- answers ---------------------------------------------------------------------------------------

    def _answer(self, handler: Handler, version: int, correlation: int, answer: Message | Waiting) -> None:
        if not isinstance(answer, Message):
            self._replies.append((handler, version, correlation, answer))
            self._fetches += handler.key in FETCHES
            answer.add_done_callback(self._send_finished)
            return
        pieces = encode_response(handler, version, correlation, answer)
        if self._replies:
            self._replies.append((handler, version, correlation, pieces))
            self._fetches += handler.key in FETCHES
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
                    reply = encode_response(handler, version, correlation, reply.result())
                else:
                    self._queued_bytes -= sum(map(len, reply))
                self._replies.popleft()
                self._fetches -= handler.key in FETCHES
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
            self._shared.spend(size)
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        if not self._writable:
            self._hold()

    def _hold(self) -> None:
        """Reports to the memory budget how many bytes this connection holds."""
        held = self._queued_bytes
        held += len(self._incomplete) if self._incomplete is not None else 0
        held += len(self._rest) if self._rest is not None else 0
        if not self._writable:
            held += self._transport.get_write_buffer_size()
        if self._transport.is_closing():
            return
        if self._stranger:
            if held > STRANGER_BYTES_MAX:
                self.close(f"it holds {held} bytes and has not authenticated")
        elif held or self._held_bytes:
            self._held_bytes = held
            self._shared.budget.hold(self, held, self._moved_bytes)
            self._moved_bytes = 0

    def _throttle(self) -> None:
        """Reads unless bytes are kept for later, so that a lost client is noticed while its fetch waits."""
        reading = self._rest is None
        if self._transport.is_closing():
            return
        if not reading and self._open:
            # In another turn, because this may have been called from within another connection's request.
            asyncio.get_running_loop().call_soon(self._take_rest)
        if reading == self._reading:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
