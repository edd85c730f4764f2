"""What a handler is: the request that it is given, and the table in which it is registered with its versions."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headwater.kafka.codec import Layout, Message, layout
from headwater.kafka.flow import ANSWER_BYTES_MAX
from headwater.kafka.session import Sessions
from headwater.log.broker import Broker

if TYPE_CHECKING:
    from headwater.kafka.sasl import Authentication

__all__ = ["HANDLERS", "Answer", "Handler", "Later", "Request", "Waiting", "serves"]


class Request(NamedTuple):
    """One decoded request and whom it came from."""

    body: Message
    version: int
    client_id: str
    client_host: str
    broker: Broker
    address: tuple[str, int]
    """Where clients are told to find this broker."""
    sessions: Sessions
    authentication: "Authentication"
    answer_bytes_max: int = ANSWER_BYTES_MAX
    """Records in the answer, whatever the request asks for."""


class Later:
    """A response that is given later. Like a future, but who waits for it is called at once, not in the loop's next turn:
    a record is on its way to a waiting consumer before its producer's acknowledgement is even encoded.
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
        assert self._message is not None  # noqa: S101  asked for before it was done
        return self._message

    def add_done_callback(self, callback: Callable[[object], object]) -> None:
        self._callbacks.append(callback)

    def resolve(self, compose: Callable[[], Message]) -> None:
        """Gives the response, unless it was given or nobody waits any more. What fails in composing it is the waiter's, not ours."""
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


HANDLERS: dict[int, Handler] = {}


def serves(
    name: str, first: int, last: int
) -> Callable[[Callable[[Request], Answer]], Callable[[Request], Answer]]:
    """Registers the function below it; ApiVersions answers with this range."""

    def register(function: Callable[[Request], Answer]) -> Callable[[Request], Answer]:
        request, response = layout(name, "request"), layout(name, "response")
        versions = request.api.versions
        assert first in versions and last in versions, name  # noqa: S101, PT018  our own table
        key, flexible = request.api.key, request.api.flexible.first
        HANDLERS[key] = Handler(function, key, first, last, flexible, request, response)
        return function

    return register
