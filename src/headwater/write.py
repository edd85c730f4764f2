"""Writer: events into a topic, and the position behind them: what a reader needs to find them again.

    with hw.Writer() as writer:
        position = writer.send(orders, [Order(...), Order(...)])

``wait(view, at_least=position)`` then blocks until a view has taken them in (``headwater.wait``).
"""

import re
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from headwater.access import Log
from headwater.client import Client, producer
from headwater.clock import Clock, SystemClock
from headwater.config import Settings, load
from headwater.decoders import from_json
from headwater.drain import Spilling
from headwater.errors import HeadwaterError, Overloaded, UsageError
from headwater.graph import Stream
from headwater.limit import Bucket, Limit
from headwater.outgoing import Blocking, Line, Record, Sending, Way
from headwater.partition import Partitioner
from headwater.position import Position
from headwater.schema import Event, encode, key_text, wire
from headwater.shed import NAMING, PRIORITIES, Shedding
from headwater.spill import Spill

__all__ = ["Counts", "Key", "Value", "Writer"]

TIMEOUT_S = 60.0
"""How long a record may wait for its acknowledgement."""
ANSWER_S = 10.0
"""How long the log may take to answer at all."""
QUEUE_RECORDS = 50_000
ON_THE_WAY = 4
"""A writer that sheds has a queue of its own: a fourth as many may be on their way, and cannot be shed any more."""
SPILL_BYTES = 256 << 20
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
GRACE_S = 5.0
"""Beyond the time-out the library itself gives every record back, and a little later at the latest."""

Value = Event | bytes | None
"""An event, or bytes as they are; None deletes a key of a compacted topic."""
Key = str | bytes | None
Keyed = tuple[Key, bytes | None]
Same = TypeVar("Same")


class Counts(msgspec.Struct, frozen=True):
    """What became of the records of a writer: given = sent + shed + waiting + failed, once its calls have returned.

    What a writer of the same name had left in the file counts as given to this one.
    """

    given: int
    sent: int
    """Acknowledged by the log."""
    shed: int
    """Left out, and named in ``<topic>.shed``."""
    waiting: int
    """In the file, to be sent."""
    failed: int
    """Of calls that have raised: not acknowledged, and perhaps in the log."""


