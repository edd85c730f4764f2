"""Writer: sends events into a topic and returns the position after them, by which a reader can wait for them.

    with hw.Writer() as writer:
        position = writer.send(orders, [Order(...), Order(...)])

``hw.wait(view, at_least=position)`` then blocks until the view includes them.
"""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from headwater.access import Log
from headwater.client.client import Client, producer
from headwater.client.partitioner import Partitioner, chooser
from headwater.clock import Clock, SystemClock
from headwater.config import Settings, load
from headwater.declare.schema import Event
from headwater.declare.spec import Stream
from headwater.errors import HeadwaterError, OverloadedError, UsageError
from headwater.position import Position
from headwater.write.delivery_headers import delivery_headers
from headwater.write.encoding import Key, Value, always, target_of, value_bytes
from headwater.write.outlet import Blocking, CallTally, FullPolicy, Outlet, ProducerRecord
from headwater.write.rate_limit import Bucket, Limit
from headwater.write.shedding import NOTICE_SETTINGS, Shedding
from headwater.write.spill_file import SpillFile
from headwater.write.spilling import Spilling

__all__ = ["Counts", "Key", "Value", "Writer"]

TIMEOUT_S = 60.0
"""How long a record may wait for its acknowledgement."""
ANSWER_S = 10.0
"""How long the log may take to answer at all."""
QUEUE_RECORDS = 50_000
IN_FLIGHT_SHARE = 4
"""A writer that sheds has a queue of its own, and a fourth as many records in flight.

Records in flight cannot be shed any more.
"""
SPILL_BYTES = 256 << 20
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
GRACE_S = 5.0
"""The library gives up every record after the time-out, or a little later."""

Keyed = tuple[Key, bytes | None]


class Counts(msgspec.Struct, frozen=True):
    """What became of the records of a writer.

    Once its calls have returned, given = sent + shed + waiting + failed. Records that an earlier writer of
    the same name had left in the file count as given to this one.
    """

    given: int
    sent: int
    """Acknowledged by the log."""
    shed: int
    """Left out, with a notice in ``<topic>.shed``."""
    waiting: int
    """In the file, to be sent."""
    failed: int
    """Of calls that have raised: not acknowledged, but perhaps in the log."""


