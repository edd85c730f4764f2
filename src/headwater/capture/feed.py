"""Feed: the one loop of all captures: records of a database into its change topics, with the position behind them in the same transaction.

The position stands in the compacted topic ``<name>.capture``. At every start the producer's name is claimed first, which ends what a
predecessor has left open and shuts out one that still lives; only then is the position read. So whatever is killed, whenever: a reader
of committed records sees every transaction of the database once, whole, and in order.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from headwater.access import Log, access
from headwater.capture.alarm import Alarm, Retaining
from headwater.capture.batch import Batch
from headwater.capture.completion import Completion
from headwater.capture.control import Command, Control, Notice
from headwater.capture.forgotten import Forgotten
from headwater.capture.ledger import State, last_state, schemas
from headwater.capture.outbox import Outbox
from headwater.capture.publisher import Publisher
from headwater.capture.source import Columns, Part, Record, Source
from headwater.client import Client
from headwater.clock import Clock, SystemClock
from headwater.errors import Away, CaptureError, Fenced, HeadwaterError, MachineError
from headwater.formats import CAPTURE
from headwater.keep import STATE

__all__ = ["Askable", "Feed", "Recalling", "change", "restart"]

COMMIT_RECORDS = 50_000
COMMIT_S = 0.5
"""A transaction of the log takes in transactions of the database until then, while they come without a pause."""
FULL_RECORDS = 1_000
"""A part with fewer records says that the database has no more at the moment: they are committed at once."""
HEARTBEAT_S = 5.0
"""So often the position moves on while nothing of ours is changed: the database need not keep its log."""
BACKOFF_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
PAUSED_S = 0.2
REMOVED_S = 2.0
"""So long the state may lag behind the moment in which somebody who removes the capture has shut us out."""
FOREVER = {"retention.ms": "-1"}

logger = logging.getLogger(__name__)


@runtime_checkable
class Recalling(Protocol):
    """A source that wants to know which versions of its tables' schemas are in ``<name>.schema`` already."""

    def recall(self, records: list[bytes]) -> None:
        """The values of the topic, oldest first; called before each `Source.read`."""


@runtime_checkable
class Askable(Protocol):
    """A source that can be asked for rows while it runs, and that has something to tell."""

    notices: list[Notice]
    """What has happened since the loop looked last."""

    def asked(self, position: str, command: Command) -> str:
        """The position with the command's wish in it; CaptureError if it cannot be."""


