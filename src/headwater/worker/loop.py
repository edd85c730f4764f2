"""Loop: one worker in one process, from the messages that it is given to what is said of each.

    consumer    gets messages for the share group, and says what becomes of them
    work list   what is held, what is due (`WorkList`)
    runner      calls handlers in other threads, which hand outcomes back
    outputs     brings what handlers have written, and dead letters, into the log

Everything here is done by one thread, which waits for messages, outcomes and answers at once.
"""

import logging
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable

from headwater.access import Log
from headwater.client.client import Client
from headwater.client.share.consumer import ShareConsumer, Turn
from headwater.client.share.membership import Membership, new_member_id
from headwater.client.share.session import Ack, AckKind
from headwater.clock import Clock, SystemClock
from headwater.declare.graph import Graph
from headwater.declare.spec import Stream, Worker
from headwater.declare.worker_checks import worker_topic
from headwater.errors import MachineError, UsageError
from headwater.record import Record
from headwater.worker.call import Call, make_work
from headwater.worker.counts import WorkCounts
from headwater.worker.endings import Endings
from headwater.worker.group import LOCK_S_MAX, set_up_group
from headwater.worker.outcome import Bury, Outcome
from headwater.worker.outputs import Outputs, PlainOutputs, Result, TransactionalOutputs
from headwater.worker.parked import SUFFIX as PARKED_SUFFIX
from headwater.worker.parked import Parking
from headwater.worker.runners import Coroutines, Runner, Threads
from headwater.worker.topics import Topics
from headwater.worker.work import Written
from headwater.worker.work_list import Task, WorkList

__all__ = ["Loop"]

IDLE_MS = 500
"""How long a fetch waits for messages while nothing is in work."""
BUSY_MS = 2, 100
"""The same otherwise: acknowledgements wait for its answer, so it grows with the time that handlers take."""
PATIENCE = 4
"""A fetch waits for this part of the time since something has happened."""
LOOK_S = 0.1
"""How often time-outs, locks and the pause are looked at while something is in work."""
GRACE_S = 10.0
"""How long handlers that run may go on when the worker stops; the supervisor waits longer."""
CLOSE_S = 5.0

logger = logging.getLogger(__name__)