class Writer:
    """Sends records and returns their position.

    Any thread may call it. End it with `close`, or use ``with``. Idempotent: within one `send` no record is
    duplicated, and the records of a key keep their order. Not atomic: if `send` raises, some of its records
    may be in the log. A log that is away, or refuses us, is an error when the writer is made. With ``limit``
    and ``full`` it bounds what it gives the log, and handles the rest (``docs/overload.md``).
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
        """``log`` is an address, an Access or Settings; by default the settings of file and environment.

        ``limit`` is the rate at which records may leave, like ``"1000/s"`` or ``"1000/s burst 50"``;
        ``queue`` is how many may be in flight. A record for which there is no room waits for at most ``wait``
        seconds (``full="block"``), goes into a file of at most ``spill_bytes`` under ``folder`` and ``name``
        (``"spill"``), or the least important record is left out (``"shed"``).
        """
        source = load() if log is None else log
        access = source.access if isinstance(source, Settings) else source
        _check_overload(full, queue, name)
        chooser(partitioner)  # raises before anything asks the log
        self._clock = clock or SystemClock()
        bucket = Bucket(Limit.parse(limit), self._clock) if limit else None
        self._client = Client(access, timeout_s=min(timeout, ANSWER_S))
        self._client.partitions()  # raises now, not at the first record, if something is wrong with the log
        # Without lingering: a caller waits for every send, and many records fill their batches anyway.
        settings: dict[str, Any] = {"linger.ms": 0, "message.timeout.ms": int(timeout * 1000)}
        make = partial(producer, self._client.log, partitioner=partitioner)
        self._timeout_s = timeout
        self._given, self._sent, self._shed, self._failed = 0, 0, 0, 0
        self._counting = threading.Lock()
        self._spilling: Spilling | None = None
        self._policy: FullPolicy
        if full == "shed":
            outlet = Outlet(make(**settings), bucket, max(1, queue // IN_FLIGHT_SHARE))
            notices = producer(self._client.log, **settings | NOTICE_SETTINGS)
            self._policy = Shedding(
                outlet, notices, self._client, queue_max=queue, wait_s=wait, clock=self._clock
            )
            return
        outlet = Outlet(make(**settings), bucket, queue)
        if full == "block":
            self._policy = Blocking(outlet, wait, self._clock)
            return
        spill = SpillFile(_spill_folder(source, folder) / name, spill_bytes)
        self._given = spill.waiting
        self._policy = self._spilling = Spilling(
            outlet,
            spill,
            self._client,
            partial(make, **{"message.timeout.ms": 0}),
            in_flight_max=queue,
            wait_s=wait,
            clock=self._clock,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections.

        Everything sent is acknowledged; records in a file stay for the next writer of the name.
        """
        self._policy.close()
        self._client.close()

    def flush(self, timeout: float = TIMEOUT_S) -> None:
        """Waits until the file of a writer that spills is empty; OverloadedError if that takes longer."""
        if self._spilling is not None and not self._spilling.flush(timeout):
            left = self._spilling.waiting
            raise OverloadedError(
                f"{left} records still wait in the file after {timeout:g} s", hint="is the log slow or away?"
            )

    def counts(self) -> Counts:
        """What became of the records so far."""
        waiting, drained = 0, 0
        if self._spilling is not None:
            waiting, drained = self._spilling.state()
        with self._counting:
            return Counts(self._given, self._sent + drained, self._shed, waiting, self._failed)

    def send(
        self,
        to: Stream | str,
        events: Iterable[Value] | Event | bytes,
        *,
        key: Key | Callable[[Any], Key] = None,
        priority: int | Callable[[Any], int] | None = None,
        delay: str = "",
        at: datetime | None = None,
        expires: str | datetime | None = None,
        id: str | Callable[[Any], str] = "",  # noqa: A002 (the word users expect)
        headers: Mapping[str, str | bytes | None] | None = None,
    ) -> Position:
        """Sends events to a stream or a topic.

        Returns the next offset of each partition, when all are acknowledged. Events of a stream have the key
        that it declares. ``key`` replaces it, for all events or as a function of each; without it, records of
        a topic by name have no key.

        For queues: an event is delivered after ``delay`` (``"10 minutes"``) or ``at`` a time, and not after
        ``expires``; events of one ``id`` are delivered once, by queues that look for duplicates.
        ``priority``, 0 to 9, is given as a number or as a function of each event: 9 is delivered first, and
        when the writer sheds records, 0 is left out first.
        """
        topic, key_of = target_of(to, key)
        values = [events] if isinstance(events, Event | bytes) else events
        own = tuple(
            (name, text.encode() if isinstance(text, str) else text) for name, text in (headers or {}).items()
        )
        headers_of = partial(delivery_headers, self._clock.now_ms(), delay=delay, at=at, expires=expires)
        if callable(priority) or callable(id):
            headers_of()  # raises before anything is sent
            rank_of = priority if callable(priority) else always(priority)
            id_of = id if callable(id) else always(id)
            records = (
                ProducerRecord(
                    topic,
                    key_of(event),
                    value_bytes(event, to),
                    rank_of(event) or 0,
                    headers=own + headers_of(priority=rank_of(event), id=id_of(event)),
                )
                for event in values
            )
            return self._put(topic, records)
        own += headers_of(priority=priority, id=id)
        rank = priority or 0
        return self._put(
            topic,
            (
                ProducerRecord(topic, key_of(event), value_bytes(event, to), rank, headers=own)
                for event in values
            ),
        )

    def put(self, topic: str, records: Iterable[Keyed], *, priority: int = 0) -> Position:
        """Sends pairs of key and value, as bytes or text, in their order; returns the same as `send`."""
        delivery_headers(0, priority=priority)  # raises if it is wrong
        return self._put(topic, (ProducerRecord(topic, key, value, priority) for key, value in records))

    def _put(self, topic: str, records: Iterable[ProducerRecord]) -> Position:
        tally = CallTally()
        try:
            for number, record in enumerate(records, 1):
                tally.begun = number
                try:
                    self._policy.give(record, tally)
                except HeadwaterError:
                    raise
                except Exception as error:
                    raise UsageError(
                        f"record {number} cannot be sent to {topic!r}", got=str(error)
                    ) from error
            self._policy.settle(tally, self._clock.monotonic() + self._timeout_s + GRACE_S)
        finally:
            self._count(tally)
        tally.check(topic)
        return Position({topic: self._ends(topic, tally.next)} if tally.next else {})

    def _count(self, tally: CallTally) -> None:
        with self._counting:
            self._given += tally.begun
            self._sent += tally.sent
            self._shed += tally.shed
            self._failed += tally.failed + tally.waiting

    def _ends(self, topic: str, following: dict[int, int]) -> dict[int, int]:
        """A repeated request may be acknowledged without an offset.

        The end of the partition is after its records too.
        """
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
            hint="the next writer of the name finds the file by it: Writer(full='spill', name='till-7')",
        )


def _spill_folder(log: Log | Settings, folder: str | Path | None) -> Path:
    """The folder for the files of writers: the given one, or one next to the data of the settings."""
    if folder is None and not isinstance(log, Settings):
        raise UsageError("a writer that spills needs a folder", hint="give folder=, or Settings for the log")
    return Path(folder) if folder is not None else log.data / "spill"  # type: ignore[union-attr]
