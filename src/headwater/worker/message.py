"""Message: the value of a record as what a handler takes, or why it does not fit."""

from collections.abc import Callable
from typing import Any

import msgspec

from headwater.declare.graph import Graph
from headwater.declare.judge import judge_of
from headwater.declare.spec import Stream, Worker
from headwater.declare.worker_checks import message_type
from headwater.decoders import from_json

__all__ = ["InvalidError", "Reader", "reader_of"]

Reader = Callable[[bytes | None], Any]
"""Reads a value; raises InvalidError. Any thread may call it."""


class InvalidError(Exception):
    """A value does not fit the type of a message; the text names the field."""


def reader_of(graph: Graph, worker: Worker) -> Reader:
    """What makes a worker's messages of values."""
    kind = message_type(worker, graph.sources)
    if kind is bytes:
        return lambda value: value
    if kind is dict:
        return _read_object
    source = graph.sources.get(worker.source)
    judge = judge_of(kind, lenient=isinstance(source, Stream) and bool(source.envelope))

    def read(value: bytes | None) -> Any:
        fault = judge.fault(value)
        if fault is not None:
            raise InvalidError(str(fault))
        try:
            # Infinity and NaN are texts in JSON; what else would be lenient here, the judge has refused.
            return from_json(value or b"", kind, strict=False)
        except msgspec.MsgspecError as error:
            raise InvalidError(str(error)) from error

    return read


def _read_object(value: bytes | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"the value is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidError(f"the value is {type(found).__name__}; expected one JSON object")
    return found
