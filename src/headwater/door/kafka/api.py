"""What a handler is: the request that it gets, the answer that it gives, and the versions that it serves."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headwater.door.kafka.authentication import Authentication
from headwater.door.kafka.fetch_session import FetchSessions
from headwater.door.kafka.memory_budget import ANSWER_BYTES_MAX
from headwater.log.broker import Broker
from headwater.protocol.kafka.codec import Layout, Message, layout

__all__ = ["Answer", "Handler", "Later", "Request", "Waiting", "serves"]


class Request(NamedTuple):
    """One decoded request and its sender."""

    body: Message
    version: int
    client_id: str
    client_host: str
    broker: Broker
    address: tuple[str, int]
    """The host and port at which clients find this broker."""
    sessions: FetchSessions
    authentication: Authentication
    answer_bytes_max: int = ANSWER_BYTES_MAX
    """The most bytes of records in the answer, even if the request asks for more."""
    connection: object = None
    """What identifies the sender's connection."""


class Later:
    """A response that is given later.

    Like a future, but callbacks run at once and not in the loop's next turn. So a record is on its way to a
    waiting consumer before the acknowledgement to its producer is even encoded.
    """

    __slots__ = ("_callbacks", "_failure", "_message")

    def __init__(self) -> None:
        self._message: Message | None = None
        self._failure: BaseException | None = None
        self._callbacks: list[Callable[[object], object]] = []

    def done(self) -> bool:
        return self._message is not None or self._failure is not None

    def result(self) -> Message:
        if self._failure is not None:
            raise self._failure
        assert self._message is not None  # noqa: S101  only called when it is done
        return self._message

    def add_done_callback(self, callback: Callable[[object], object]) -> None:
        self._callbacks.append(callback)

    def resolve(self, compose: Callable[[], Message]) -> None:
        """Gives the response, unless it is done or cancelled.

        ``result`` raises what fails in composing it.
        """
        if self.done():
            return
        try:
            self._message = compose()
        except Exception as error:  # noqa: BLE001
            self._failure = error
        self._finish()

    def cancel(self) -> None:
        if not self.done():
            self._failure = asyncio.CancelledError()
            self._finish()

    def _finish(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


Waiting = Later | asyncio.Future[Message]
Answer = Message | Waiting | None
"""A response now, later, or (Produce without acknowledgement) never."""


class Handler(NamedTuple):
    """A function that answers one API key in a range of versions."""

    function: Callable[[Request], Answer]
    key: int
    first: int
    last: int
    flexible: int
    """The first version whose header and body have tagged fields."""
    request: Layout
    response: Layout


def serves(name: str, first: int, last: int) -> Callable[[Callable[[Request], Answer]], Handler]:
    """Makes a function the handler of an API in a range of versions. ``handlers.py`` lists all handlers."""

    def handler(function: Callable[[Request], Answer]) -> Handler:
        request, response = layout(name, "request"), layout(name, "response")
        versions = request.api.versions
        assert first in versions and last in versions, name  # noqa: S101, PT018  our own table
        key, flexible = request.api.key, request.api.flexible.first
        return Handler(function, key, first, last, flexible, request, response)

    return handler
