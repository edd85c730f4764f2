"""Feed: the loop of all captures, which publishes the records of a database with the position after them.

Records and position are in one transaction of the log; the position is in the compacted topic
``<name>.capture``. Every start first claims the producer's name, which aborts an open transaction of an
earlier process and fences it, and only then reads the position. So a reader of committed records sees every
transaction of the database once, whole, and in order, whichever process is killed at whatever time.
"""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from headwater.access import Log, access
from headwater.capture.loop.completion import Completion
from headwater.capture.loop.control import Control
from headwater.capture.loop.log_writer import LogWriter
from headwater.capture.loop.phases import COMMANDS, LIFE, Outcome, Phase
from headwater.capture.loop.retention_alarm import RetentionAlarm, RetentionSource
from headwater.capture.loop.row_deletes import RowDeletes
from headwater.capture.messages import Command, Notice
from headwater.capture.outbox_router import OutboxRouter
from headwater.capture.source import SchemaSource, SnapshotSource, Source
from headwater.capture.state import State, last_state, schemas
from headwater.client.client import Client
from headwater.clock import Clock, SystemClock
from headwater.errors import CaptureError, FencedError, HeadwaterError, MachineError, UnavailableError
from headwater.formats import CAPTURE

__all__ = ["Feed"]

BACKOFF_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
PAUSED_S = 0.2
REMOVED_S = 2.0
"""How long after fencing this process `headwater capture remove` may take to store the state."""

logger = logging.getLogger(__name__)


