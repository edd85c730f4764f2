"""Requester: sends requests to workers and waits for their replies.

    with hw.Requester() as post:
        receipt = post.request(mails, Mail(...), Receipt, timeout="10 seconds")

A request is a record with two headers: the topic of replies, and a correlation id that its reply has too. All
requesters of a topic of replies read all of it, from where it ended when they began.
"""

import threading
import uuid
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import datetime
from typing import Any, Self, TypeVar

import msgspec
from confluent_kafka import TopicPartition

from headwater.access import Log
from headwater.client.client import Client, consumer
from headwater.client.poll import poll_batch
from headwater.client.topic_defaults import PASSING
from headwater.config import Settings, load
from headwater.declare.duration import pause_ms
from headwater.declare.judge import judge_of
from headwater.declare.schema import Event
from headwater.declare.spec import Stream
from headwater.decoders import from_json
from headwater.errors import NoReplyError, UsageError
from headwater.queue_headers import CORRELATION_HEADER, ERROR_HEADER, REPLY_TO_HEADER
from headwater.write.encoding import Key, Value
from headwater.write.writer import Writer

__all__ = ["REPLIES", "Requester"]

REPLIES = "headwater.replies"
"""The topic of replies, unless a requester has another one. It keeps them for a day."""
POLL_S = 0.2
BATCH = 500

Reply = TypeVar("Reply")


class Requester:
    """Requests and their replies. Any thread may call; end it with `close`, or use ``with``.

    A request is handled at least once and, on the embedded log, has one reply. When its time is over it may
    still be handled: its reply is dropped. ``expires`` bounds that.
    """

    def __init__(self, log: Log | Settings | None = None, *, replies: str = REPLIES) -> None:
        """``log`` as with `Writer`; ``replies`` is the topic of replies, which is made if it is not there."""
        source = load() if log is None else log
        self._log = source.access if isinstance(source, Settings) else source
        self._replies = replies
        self._writer = Writer(source)
        self._lock = threading.Lock()
        self._open: dict[bytes, Future[Any]] = {}
        """Requests without a reply, by their correlation. The lock guards it."""
        self._closing = threading.Event()
        client = Client(self._log)
        try:
            client.ensure_topics([replies], 1, PASSING)
            ends = client.open_ends(replies, client.partitions()[replies])
        finally:
            client.close()
        self._reader = consumer(self._log)
        self._reader.assign([TopicPartition(replies, number, end) for number, end in ends.items()])
        self._thread = threading.Thread(target=self._read, name=f"replies {replies}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections; requests that wait get no reply any more."""
        self._closing.set()
        self._thread.join()
        with self._lock:
            waiting, self._open = self._open, {}
        for reply in waiting.values():
            reply.set_exception(NoReplyError("the requester was closed before the reply came"))
        self._writer.close()

    def request(
        self,
        to: Stream | str,
        event: Value,
        reply: type[Reply],
        *,
        timeout: str = "30 seconds",
        key: Key = None,
        priority: int | None = None,
        expires: str | datetime | None = None,
    ) -> Reply:
        """Sends a request and returns its reply: an event of that class, ``dict`` or ``bytes``.

        NoReplyError if none comes within ``timeout``, or if the request became a dead letter: it says why.
        """
        kind: Any = reply
        if kind not in {bytes, dict} and not (isinstance(kind, type) and issubclass(kind, Event)):
            raise UsageError(
                "a reply has no such type",
                got=repr(reply),
                expected="a class derived from hw.Event, dict or bytes",
            )
        wait_s = pause_ms(timeout) / 1000
        correlation = uuid.uuid4().hex
        answer: Future[Any] = Future()
        with self._lock:
            self._open[correlation.encode()] = answer
        try:
            headers = {REPLY_TO_HEADER: self._replies, CORRELATION_HEADER: correlation}
            self._writer.send(to, [event], key=key, priority=priority, expires=expires, headers=headers)
            value, error = answer.result(wait_s)
        except FutureTimeoutError as late:
            name = to.name if isinstance(to, Stream) else to
            raise NoReplyError(
                f"no reply to a request to {name!r} within {timeout}",
                hint="is a worker running, and does its handler call ctx.reply(...)?",
            ) from late
        finally:
            with self._lock:
                self._open.pop(correlation.encode(), None)
        if error is not None:
            raise NoReplyError("the request was given up", got=error)
        result: Reply = _decoded(value, reply)
        return result

    def _read(self) -> None:
        while not self._closing.is_set():
            for message in poll_batch(self._reader, POLL_S, BATCH):
                if message.error() is None:
                    self._take(message)
        self._reader.close()

    def _take(self, message: Any) -> None:
        headers = dict(message.headers() or ())
        with self._lock:
            answer = self._open.pop(headers.get(CORRELATION_HEADER) or b"", None)
        if answer is not None:
            error = headers.get(ERROR_HEADER)
            answer.set_result((message.value(), None if error is None else error.decode(errors="replace")))


def _decoded(value: bytes | None, kind: Any) -> Any:
    if kind is bytes:
        return value
    try:
        if kind is not dict:
            fault = judge_of(kind).fault(value)
            if fault is not None:
                raise NoReplyError("the reply is of another type", got=str(fault), expected=kind.__name__)
        return from_json(value or b"", kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NoReplyError("the reply is of another type", got=str(error), expected=kind.__name__) from error