class Writer:
    """Sends records and says where they are. Any thread may call it; give it back with `close`, or use ``with``.

    Idempotent: within one `send` no record is doubled, and those of one key keep their order. It is not atomic: when `send`
    raises, some of its records may be in the log. A log that is away, or refuses us, is an error when the writer is made.
    With ``limit`` and ``full`` it bounds what it gives the log, and says what becomes of the rest (``docs/overload.md``).
    """

    def __init__(
        self,
        log: Log | Settings | None = None,
        *,
        partitioner: Partitioner = "key",
        timeout: float = TIMEOUT_S,
        limit: str | None = None,
        full: Literal["block", "spill", "shed"] = "block",
        queue: int = QUEUE_RECORDS,
        wait: float = TIMEOUT_S,
        name: str = "",
        folder: str | Path | None = None,
        spill_bytes: int = SPILL_BYTES,
        clock: Clock | None = None,
    ) -> None:
        """``log`` is an address, an Access or Settings; without it, the settings of file and environment.

        ``limit``: how many records may leave, like ``"1000/s"`` or ``"1000/s burst 50"``. ``queue``: how many may be under way. ``full``: what
        becomes of one for which there is no room: it waits for at most ``wait`` seconds (``block``), goes into a file of at most
        ``spill_bytes`` under ``folder`` and ``name`` (``spill``), or the least important is left out (``shed``).
        """
        found = load() if log is None else log
        access = found.access if isinstance(found, Settings) else found
        _check_overload(full, queue, name)
        self._clock = clock or SystemClock()
        self._client = Client(access, timeout_s=min(timeout, ANSWER_S))
        self._client.partitions()  # what is wrong with the log is said now, not when the first record times out
        # Without lingering: a caller waits for every send, and many records fill their batches anyway.
        settings: dict[str, Any] = {"linger.ms": 0, "message.timeout.ms": int(timeout * 1000)}
        made = partial(producer, self._client.log, partitioner=partitioner)
        self._timeout_s = timeout
        self._given, self._sent, self._shed, self._failed = 0, 0, 0, 0
        self._counting = threading.Lock()
        bucket = Bucket(Limit.parse(limit), self._clock) if limit else None
        self._spilling: Spilling | None = None
        self._way: Way
        if full == "shed":
            line = Line(made(**settings), bucket, max(1, queue // ON_THE_WAY))
            names = producer(self._client.log, **settings | NAMING)
            self._way = Shedding(line, names, self._client, queue_max=queue, wait_s=wait, clock=self._clock)
            return
        line = Line(made(**settings), bucket, queue)
        if full == "block":
            self._way = Blocking(line, wait, self._clock)
            return
        spill = Spill(_spill_folder(found, folder) / name, spill_bytes)
        self._given = spill.waiting
        self._way = self._spilling = Spilling(
            line,
            spill,
            self._client,
            partial(made, **{"message.timeout.ms": 0}),
            in_flight_max=queue,
            wait_s=wait,
            clock=self._clock,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections; what was sent is acknowledged already, and what waits in a file stays for the next writer of the name."""
        self._way.close()
        self._client.close()

    def flush(self, timeout: float = TIMEOUT_S) -> None:
        """Waits until nothing is left in the file of a writer that spills; Overloaded if that takes longer."""
        if self._spilling is not None and not self._spilling.flush(timeout):
            left = self._spilling.waiting
            raise Overloaded(
                f"{left} records still wait in the file after {timeout:g} s", hint="is the log slow or away?"
            )

    def counts(self) -> Counts:
        """What became of the records so far."""
        waiting, drained = 0, 0
        if self._spilling is not None:
            waiting, drained = self._spilling.standing()
        with self._counting:
            return Counts(self._given, self._sent + drained, self._shed, waiting, self._failed)

    def send(
        self,
        to: Stream | str,
        events: Iterable[Value] | Event | bytes,
        *,
        key: Key | Callable[[Any], Key] = None,
        priority: int | Callable[[Any], int] = 0,
    ) -> Position:
        """Sends events to a stream or a topic; returns, when all are acknowledged, the next offset of each partition written.

        Events of a stream have the key that it declares. ``key`` is another one, for all of them or as a function of each;
        without it, what goes to a topic by name has none. ``priority``, 0 to 9, in the same way: 0 is shed first.
        """
        topic, key_of = _target(to, key)
        values = [events] if isinstance(events, Event | bytes) else events
        rank = priority if callable(priority) else _always(priority)
        return self._put(topic, ((key_of(event), _bytes(event, to), rank(event)) for event in values))

    def put(self, topic: str, records: Iterable[Keyed], *, priority: int = 0) -> Position:
        """The same for pairs of key and value, as bytes or text, one after the other as they come."""
        return self._put(topic, ((key, value, priority) for key, value in records))

    def _put(self, topic: str, records: Iterable[tuple[Key, bytes | None, int]]) -> Position:
        sending = Sending()
        try:
            for number, (key, value, priority) in enumerate(records, 1):
                if priority not in PRIORITIES:
                    raise UsageError("a priority is wrong", got=repr(priority), expected="0 to 9")
                sending.begun = number
                try:
                    self._way.give(Record(topic, key, value, priority), sending)
                except HeadwaterError:
                    raise
                except Exception as error:
                    raise UsageError(
                        f"record {number} cannot be sent to {topic!r}", got=str(error)
                    ) from error
            self._way.settle(sending, self._clock.monotonic() + self._timeout_s + GRACE_S)
        finally:
            self._count(sending)
        sending.check(topic)
        return Position({topic: self._ends(topic, sending.next)} if sending.next else {})

    def _count(self, sending: Sending) -> None:
        with self._counting:
            self._given += sending.begun
            self._sent += sending.sent
            self._shed += sending.shed
            self._failed += sending.failed + sending.waiting

    def _ends(self, topic: str, following: dict[int, int]) -> dict[int, int]:
        """A repeated request may be confirmed without an offset; the partition's end lies behind its records too."""
        if all(following.values()):
            return following
        ends = self._client.open_ends(topic, max(following) + 1)
        return {partition: offset or ends[partition] for partition, offset in following.items()}


def _check_overload(full: str, queue: int, name: str) -> None:
    if full not in {"block", "spill", "shed"}:
        raise UsageError("full is wrong", got=repr(full), expected="'block', 'spill' or 'shed'")
    if queue < 1:
        raise UsageError("queue is wrong", got=repr(queue), expected="at least 1 record")
    if full == "spill" and not NAME.fullmatch(name):
        raise UsageError(
            "a writer that spills needs a name",
            got=repr(name),
            expected="letters, digits, '.', '_' and '-'",
            hint="its file is found again by it: Writer(full='spill', name='till-7')",
        )


def _spill_folder(log: Log | Settings, folder: str | Path | None) -> Path:
    """Where the files of writers are: a folder that was named, or one beside the data of the settings."""
    if folder is None and not isinstance(log, Settings):
        raise UsageError("a writer that spills needs a folder", hint="give folder=, or Settings for the log")
    return Path(folder) if folder is not None else log.data / "spill"  # type: ignore[union-attr]


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


def _always(value: Same) -> Callable[[Any], Same]:
    return lambda _: value


def _declared(event: Value, stream: Stream) -> str:
    """The key that the stream's declaration gives an event; raw bytes are read for it."""
    if isinstance(event, Event):
        row = wire(event)
    else:
        try:
            row = from_json(event or b"", dict[str, Any])
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
