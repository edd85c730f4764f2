"""Endings: what becomes of the messages whose handler has ended, or will not be called.

accepted at once                     the handler has written nothing
accepted with what was written       through the outputs
released, with a pause               it is tried again
a dead letter                        written through the outputs, then accepted
"""

import logging

from headwater.client.share.consumer import ShareConsumer
from headwater.client.share.session import Ack, AckKind
from headwater.clock import Clock
from headwater.declare.spec import Worker
from headwater.worker.counts import WorkCounts
from headwater.worker.letter import SUFFIX, letter
from headwater.worker.outcome import Bury, GiveBack, Verdict
from headwater.worker.outputs import Finale, Outputs, Result
from headwater.worker.parked import parked_key
from headwater.worker.work import Written
from headwater.worker.work_list import Task, WorkList

__all__ = ["Endings"]

logger = logging.getLogger(__name__)


class Endings:
    """Belongs to the thread of its worker."""

    def __init__(
        self,
        worker: Worker,
        work: WorkList,
        consumer: ShareConsumer,
        outputs: Outputs,
        *,
        counts: WorkCounts,
        clock: Clock,
        is_embedded: bool,
    ) -> None:
        self._worker = worker
        self._work = work
        self._consumer = consumer
        self._outputs = outputs
        self._counts = counts
        self._clock = clock
        self._is_embedded = is_embedded
        self.open = 0
        """Messages of which it is not known yet whether their end is stored."""

    def apply(self, task: Task, verdict: Verdict) -> None:
        written = task.work.end()
        if isinstance(verdict, Bury):
            self._bury(task, verdict)
        elif isinstance(verdict, GiveBack):
            self._release(task, verdict)
        elif written:
            self._put(Finale(task, written, verdict))
        else:
            self._consumer.acknowledge(task.place, Ack(task.record.offset, AckKind.ACCEPT))
            self._work.settle(task)
            self._counts.handled += 1

    def conclude(self, result: Result) -> None:
        """What was written is in the log, or is not."""
        self.open -= 1
        task, _, verdict = result.finale
        is_letter = isinstance(verdict, Bury)
        name = self._worker.name
        if not result.error and task.is_lost and not result.is_acknowledged:
            self._work.settle(task)  # it comes again, and is handled again
        elif not result.error:
            if not result.is_acknowledged:
                self._consumer.acknowledge(task.place, Ack(task.record.offset, AckKind.ACCEPT))
            self._work.settle(task)
            self._counts.dead += is_letter
            self._counts.handled += not is_letter
        elif task.is_lost or result.is_released:
            logger.warning("worker %s: message %s: %s; it comes again", name, task.id, result.error)
            self._work.conclude_later(task, verdict)
        elif result.is_hopeless and not is_letter:
            self._bury(task, Bury(f"what it writes cannot be stored: {result.error}"))
        else:
            logger.warning("worker %s: message %s: %s; trying again", name, task.id, result.error)
            self._put(result.finale)

    def _release(self, task: Task, verdict: GiveBack) -> None:
        if verdict.is_counted:
            self._counts.retried += 1
            logger.info(
                "worker %s: attempt %d of message %s has failed, the next one is in %g s",
                self._worker.name,
                task.attempt,
                task.id,
                verdict.pause_ms / 1000,
            )
        if not self._is_embedded and verdict.pause_ms:
            pause_s = min(verdict.pause_ms / 1000, self._worker.timeout_s)
            if self._work.pause(task, self._clock.monotonic() + pause_s):
                return
        delay_ms = verdict.pause_ms if self._is_embedded else 0
        uncounted = self._is_embedded and not verdict.is_counted
        self._consumer.acknowledge(
            task.place, Ack(task.record.offset, AckKind.RELEASE, delay_ms, uncounted=uncounted)
        )
        self._work.settle(task)

    def _bury(self, task: Task, verdict: Bury) -> None:
        topic = f"{self._worker.group}{SUFFIX}"
        logger.warning(
            "worker %s: message %s goes to %s after %d attempt%s (why: header headwater-letter-reason)",
            self._worker.name,
            task.id,
            topic,
            task.attempt,
            "" if task.attempt == 1 else "s",
        )
        record = letter(task, self._worker.group, verdict, self._clock.now_ms())
        records = [Written(topic, record)]
        if self._worker.park and not verdict.is_parked and task.record.key is not None:
            records.append(parked_key(self._worker.group, task, self._clock.now_ms()))
        reply = task.work.failed_reply(verdict.reason)
        if reply is not None:
            records.append(reply)
        self._put(Finale(task, records, verdict))

    def _put(self, finale: Finale) -> None:
        self.open += 1
        self._outputs.put(finale)
