"""What a handler is: the request that it is given, and the table in which it is registered with its versions."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from headwater.kafka.codec import Layout, Message, layout
from headwater.kafka.session import Sessions
from headwater.log.broker import Broker

__all__ = ["HANDLERS", "Answer", "Handler", "Request", "serves"]


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


Answer = Message | asyncio.Future[Message] | None
"""A response now, later, or (Produce without acknowledgement) never."""


class Handler(NamedTuple):
    """A function that answers one API key in a range of versions."""

    function: Callable[[Request], Answer]
    key: int
    first: int
    last: int
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
        HANDLERS[request.api.key] = Handler(function, request.api.key, first, last, request, response)
        return function

    return register
