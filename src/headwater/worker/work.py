"""Work: what a handler knows about its message besides the message, and what it writes."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from headwater.clock import Clock, SystemClock
from headwater.declare.spec import Stream
from headwater.errors import UsageError
from headwater.record import Record
from headwater.write.delivery_headers import delivery_headers
from headwater.write.encoding import Key, Value, target_of, value_bytes

__all__ = ["Headers", "Work", "Written"]

Headers = Mapping[str, str | bytes | None]


class Written(NamedTuple):
    """A record that a handler writes, and the stream that declares its topic."""

    topic: str
    record: Record
    stream: Stream | None = None


class Work:
    """The second parameter of a worker's handler.

    What is written with it is in the log once the handler has returned, and if it raises it never is. Tests
    make one with ``hw.Work()`` and look at ``written``.
    """

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
        self.written: list[Written] = []
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
        encoded_headers = tuple((name, _bytes(text)) for name, text in (headers or {}).items())
        encoded_headers += delivery_headers(
            self._clock.now_ms(), delay=delay, at=at, priority=priority, expires=expires, id=id
        )
        try:
            record = Record(_bytes(key_of(value)), value_bytes(value, to), encoded_headers)
        except (TypeError, AttributeError) as error:
            raise UsageError(f"a record cannot be written to {topic!r}", got=str(error)) from error
        if record.value is not None and not isinstance(record.value, bytes):
            raise UsageError(
                f"a record cannot be written to {topic!r}",
                got=type(value).__name__,
                expected="an event, bytes or None",
            )
        self.written.append(Written(topic, record, to if isinstance(to, Stream) else None))

    def _check_open(self) -> None:
        if self._is_over:
            raise UsageError(f"the handler of message {self.id} has ended, and cannot write any more")

    def end(self) -> list[Written]:
        """What was written; nothing more can be. Called by the worker."""
        self._is_over = True
        return self.written


def _bytes(text: Any) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