class Feed:
    """One capture. `run` ends when ``stop`` is set; CaptureError when somebody must act, Fenced when a successor is at work.

    A database or a log that is away is waited for. One that was removed ends as well, or with ``stays`` waits until it is added
    again. ``on_state`` is called after each commit. Rows that are kept beside it (`Completion`) are in ``folder``.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        log: Log,
        *,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        outbox: Outbox | None = None,
        folder: Path | None = None,
        stays: bool = False,
        clock: Clock | None = None,
        on_state: Callable[[State], None] | None = None,
    ) -> None:
        self.name = name
        self.state = State()
        self._source = source
        self._log = access(log)
        self._client = Client(log)
        self._partitions = partitions
        self._outbox = outbox
        self._stays = stays
        self._config = FOREVER if config is None else config
        self._clock = clock or SystemClock()
        self._on_state = on_state
        self._random = random.Random()  # noqa: S311  jitter
        self._topics: set[str] = set()
        self._failures = 0
        apart = None if outbox is None else outbox.topic
        self._completion = Completion(name, source, self._client, folder, apart)
        self._alarm = Alarm(name, source) if isinstance(source, Retaining) else None
        self._notices: list[Notice] = []

    def run(self, stop: threading.Event) -> None:
        """Reads, publishes and goes on, for ever."""
        self._publisher = Publisher(self._log, self.name, stop)
        try:
            while not stop.is_set():
                try:
                    if not self._alone(stop):
                        return
                except (Away, MachineError) as error:
                    self._wait(stop, error)
                except (CaptureError, Fenced) as error:
                    self._publisher.abandon()
                    stopped = self._alarm is not None and self._alarm.stopped
                    if stopped or not self._was_removed(REMOVED_S if isinstance(error, Fenced) else 0):
                        raise
        finally:
            self._publisher.close()
            self._completion.close()
            self._source.close()
            self._client.close()

    def _wait(self, stop: threading.Event, error: Exception) -> None:
        self._publisher.abandon()
        self._source.close()
        if stop.is_set():
            return
        pause = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)] * self._random.uniform(0.5, 1.5)
        self._failures += 1
        logger.warning("capture %s: %s; again in %.1f s", self.name, error, pause)
        stop.wait(pause)

    def _alone(self, stop: threading.Event) -> bool:
        """An attempt. Fenced, not CaptureError, where another process has committed since: what we lack of the database is in the log by then."""
        try:
            return self._attempt(stop)
        except CaptureError as error:
            if self._alarm is None or not self._alarm.stopped:
                state = last_state(self._log, self.name) or State()
                if state != self.state and not state.removed:
                    what, hint = f"capture {self.name} runs elsewhere", "a capture has one process"
                    raise Fenced(what, hint=hint) from error
            raise

    def _was_removed(self, wait_s: float = 0) -> bool:
        """Whether the log says so; who removes a capture shuts us out a moment before it does."""
        limit = self._clock.monotonic() + wait_s
        with contextlib.suppress(MachineError):
            while not (removed := (last_state(self._log, self.name) or State()).removed):
                if self._clock.monotonic() >= limit:
                    break
                time.sleep(PAUSED_S)
            return removed
        return False

    def _attempt(self, stop: threading.Event) -> bool:
        """From the position in the log until something goes wrong, or the state was changed by somebody else; False at the end of all."""
        if self._failures:
            self._look()  # the database keeps its log for us also while ours is away
        self._client.ensure_topics([f"{self.name}.capture"], 1, STATE)
        own = ("schema", "control", "notifications")
        self._client.ensure_topics([f"{self.name}.{each}" for each in own], 1, FOREVER)
        self._publisher.claim()
        self.state = last_state(self._log, self.name) or State()
        self._topics = set(self._client.partitions())
        self._notices = []
        with contextlib.closing(Control(self._log, self.name, self.state.control)) as control:
            if self.state.removed:
                return self._away(stop, control)
            if not self._completion.catch_up(lambda: self._goes_on(stop)):
                return False
            while not stop.is_set():
                command = self._rest(stop, control) if self.state.paused else self._follow(stop, control)
                if command is not None and command.do == "remove" and self._was_removed():
                    return True
                if command is not None:
                    self._obey(command, control.offset)
        return False

    def _away(self, stop: threading.Event, control: Control) -> bool:
        """Removed: nothing of ours is in the database, and nothing may come there again."""
        self._source.close()
        again = f"`headwater capture add {self.name} app.py` brings it back"
        logger.warning(
            "capture %s was removed and %s; %s", self.name, "waits" if self._stays else "ends", again
        )
        while self._stays and not stop.wait(PAUSED_S):
            command = control.next()
            if command is not None and command.do == "add":
                return True
        return False

    def _follow(self, stop: threading.Event, control: Control) -> Command | None:
        """Publishes until a command comes: whatever it is, reading begins again behind it."""
        if isinstance(self._source, Recalling):
            self._source.recall(schemas(self._client, self.name))
        if isinstance(self._source, Askable):
            self._source.notices.clear()
        batch = Batch(self._clock.monotonic())
        with contextlib.closing(self._source.read(self.state.position)) as parts:  # type: ignore[type-var]
            whole = self._completion.through(parts)
            routed = whole if self._outbox is None else self._outbox.through(whole)
            forgotten = Forgotten(self._client, self._publisher.flush, self._stay, self._is_compacted)
            for part in forgotten.through(routed):
                self._take(part, batch)
                self._look()
                if stop.is_set():
                    if batch.whole:
                        self._commit(batch)
                    return None
                if self.state.position is not None and batch.whole and not batch.rows:
                    self._watch()
                    if self._notices:
                        batch.position = batch.position or self.state.position
                        self._commit(batch)
                    if (command := control.next()) is not None:
                        return command
        return None

    def _goes_on(self, stop: threading.Event) -> bool:
        self._look()
        return not stop.is_set()

    def _stay(self) -> None:
        """Says again what was said last, so that the database does not give us up."""
        if self.state.position is not None:
            self._source.confirm(self.state.position)

    def _rest(self, stop: threading.Event, control: Control) -> Command | None:
        """Paused: the database keeps its log for us, and is asked how much."""
        self._source.close()
        while not stop.wait(PAUSED_S):
            self._watch()
            if self._notices or self._retained != self.state.retained_bytes:
                state = msgspec.structs.replace(self.state, retained_bytes=self._retained)
                self._save(msgspec.structs.replace(state, lag_bytes=getattr(self._source, "lag_bytes", 0)))
            if (command := control.next()) is not None:
                return command
        return None

    @property
    def _retained(self) -> int:
        return 0 if self._alarm is None else self._alarm.retained_bytes

    def _look(self) -> None:
        """Asks now and then how much the database keeps for us; CaptureError when it is more than we may cost it."""
        if self._alarm is None:
            return
        self._notices += self._alarm.look(self._clock.monotonic(), self._clock.now_ms())
        if not self._alarm.is_over:
            return
        error = self._alarm.stop()
        self._publisher.abandon()
        with contextlib.suppress(HeadwaterError):  # the log may be what is away
            self._publisher.claim()
            self._save(last_state(self._log, self.name) or State())
        raise error

    def _watch(self) -> None:
        self._look()
        if isinstance(self._source, Askable) and self._source.notices:
            self._notices += self._source.notices
            self._source.notices.clear()

    def _obey(self, command: Command, offset: int) -> None:
        state, now_ms = self.state, self._clock.now_ms()
        if command.do == "snapshot":
            try:
                if not isinstance(self._source, Askable) or state.position is None:
                    raise CaptureError("this database has no snapshots of single tables")
                position = self._source.asked(state.position, command)
                state = msgspec.structs.replace(state, position=position)
            except CaptureError as error:
                logger.warning("capture %s: %s", self.name, error)
                details = {"id": command.id}
                self._notices.append(Notice("snapshot refused", now_ms, command.table, str(error), details))
        elif command.do in {"pause", "resume"} and state.paused != (command.do == "pause"):
            state = msgspec.structs.replace(state, paused=command.do == "pause")
            self._notices.append(Notice("paused" if state.paused else "resumed", now_ms))
        self._save(msgspec.structs.replace(state, control=offset, at_ms=now_ms))

    def _save(self, state: State) -> None:
        """A transaction of the log with the state and the notices alone."""
        self._publisher.begin()
        self._end(state)
        self._show()

    def _end(self, state: State) -> None:
        """Ends the transaction with what has happened, and where that leaves us."""
        key, topic = self.name.encode(), f"{self.name}.notifications"
        told = [Record(topic, key, msgspec.json.encode(notice), notice.at_ms) for notice in self._notices]
        self._publisher.send([*told, _record(self.name, state)])
        self._publisher.commit()
        self.state, self._notices = state, []

    def _show(self) -> None:
        if self._on_state is not None:
            self._on_state(self.state)

    def _take(self, part: Part, batch: Batch) -> None:
        if part.records:
            if not batch.rows:
                batch.begun = self._clock.monotonic()
            self._begin(batch)
            self._publish(part.records, batch)
        if part.position is not None and part.position != self.state.position:
            batch.position = part.position
        batch.whole = part.position is not None or (batch.whole and not part.records)
        if batch.position is None or not batch.whole:
            return
        age = self._clock.monotonic() - batch.begun
        if batch.rows:
            if len(part.records) < FULL_RECORDS or batch.rows >= COMMIT_RECORDS or age >= COMMIT_S:
                self._commit(batch)
        elif age >= HEARTBEAT_S or self.state.position is None:
            self._commit(batch)

    def _begin(self, batch: Batch) -> None:
        if not batch.open:
            self._publisher.begin()
            batch.open = True

    def _publish(self, records: Sequence[Record], batch: Batch) -> None:
        for topic in {records.topic} if isinstance(records, Columns) else {each.topic for each in records}:
            self._ensure(topic)
        self._publisher.send(records)
        batch.rows += len(records)
        batch.at_ms = records[-1].committed_ms or batch.at_ms

    def _ensure(self, topic: str) -> None:
        if topic not in self._topics:
            self._client.ensure_topics([topic], self._partitions, self._config)
            self._topics.add(topic)

    def _is_compacted(self, topic: str) -> bool:
        self._ensure(topic)
        return "compact" in self._client.config(topic)["cleanup.policy"]

    def _commit(self, batch: Batch) -> None:
        if batch.position is None:
            return
        self._begin(batch)
        self._watch()
        now_ms = self._clock.now_ms()
        state = State(
            position=batch.position,
            rows=self.state.rows + batch.rows,
            transactions=self.state.transactions + 1,
            at_ms=now_ms,
            lag_ms=max(0, now_ms - batch.at_ms) if batch.rows and batch.at_ms else 0,
            lag_bytes=getattr(self._source, "lag_bytes", 0),
            retained_bytes=self._retained,
            control=self.state.control,
            format=CAPTURE.newest,
        )
        position = batch.position
        self._end(state)
        self._failures = 0
        self._source.confirm(position)
        self._completion.committed()
        batch.reset(self._clock.monotonic())
        self._show()


def restart(log: Log, name: str, position: str) -> None:
    """Makes a capture go on from another position with its next start; a process of it that runs is shut out."""
    change(log, name, position=position)


def change(log: Log, name: str, **fields: object) -> None:
    """Gives a capture another state; a process of it that runs is shut out."""
    client = Client(log)
    client.ensure_topics([f"{name}.capture"], 1, STATE)
    client.close()
    claimed = Publisher(log, name)
    try:
        claimed.claim()
        state = last_state(log, name) or State()
        claimed.begin()
        now_ms = SystemClock().now_ms()
        claimed.send([_record(name, msgspec.structs.replace(state, at_ms=now_ms, **fields))])
        claimed.commit()
    finally:
        claimed.close()


def _record(name: str, state: State) -> Record:
    return Record(f"{name}.capture", name.encode(), msgspec.json.encode(state), state.at_ms)