class Feed:
    """One capture, which goes through the phases of `LIFE`.

    `run` returns when ``stop`` is set. It raises CaptureError if an operator must act, and FencedError if
    another process runs the capture. It waits for a database or a log that does not answer. It returns if the
    capture was removed, or with ``stays`` waits until it is added again. ``on_state`` is called after each
    commit. Files (`Completion`) are in ``folder``.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        log: Log,
        *,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        outbox: OutboxRouter | None = None,
        folder: Path | None = None,
        stays: bool = False,
        clock: Clock | None = None,
        on_state: Callable[[State], None] | None = None,
    ) -> None:
        self.name = name
        self._source = source
        self._log = access(log)
        self._client = Client(log)
        self._partitions = partitions
        self._outbox = outbox
        self._stays = stays
        self._config = config
        self._clock = clock or SystemClock()
        self._on_state = on_state
        self._random = random.Random()  # noqa: S311  jitter
        self._failures = 0
        self.phase = Phase.STARTING
        self.trouble = ""
        """Why it waits for the database or the log; empty while both answer. Any thread may look."""
        self.round_at = self._clock.monotonic()
        """When it has last got something from its database, if only the news that there is nothing new."""
        self._error: HeadwaterError | None = None
        """The error with which the last phase has ended."""
        outbox_topic = None if outbox is None else outbox.topic
        self._completion = Completion(name, source, self._client, folder, outbox_topic)
        self._alarm = RetentionAlarm(name, source) if isinstance(source, RetentionSource) else None
        self._writer: LogWriter
        self._stop: threading.Event
        self._control: Control | None = None
        self._phases: dict[Phase, Callable[[], Outcome]] = {
            Phase.STARTING: self._start,
            Phase.READING: self._read,
            Phase.PAUSED: self._pause,
            Phase.WAITING: self._wait,
            Phase.REMOVED: self._wait_for_add,
        }

    @property
    def state(self) -> State:
        """The last committed state."""
        return self._writer.state if hasattr(self, "_writer") else State()

    def run(self, stop: threading.Event) -> None:
        """Runs the capture, from phase to phase."""
        self._stop = stop
        self._writer = LogWriter(
            self.name,
            self._log,
            self._client,
            partitions=self._partitions,
            config=self._config,
            clock=self._clock,
            stopping=stop,
            on_state=self._on_state,
        )
        phase = self.phase = Phase.STARTING
        try:
            while LIFE[phase]:
                phase = self.phase = LIFE[phase][self._outcome(phase)]
        finally:
            self._writer.close()
            self._close_control()
            self._completion.close()
            self._source.close()
            self._client.close()
        if phase is not Phase.ENDED and self._error is not None:
            raise self._error

    def _outcome(self, phase: Phase) -> Outcome:
        """Runs a phase to its end."""
        try:
            try:
                return self._phases[phase]()
            except (CaptureError, FencedError) as error:
                self._writer.abandon()
                return self._failure(error)
        except (UnavailableError, MachineError) as error:
            self._error = error
            return Outcome.UNAVAILABLE

    def _failure(self, error: CaptureError | FencedError) -> Outcome:
        """The outcome of a phase with an error that trying again does not resolve."""
        self._error = error
        if self._alarm is not None and self._alarm.stopped:
            return Outcome.LIMIT
        if isinstance(error, CaptureError) and self._was_overtaken():
            self._error = FencedError(f"capture {self.name} runs elsewhere", hint="a capture has one process")
            self._error.__cause__ = error
        fenced = isinstance(self._error, FencedError)
        if self._was_removed(REMOVED_S if fenced else 0):
            return Outcome.REMOVE
        return Outcome.TAKEN_OVER if fenced else Outcome.LOST

    def _was_overtaken(self) -> bool:
        """Whether another process has committed since: then the log has the changes that this one lacks."""
        state = last_state(self._log, self.name) or State()
        return state != self.state and not state.removed

    def _was_removed(self, wait_s: float = 0) -> bool:
        """Whether the state says so; `headwater capture remove` fences this process before it stores it."""
        limit = self._clock.monotonic() + wait_s
        with contextlib.suppress(MachineError):
            while not (removed := (last_state(self._log, self.name) or State()).removed):
                if self._clock.monotonic() >= limit:
                    break
                time.sleep(PAUSED_S)
            return removed
        return False

    # ---- the phases ----------------------------------------------------------------------------------------

    def _start(self) -> Outcome:
        if self._stop.is_set():
            return Outcome.STOP
        if self._failures:
            self._check_retention()  # the database retains its log also while the log does not answer
        state = self._writer.claim()
        self._close_control()
        self._control = Control(self._log, self.name, state.control)
        if state.removed:
            return Outcome.IS_REMOVED
        if not self._completion.catch_up(self._continues):
            return Outcome.STOP
        return Outcome.IS_PAUSED if state.paused else Outcome.READY

    def _read(self) -> Outcome:
        """Publishes until a command arrives.

        Every command ends the reading, and the next one begins after it.
        """
        while not self._stop.is_set():
            if (command := self._publish()) is not None:
                return self._carry_out(Phase.READING, command)
        return Outcome.STOP

    def _pause(self) -> Outcome:
        """Watches how much the database retains, until a command arrives."""
        self._source.close()
        while not self._stop.wait(PAUSED_S):
            self._watch()
            if self._writer.notices or self._retained != self.state.retained_bytes:
                state = msgspec.structs.replace(
                    self.state, retained_bytes=self._retained, lag_bytes=self._lag_bytes
                )
                self._writer.save(state)
            if (command := self._next_command()) is not None:
                return self._carry_out(Phase.PAUSED, command)
        return Outcome.STOP

    def _wait_for_add(self) -> Outcome:
        """Nothing of the capture is in the database, and nothing may be created there."""
        self._source.close()
        logger.warning(
            "capture %s was removed and %s; `headwater capture add %s app.py` brings it back",
            self.name,
            "waits" if self._stays else "ends",
            self.name,
        )
        while self._stays and not self._stop.wait(PAUSED_S):
            command = self._next_command()
            if command is not None and COMMANDS[command.do] is Outcome.ADD:
                return Outcome.ADD
        return Outcome.STOP if self._stop.is_set() else Outcome.UNSUPERVISED

    def _wait(self) -> Outcome:
        self._close_control()
        self._writer.abandon()
        self._source.close()
        if self._stop.is_set():
            return Outcome.STOP
        pause = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)] * self._random.uniform(0.5, 1.5)
        self._failures += 1
        self.trouble = str(self._error)
        logger.warning("capture %s: %s; again in %.1f s", self.name, self._error, pause)
        self._stop.wait(pause)
        return Outcome.RETRY

    # ---- reading -------------------------------------------------------------------------------------------

    def _publish(self) -> Command | None:
        """Publishes what the source returns, until a command arrives or the process is asked to end."""
        self.round_at = self._clock.monotonic()
        if isinstance(self._source, SchemaSource):
            self._source.recall(schemas(self._client, self.name))
        if isinstance(self._source, SnapshotSource):
            self._source.notices.clear()
        writer, batch = self._writer, self._writer.batch
        batch.reset(self._clock.monotonic())
        with contextlib.closing(self._source.read(self.state.position)) as parts:  # type: ignore[type-var]
            complete = self._completion.complete(parts)
            routed = complete if self._outbox is None else self._outbox.route(complete)
            deletes = RowDeletes(self._client, writer.flush, self._confirm_again, writer.is_compacted)
            for part in deletes.insert(routed):
                self.trouble, self.round_at = "", self._clock.monotonic()
                if writer.take(part):
                    self._commit()
                self._check_retention()
                if self._stop.is_set():
                    if batch.whole:
                        self._commit()
                    return None
                if self.state.position is not None and batch.whole and not batch.rows:
                    self._watch()
                    if writer.notices:
                        batch.position = batch.position or self.state.position
                        self._commit()
                    if (command := self._next_command()) is not None:
                        return command
        return None

    def _commit(self) -> None:
        writer, batch = self._writer, self._writer.batch
        if batch.position is None:
            return
        writer.begin()
        self._watch()
        now_ms = self._clock.now_ms()
        state = State(
            position=batch.position,
            rows=self.state.rows + batch.rows,
            transactions=self.state.transactions + 1,
            at_ms=now_ms,
            lag_ms=max(0, now_ms - batch.at_ms) if batch.rows and batch.at_ms else 0,
            lag_bytes=self._lag_bytes,
            retained_bytes=self._retained,
            control=self.state.control,
            format=CAPTURE.newest,
        )
        position = batch.position
        writer.commit(state)
        self._failures = 0
        self._source.confirm(position)
        self._completion.committed()
        batch.reset(self._clock.monotonic())
        writer.show()

    def _continues(self) -> bool:
        self._check_retention()
        return not self._stop.is_set()

    def _confirm_again(self) -> None:
        """Repeats the last confirmation, so that the database keeps the connection."""
        if self.state.position is not None:
            self._source.confirm(self.state.position)

    # ---- commands and watching -----------------------------------------------------------------------------

    def _next_command(self) -> Command | None:
        return None if self._control is None else self._control.next()

    def _carry_out(self, phase: Phase, command: Command) -> Outcome:
        """Carries out a command that has ended a phase."""
        outcome, now_ms = COMMANDS[command.do], self._clock.now_ms()
        if outcome is Outcome.REMOVE:
            if self._was_removed():
                return outcome
            outcome = Outcome.ADD  # it was added again since
        state = self.state
        if outcome is Outcome.SNAPSHOT:
            state = self._with_snapshot(state, command, now_ms)
        paused = LIFE[phase][outcome] is Phase.PAUSED
        if paused is not state.paused:
            state = msgspec.structs.replace(state, paused=paused)
            self._writer.notices.append(Notice("paused" if paused else "resumed", now_ms))
        offset = state.control if self._control is None else self._control.offset
        self._writer.save(msgspec.structs.replace(state, control=offset, at_ms=now_ms))
        return outcome

    def _with_snapshot(self, state: State, command: Command, now_ms: int) -> State:
        """The state in which the command's snapshot is due; a notice if it is impossible."""
        try:
            if not isinstance(self._source, SnapshotSource) or state.position is None:
                raise CaptureError("this database has no snapshots of single tables")
            position = self._source.with_snapshot(state.position, command)
            return msgspec.structs.replace(state, position=position)
        except CaptureError as error:
            logger.warning("capture %s: %s", self.name, error)
            details = {"id": command.id}
            notice = Notice("snapshot refused", now_ms, command.table, str(error), details)
            self._writer.notices.append(notice)
            return state

    def _watch(self) -> None:
        """Takes the notices of the source, and checks retention."""
        self._check_retention()
        if isinstance(self._source, SnapshotSource) and self._source.notices:
            self._writer.notices += self._source.notices
            self._source.notices.clear()

    def _check_retention(self) -> None:
        """Checks how much the database retains; past the limit, gives its log up and raises CaptureError."""
        if self._alarm is None:
            return
        self._writer.notices += self._alarm.check(self._clock.monotonic(), self._clock.now_ms())
        if not self._alarm.is_over:
            return
        error = self._alarm.stop()
        self._writer.abandon()
        with contextlib.suppress(HeadwaterError):  # the log may not answer
            self._writer.claim_again()
            self._writer.save(self.state)
        raise error

    @property
    def _retained(self) -> int:
        return 0 if self._alarm is None else self._alarm.retained_bytes

    @property
    def _lag_bytes(self) -> int:
        return getattr(self._source, "lag_bytes", 0)

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
