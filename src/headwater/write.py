"""Writer: events into a topic, and the position behind them: what a reader needs to find them again.

    with hw.Writer() as writer:
        position = writer.send(orders, [Order(...), Order(...)])

``wait(view, at_least=position)`` then blocks until a view has taken them in (``headwater.wait``).
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, Self

import msgspec
from confluent_kafka import KafkaError

from headwater.access import Log
from headwater.client import Client, producer
from headwater.clock import SystemClock
from headwater.config import Settings, load
from headwater.errors import HeadwaterError, MachineError, UsageError
from headwater.graph import Stream
from headwater.partition import Partitioner
from headwater.position import Position
from headwater.schema import Event, encode, key_text, wire

__all__ = ["Key", "Value", "Writer"]

TIMEOUT_S = 60.0
"""How long a record may wait for its acknowledgement."""
ANSWER_S = 10.0
"""How long the log may take to answer at all."""
IN_FLIGHT_MAX = 50_000
POLL_S = 0.02
GRACE_S = 5.0
"""Beyond the time-out the library itself gives every record back, and a little later at the latest."""

Value = Event | bytes | None
"""An event, or bytes as they are; None deletes a key of a compacted topic."""
Key = str | bytes | None
Keyed = tuple[Key, bytes | None]


class Writer:
    """Sends records and says where they are. Any thread may call it; give it back with `close`, or use ``with``.

    Idempotent: within one `send` no record is doubled, and those of one key keep their order. It is not atomic: when `send`
    raises, some of its records may be in the log. A log that is away, or refuses us, is an error when the writer is made.
    """

    def __init__(
        self,
        log: Log | Settings | None = None,
        *,
        partitioner: Partitioner = "key",
        timeout: float = TIMEOUT_S,
    ) -> None:
        """``log`` is an address, an Access or Settings; without it, the settings of file and environment."""
        found = load() if log is None else log
        access = found.access if isinstance(found, Settings) else found
        self._client = Client(access, timeout_s=min(timeout, ANSWER_S))
        self._client.partitions()  # what is wrong with the log is said now, not when the first record times out
        # Without lingering: a caller waits for every send, and many records fill their batches anyway.
        settings = {"linger.ms": 0, "message.timeout.ms": int(timeout * 1000)}
        self._producer = producer(self._client.log, partitioner=partitioner, **settings)
        self._timeout_s = timeout
        # A partitioner of ours counts, and so belongs to one thread at a time.
        self._choosing = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections; what was sent is acknowledged already."""
        self._client.close()

    def send(
        self,
        to: Stream | str,
        events: Iterable[Value] | Event | bytes,
        *,
        key: Key | Callable[[Any], Key] = None,
    ) -> Position:
        """Sends events to a stream or a topic; returns, when all are acknowledged, the next offset of each partition written.

        Events of a stream have the key that it declares. ``key`` is another one, for all of them or as a function of each;
        without it, what goes to a topic by name has none.
        """
        topic, key_of = _target(to, key)
        values = [events] if isinstance(events, Event | bytes) else events
        return self.put(topic, ((key_of(event), _bytes(event, to)) for event in values))

    def put(self, topic: str, records: Iterable[Keyed]) -> Position:
        """The same for pairs of key and value, as bytes or text, one after the other as they come."""
        sending = _Sending()
        for number, (key, value) in enumerate(records, 1):
            try:
                self._produce(topic, key, value, sending)
            except HeadwaterError:
                raise
            except Exception as error:
                raise UsageError(f"record {number} cannot be sent to {topic!r}", got=str(error)) from error
            sending.begun = number
        clock = SystemClock()
        limit = clock.monotonic() + self._timeout_s + GRACE_S
        while sending.waiting and clock.monotonic() < limit:
            self._producer.poll(POLL_S)
        sending.check(topic)
        return Position({topic: self._ends(topic, sending.next)} if sending.next else {})

    def _produce(self, topic: str, key: Key, value: bytes | None, sending: "_Sending") -> None:
        while True:
            while len(self._producer) >= IN_FLIGHT_MAX:
                self._producer.poll(POLL_S)
            try:
                with self._choosing:
                    self._producer.produce(topic, value, key, on_delivery=sending.done)
            except BufferError:  # full of bytes before it is full of records
                self._producer.poll(POLL_S)
            else:
                return

    def _ends(self, topic: str, following: dict[int, int]) -> dict[int, int]:
        """A repeated request may be confirmed without an offset; the partition's end lies behind its records too."""
        if all(following.values()):
            return following
        ends = self._client.open_ends(topic, max(following) + 1)
        return {partition: offset or ends[partition] for partition, offset in following.items()}


class _Sending:
    """The records of one call, and what became of them; acknowledgements may come in any thread."""

    def __init__(self) -> None:
        self.begun = 0
        self.next: dict[int, int] = {}
        """By partition; 0 where the log did not tell."""
        self._ended = 0
        self._failures = 0
        self._reason: KafkaError | None = None
        self._untold: set[int] = set()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        return self.begun - self._ended

    def done(self, error: KafkaError | None, message: Any) -> None:
        with self._lock:
            self._ended += 1
            if error is not None:
                self._failures += 1
                self._reason = self._reason or error
                return
            partition, offset = message.partition(), message.offset()
            if offset is None or offset < 0:
                self._untold.add(partition)
            told = partition not in self._untold
            self.next[partition] = max(self.next.get(partition, 0), offset + 1) if told else 0

    def check(self, topic: str) -> None:
        lost = self._failures + self.waiting
        if lost:
            got = self._reason.str() if self._reason else "no answer"
            raise MachineError(f"{lost} of {self.begun} records for {topic!r} were not acknowledged", got=got)


def _target(to: Stream | str, key: Key | Callable[[Any], Key]) -> tuple[str, Callable[[Any], Key]]:
    """The topic, and what gives each event its key."""
    given = key if callable(key) else _always(key)
    if isinstance(to, str):
        return to, given
    if to.pattern is not None:
        raise UsageError(
            f"stream {to.name!r} reads many topics",
            got=f"pattern {to.pattern!r}",
            hint="name the one to write to: send('topic', events, key=…)",
        )
    return to.topic, given if key is not None else lambda event: _declared(event, to)


def _always(key: Key) -> Callable[[Any], Key]:
    return lambda _: key


def _declared(event: Value, stream: Stream) -> str:
    """The key that the stream's declaration gives an event; raw bytes are read for it."""
    if isinstance(event, Event):
        row = wire(event)
    else:
        try:
            row = msgspec.json.decode(event or b"", type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UsageError(
                f"a record for stream {stream.name!r} has no key", got=str(error), hint="give key=…"
            ) from error
    missing = [name for name in stream.key if name not in row]
    if missing:
        raise UsageError(f"a record for stream {stream.name!r} has no field {missing[0]!r}")
    return key_text([row[name] for name in stream.key])


def _bytes(event: Value, to: Stream | str) -> bytes | None:
    if isinstance(to, Stream) and isinstance(event, Event) and not isinstance(event, to.type):
        raise UsageError(
            f"an event is not of stream {to.name!r}", got=type(event).__name__, expected=to.type.__name__
        )
    return encode(event) if isinstance(event, Event) else event
