"""Work: what a handler knows about its message besides the message, and what it writes."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from headwater.clock import Clock, SystemClock
from headwater.declare.spec import Stream
from headwater.errors import UsageError
from headwater.queue_headers import CORRELATION_HEADER, ERROR_HEADER, REPLY_TO_HEADER
from headwater.record import Record
from headwater.write.delivery_headers import RecordHeaders, delivery_headers, wait_ms
from headwater.write.encoding import Key, Value, target_of, value_bytes

__all__ = ["Headers", "Work", "Written"]

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
ERROR_CHARACTERS_MAX = 500

Headers = Mapping[str, str | bytes | None]


class Written(NamedTuple):
    """A record that a handler writes, and the stream that declares its topic."""

    topic: str
    record: Record
    stream: Stream | None = None
    is_reply: bool = False


class Work:
    """The second parameter of a worker's handler.

    What is written with it is in the log once the handler has returned, and if it raises it never is. Tests
    make one with ``hw.Work()`` and look at ``written``.
    """

    written: list[Written]

    def __init__(
        self,
        topic: str = "",
        partition: int = 0,
        record: Record | None = None,
        *,
        attempt: int = 1,
        attempts: int = 1,
        clock: Clock | None = None,
    ) -> None:
        record = record or Record(None, None, offset=0)
        self.topic = topic
        self.partition = partition
        self.offset = record.offset
        self.key = record.key
        self.headers = record.headers
        """Pairs of name and value, in their order."""
        self.timestamp = record.timestamp
        """When the message was written, in milliseconds since 1970 UTC."""
        self.attempt = attempt
        """1 for the first attempt."""
        self.attempts = attempts
        """How many there are before the message becomes a dead letter."""
        self.written = []
        self.deferred_ms: int | None = None
        """For how long the handler has deferred the message."""
        self._clock = clock or SystemClock()
        self._is_over = False

    @property
    def id(self) -> str:
        """The same for all attempts of a message, and no other message has it."""
        return f"{self.topic}-{self.partition}-{self.offset}"

    def write(
        self,
        to: Stream | str,
        value: Value,
        *,
        key: Key = None,
        headers: Headers | None = None,
        delay: str = "",
        at: datetime | None = None,
        priority: int | None = None,
        expires: str | datetime | None = None,
        id: str = "",  # noqa: A002 (the word users expect)
    ) -> None:
        """Writes an event to a stream, or bytes to a topic, when the message is acknowledged.

        On the embedded log both happen in one transaction, so the record is there exactly once. An event of a
        stream has the key that the stream declares, unless ``key`` is given. For queues: ``delay`` (``"10
        minutes"``) and ``at`` say when the record is delivered, ``expires`` until when, ``priority`` 9 to 0
        what goes first, ``id`` which records are duplicates.
        """
        self._check_open()
        topic, key_of = target_of(to, key)
        if not TOPIC.fullmatch(topic):
            raise UsageError(
                "a record cannot be written to a topic of that name",
                got=repr(topic),
                expected="1 to 249 letters, digits, '.', '_', '-'",
            )
        own = delivery_headers(
            self._clock.now_ms(), delay=delay, at=at, priority=priority, expires=expires, id=id
        )
        record = _record(topic, key_of, value, to, _encoded(headers) + own)
        self.written.append(Written(topic, record, to if isinstance(to, Stream) else None))

    @property
    def wants_reply(self) -> bool:
        """Whether the message is a request, whose sender waits for `reply`."""
        return self._reply_to() is not None

    def reply(self, value: Value, *, headers: Headers | None = None) -> None:
        """Replies to a request with an event or bytes, when the message is acknowledged.

        On the embedded log that is one transaction: a request that is done has its reply, and only one. A
        message that is no request is a UsageError; `wants_reply` tells.
        """
        self._check_open()
        topic = self._reply_to()
        if topic is None:
            raise UsageError(
                f"message {self.id} is no request: it says not where to reply",
                expected=f"the header {REPLY_TO_HEADER} with the name of a topic, as hw.Requester writes it",
            )
        if any(written.is_reply for written in self.written):
            raise UsageError(f"the handler of message {self.id} replies twice", expected="one reply")
        record = _record(topic, lambda _: None, value, topic, (*self._correlation(), *_encoded(headers)))
        self.written.append(Written(topic, record, is_reply=True))

    def defer(self, *, delay: str = "", until: datetime | None = None) -> None:
        """Gives the message back untried: it is delivered again after ``delay``, or at the time ``until``.

        To be followed by the end of the handler (``return ctx.defer(delay="1h")``). That is no attempt. With
        ``order_by="key"`` the later messages of its key wait too.
        """
        self._check_open()
        if self.written:
            raise UsageError(f"the handler of message {self.id} has written, and cannot defer it any more")
        self.deferred_ms = wait_ms(self._clock.now_ms(), delay=delay, until=until)

    def failed_reply(self, reason: str) -> Written | None:
        """For the worker: what says to the sender of a request that there will be no reply."""
        topic = self._reply_to()
        if topic is None:
            return None
        why = (ERROR_HEADER, reason[:ERROR_CHARACTERS_MAX].encode(errors="replace"))
        return Written(topic, Record(None, None, (*self._correlation(), why)), is_reply=True)

    def _reply_to(self) -> str | None:
        topic = (dict(self.headers).get(REPLY_TO_HEADER) or b"").decode(errors="replace")
        return topic if TOPIC.fullmatch(topic) else None

    def _correlation(self) -> RecordHeaders:
        return tuple(header for header in self.headers if header[0] == CORRELATION_HEADER)

    def _check_open(self) -> None:
        if self._is_over:
            raise UsageError(f"the handler of message {self.id} has ended, and cannot write any more")
        if self.deferred_ms is not None:
            raise UsageError(f"the handler of message {self.id} has deferred it, and can only return")

    def end(self) -> list[Written]:
        """What was written; nothing more can be. Called by the worker."""
        self._is_over = True
        return self.written


def _record(
    topic: str, key_of: Callable[[Any], Key], value: Value, to: Stream | str, headers: RecordHeaders
) -> Record:
    try:
        record = Record(_bytes(key_of(value)), value_bytes(value, to), headers)
    except (TypeError, AttributeError) as error:
        raise UsageError(f"a record cannot be written to {topic!r}", got=str(error)) from error
    if record.value is not None and not isinstance(record.value, bytes):
        raise UsageError(
            f"a record cannot be written to {topic!r}",
            got=type(value).__name__,
            expected="an event, bytes or None",
        )
    return record


def _encoded(headers: Headers | None) -> RecordHeaders:
    return tuple((name, _bytes(text)) for name, text in (headers or {}).items())


def _bytes(text: Any) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
