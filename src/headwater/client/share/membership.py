"""Membership: a member of a share group, kept by heartbeats in a thread of its own (KIP-932).

    epoch 0          joins, with its topics, until the group gives it partitions
    its epoch        stays; the answer has its partitions if they have changed
    fenced, unknown  joins again under its id: the broker was restarted, or heard nothing for too long
    epoch -1         leaves

It also asks how many records wait for the group, for whoever shows that.
"""

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from headwater.access import Log
from headwater.client.bulk.connection import compose
from headwater.client.bulk.routes import Routes, refusal
from headwater.client.share.consumer import Assignment
from headwater.clock import Clock, SystemClock
from headwater.errors import ErrorCode, HeadwaterError, MachineError, RequestError, one_line
from headwater.protocol.kafka.codec import Message

__all__ = ["Membership", "new_member_id"]

JOIN, LEAVE = 0, -1
BEAT_S = 1.0
"""At most so long between two heartbeats; the group may want them more often."""
SEARCH_S = 0.2
"""Between heartbeats of a member without partitions: its topic may not exist yet."""
LAG_S = 2.0
LEAVE_S = 5.0
AGAIN = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
BUSY = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Answers that may be different after a pause."""

logger = logging.getLogger(__name__)


def new_member_id() -> str:
    """An id that no other member has: 36 characters, as many as there may be."""
    return str(uuid.uuid4())


class Membership:
    """One member of a group. `start` and `stop` are called by its owner, the rest by any thread.

    ``on_change`` gets the member's partitions whenever they change, ``on_end`` is called if the group refuses
    the member for good; ``failure`` says why.
    """

    def __init__(
        self,
        log: Log,
        group: str,
        member: str,
        topics: Sequence[str],
        *,
        on_change: Callable[[Assignment], None],
        on_end: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self.group = group
        self.member = member
        self.trouble = ""
        """Why the coordinator cannot be reached; empty while it answers."""
        self.failure: HeadwaterError | None = None
        self.lag_records: int | None = None
        """The records of the topics that the group has not settled; None until that is known."""
        self.has_partitions = False
        self._topics = sorted(topics)
        self._on_change = on_change
        self._on_end = on_end
        self._clock = clock or SystemClock()
        self._routes = Routes(log)
        self._epoch = JOIN
        self._interval_s = SEARCH_S
        self._measured = -LAG_S
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat {group}", daemon=True)

    @property
    def is_member(self) -> bool:
        """Whether the group has it as a member; without partitions it waits for a topic that is not there."""
        return self._epoch != JOIN and not self.trouble

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Leaves the group, if the coordinator answers."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = SEARCH_S
            try:
                pause_s = self._beat()
                self._measure()
            except RequestError as error:
                self._handle(error)
            except OSError as error:
                self.trouble = f"the coordinator of group {self.group} does not answer: {one_line(error)}"
            except HeadwaterError as error:
                self._fail(error)
            if self.failure is not None:
                break
            self._stopping.wait(pause_s)
        self._leave()

    def _beat(self) -> float:
        """One heartbeat; returns the seconds until the next one."""
        answer = self._ask(
            "ShareGroupHeartbeat",
            compose(
                "ShareGroupHeartbeat",
                group_id=self.group,
                member_id=self.member,
                member_epoch=self._epoch,
                subscribed_topic_names=self._topics if self._epoch == JOIN else None,
            ),
        )
        if answer.error_code:
            raise refusal(answer.error_code, f"group {self.group!r}", answer.error_message)
        self._epoch, self.trouble = answer.member_epoch, ""
        if answer.assignment is not None:
            assignment = {part.topic_id: part.partitions for part in answer.assignment.topic_partitions}
            self.has_partitions = bool(assignment)
            self._on_change(assignment)
        return min(BEAT_S, answer.heartbeat_interval_ms / 1000) if self.has_partitions else SEARCH_S

    def _handle(self, error: RequestError) -> None:
        if error.code in AGAIN:
            logger.info("group %s: joining again: %s", self.group, error)
            self._epoch = JOIN
        elif error.code in BUSY:
            self.trouble = one_line(error)
            self._routes.forget_coordinator()
        else:
            self._fail(error)

    def _fail(self, error: HeadwaterError) -> None:
        self.failure = MachineError(f"group {self.group!r} refuses the member", got=one_line(error))
        self._on_end()

    def _measure(self) -> None:
        now = self._clock.monotonic()
        if now - self._measured < LAG_S or not self.has_partitions:
            return
        self._measured = now
        group = compose("DescribeShareGroupOffsets", "groups", group_id=self.group, topics=None)
        answer = self._ask("DescribeShareGroupOffsets", compose("DescribeShareGroupOffsets", groups=[group]))
        lags = [
            part.lag
            for each in answer.groups
            for topic in each.topics or ()
            if topic.topic_name in self._topics
            for part in topic.partitions
            if not part.error_code and part.lag >= 0
        ]
        self.lag_records = sum(lags) if lags else None

    def _leave(self) -> None:
        with suppress(OSError, HeadwaterError):
            if self._epoch != JOIN:
                request = compose(
                    "ShareGroupHeartbeat", group_id=self.group, member_id=self.member, member_epoch=LEAVE
                )
                self._ask("ShareGroupHeartbeat", request)
        self._routes.close()

    def _ask(self, api: str, request: Message) -> Message:
        return self._routes.ask_coordinator(self.group, api, request)