class Loop:
    """Runs until `stop`; any number of processes may run the same worker, and divide its messages.

    Guarantees: a message is handled until its handler has returned, or has failed as often as allowed and is
    a dead letter. UsageError ends `run`: the declaration is wrong for this log. MachineError too: the process
    is to be started again.
    """

    def __init__(
        self,
        log: Log,
        graph: Graph,
        worker: Worker,
        *,
        partitions: int = 2,
        paused: Callable[[], bool] = lambda: False,
        lock_s_max: float = LOCK_S_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._log = log
        self._graph = graph
        self.worker = worker
        self._topic = worker_topic(worker, graph.sources)
        self._partitions = partitions
        self._is_paused = paused
        self._lock_s_max = lock_s_max
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._call = Call(graph, worker)
        in_order = worker.order_by == "key"
        self._work = WorkList(
            worker.concurrency,
            worker.timeout_s,
            worker.retry,
            random.random,
            in_order=in_order,
            with_checks=worker.park,
        )
        self._finished: deque[tuple[Task, Outcome]] = deque()
        self._results: deque[Result] = deque()
        self._checked: deque[tuple[Task, Bury | None]] = deque()
        """All three are filled by other threads."""
        self._event_at = self._looked_at = -math.inf
        self._rests = False
        self.counts = WorkCounts()
        """Any thread may look at this and what follows."""
        self.is_running = False
        self.is_hung = False
        """Whether so many handlers hang that the process must end."""
        self._consumer: ShareConsumer | None = None
        self._membership: Membership | None = None

    @property
    def trouble(self) -> str:
        """Why it gets no messages; empty while it may."""
        consumer, membership = self._consumer, self._membership
        return (consumer.trouble if consumer else "") or (membership.trouble if membership else "")

    @property
    def lag_records(self) -> int | None:
        """The messages that the group has not settled; None until that is known."""
        return self._membership.lag_records if self._membership else None

    def stop(self) -> None:
        """Any thread may call it; `run` returns when running handlers have ended, or after a bounded time."""
        self._stopping.set()
        if self._consumer is not None:
            self._consumer.wake()

    def run(self) -> None:
        topics = Topics(self._log, self._partitions)
        self._check_topic(topics)
        group = set_up_group(self._log, self.worker, self._lock_s_max)
        self._lock_s, self._is_embedded = group.lock_s, group.is_embedded
        consumer = ShareConsumer(self._log, self.worker.group, new_member_id(), self._clock)
        membership = self._membership = self._member(consumer)
        self._consumer = consumer
        outputs: Outputs = (
            TransactionalOutputs(self._log, consumer, topics, self._conclude)
            if self._is_embedded
            else PlainOutputs(self._log, self.worker.group, topics, self._conclude)
        )
        self._endings = Endings(
            self.worker,
            self._work,
            consumer,
            outputs,
            counts=self.counts,
            clock=self._clock,
            is_embedded=self._is_embedded,
        )
        self._parking = self._make_parking(topics) if self.worker.park else None
        make_runner = Coroutines if self._call.is_async else Threads
        self._runner: Runner = make_runner(self.worker.name, self._call, self._finish)
        membership.start()
        try:
            while not self._stopping.is_set():
                self._step(consumer, membership)
            self._wind_down(consumer)
        finally:
            self.is_running = False
            self._runner.close()
            if self._parking is not None:
                self._parking.close()
            outputs.close()
            consumer.close(CLOSE_S)
            membership.stop()
            topics.close()

    def _member(self, consumer: ShareConsumer) -> Membership:
        return Membership(
            self._log,
            self.worker.group,
            consumer.member,
            [self._topic],
            on_change=consumer.assign,
            on_end=consumer.wake,
            clock=self._clock,
        )

    def _make_parking(self, topics: Topics) -> Parking:
        group = self.worker.group
        topics.ensure([Written(f"{group}{PARKED_SUFFIX}", Record(None, None))])
        return Parking(self._log, group, self._note_checked)

    def _check_topic(self, topics: Topics) -> None:
        client = Client(self._log)
        try:
            source = self._graph.sources.get(self.worker.source)
            if isinstance(source, Stream):
                topics.ensure_stream(source)
            if self._topic not in client.partitions():
                logger.info("worker %s: waiting for topic %s", self.worker.name, self._topic)
            elif "compact" in client.config(self._topic).get("cleanup.policy", ""):
                raise UsageError(
                    f"worker {self.worker.name!r}: topic {self._topic!r} is compacted",
                    hint="a queue needs every record: compaction would remove messages that wait",
                )
        finally:
            client.close()

    # ---- called by other threads -------------------------------------------------------------------------

    def _finish(self, task: Task, outcome: Outcome) -> None:
        self._finished.append((task, outcome))
        self._wake()

    def _conclude(self, results: list[Result]) -> None:
        self._results.extend(results)
        self._wake()

    def _note_checked(self, checked: list[tuple[Task, Bury | None]]) -> None:
        self._checked.extend(checked)
        self._wake()

    def _wake(self) -> None:
        if self._consumer is not None:
            self._consumer.wake()

    # ---- one step ----------------------------------------------------------------------------------------

    def _step(self, consumer: ShareConsumer, membership: Membership) -> None:
        failure = membership.failure or (self._parking.failure if self._parking else None)
        if failure is not None:
            raise failure
        self.is_running = membership.is_member
        now = self._clock.monotonic()
        self._collect(now)
        self._look(consumer, now)
        if self._rests:
            self._give_back(consumer)
        else:
            self._start(now)
        self.counts.in_work = self._work.running
        room = 0 if self._rests else self._work.room()
        busy = not self._work.is_idle
        turn = consumer.turn(room, self._wait_ms(now), LOOK_S if busy else IDLE_MS / 1000)
        self._take(turn)

    def _wait_ms(self, now: float) -> int:
        """How long a fetch may wait: acknowledgements that come meanwhile wait for its answer."""
        if self._work.is_idle:
            return IDLE_MS
        shortest, longest = BUSY_MS
        return round(min(max((now - self._event_at) * 1000 / PATIENCE, shortest), longest))

    def _collect(self, now: float) -> None:
        """Outcomes of handlers, and of what was brought into the log."""
        if self._finished or self._results:
            self._event_at = now
        while self._finished:
            task, outcome = self._finished.popleft()
            verdict = self._work.finish(task, outcome, now)
            if verdict is not None:
                self._endings.apply(task, verdict)
        while self._results:
            self._endings.conclude(self._results.popleft())
        while self._checked:
            task, parked = self._checked.popleft()
            if self._work.admit(task, parked) and parked is not None:
                self._endings.apply(task, parked)

    def _start(self, now: float) -> None:
        while (task := self._work.start(now)) is not None:
            task.work = make_work(task, self.worker.retry.attempts)
            self._runner.start(task)

    def _look(self, consumer: ShareConsumer, now: float) -> None:
        """What is due: locks, time-outs, pauses of messages, and the pause of the worker."""
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        self._rests = self._is_paused()
        for task in self._work.renewals(now, self._lock_s):
            consumer.acknowledge(task.place, Ack(task.record.offset, AckKind.RENEW))
        for task, verdict in self._work.overdue(now):
            self._runner.give_up(task)
            logger.warning(
                "worker %s: the handler of message %s runs for more than %g s; it is given up",
                self.worker.name,
                task.id,
                self.worker.timeout_s,
            )
            if verdict is not None:
                self._endings.apply(task, verdict)
        self._check_hung(now)
        for task in self._work.paused_until(now):
            consumer.acknowledge(task.place, Ack(task.record.offset, AckKind.RELEASE))

    def _check_hung(self, now: float) -> None:
        """MachineError if only the end of the process helps: it takes the threads of handlers with it."""
        stuck = self._work.stuck(now)
        if stuck is None and self._work.hung <= self.worker.concurrency:
            return
        self.is_hung = True
        raise MachineError(
            f"worker {self.worker.name!r}: its handlers hang",
            got=f"the handler of message {stuck.id}, for whose end the next message of its key waits"
            if stuck
            else f"{self._work.hung} handlers that did not end",
            hint="the process ends, to be started again",
        )

    def _take(self, turn: Turn) -> None:
        if turn.lost:
            count = self._work.lose(turn.lost)
            if count:
                logger.warning(
                    "worker %s: the connection was lost; %d messages in work are delivered again",
                    self.worker.name,
                    count,
                )
        for place, ack, why in turn.refused:
            task = self._work.find(place, ack.offset)
            if task is not None and ack.kind is AckKind.RENEW and not task.is_committing:
                self._work.drop(task)
            logger.info("worker %s: message %s-%d: %s", self.worker.name, self._topic, ack.offset, why)
        if turn.deliveries:
            now = self._event_at = self._clock.monotonic()
            for task, verdict in self._work.take(turn.deliveries, now, self._lock_s):
                self._endings.apply(task, verdict)
            if self._parking is not None:
                self._parking.check(self._work.to_check())

    def _give_back(self, consumer: ShareConsumer) -> None:
        self._acknowledge_unbegun(consumer, self._work.give_back())

    def _acknowledge_unbegun(self, consumer: ShareConsumer, tasks: Iterable[Task]) -> None:
        for task in tasks:
            ack = Ack(task.record.offset, AckKind.RELEASE, uncounted=self._is_embedded)
            consumer.acknowledge(task.place, ack)

    def _wind_down(self, consumer: ShareConsumer) -> None:
        """Handlers that run may end; what was not begun goes back at once."""
        limit = self._clock.monotonic() + GRACE_S
        while (now := self._clock.monotonic()) < limit:
            self._collect(now)
            self._look(consumer, now)
            self._give_back(consumer)
            for task in self._work.paused_until(math.inf):
                consumer.acknowledge(task.place, Ack(task.record.offset, AckKind.RELEASE))
            settled = consumer.is_settled or not consumer.is_connected
            if not self._work.running and not self._endings.open and settled:
                return
            self._take(consumer.turn(0, 0, LOOK_S))
        logger.warning(
            "worker %s: %d handlers run still, and %d results are not stored: these messages come again",
            self.worker.name,
            self._work.running,
            self._endings.open,
        )
