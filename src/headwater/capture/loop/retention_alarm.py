"""RetentionAlarm: warns of a database that retains much of its log for a capture, before its disk is full."""

import logging
from typing import Protocol, runtime_checkable

from headwater.capture.messages import Notice, PastLimit
from headwater.errors import CaptureError, HeadwaterError

__all__ = ["RetentionAlarm", "RetentionSource"]

CHECK_S = 5.0

logger = logging.getLogger(__name__)


@runtime_checkable
class RetentionSource(Protocol):
    """A source whose database retains its log for as long as the capture needs it."""

    alarm_bytes: int
    limit_bytes: int
    past_limit: PastLimit

    def retained_bytes(self) -> int:
        """How much it retains now. UnavailableError if it does not answer."""

    def give_up(self) -> None:
        """Makes the database retain nothing: changes that are not in the topics are lost.

        UnavailableError if it does not answer.
        """


class RetentionAlarm:
    """Checks every few seconds.

    It reports each bound once, and again after retention has fallen below half of it.
    """

    def __init__(self, name: str, source: RetentionSource) -> None:
        self.retained_bytes = 0
        self.stopped = False
        self._name = name
        self._source = source
        self._checked = -CHECK_S
        self._reported: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the capture must stop."""
        return self._source.past_limit == "stop" and self.retained_bytes >= self._source.limit_bytes

    def stop(self) -> CaptureError:
        """Makes the database retain nothing, and returns the error to raise.

        UnavailableError if the database does not answer.
        """
        self._source.give_up()
        self.stopped = True
        return CaptureError(
            f"capture {self._name} has stopped and dropped its slot, before the database's disk is full",
            got=f"{self.retained_bytes:,} bytes of its log that the database kept for it",
            expected=f"less than {self._source.limit_bytes:,} (limit_bytes)",
            hint=f"`headwater capture snapshot {self._name} app.py` takes a new snapshot",
        )

    def check(self, now_s: float, now_ms: int) -> list[Notice]:
        """The notices that are due."""
        if now_s - self._checked < CHECK_S:
            return []
        self._checked = now_s
        try:
            self.retained_bytes = retained = self._source.retained_bytes()
        except HeadwaterError:
            return []  # reading meets the same error and raises it
        notices = []
        for what, (bound, advice) in self._bounds().items():
            if retained >= bound and what not in self._reported:
                self._reported.add(what)
                text = f"the database keeps {retained:,} bytes of its log, the bound is {bound:,}; {advice}"
                level = logging.ERROR if what == "log limit" else logging.WARNING
                logger.log(level, "capture %s: %s", self._name, text)
                notices.append(Notice(what, now_ms, text=text, details={"bytes": retained, "bound": bound}))
            elif retained < bound // 2:
                self._reported.discard(what)
        return notices

    def _bounds(self) -> dict[str, tuple[int, str]]:
        """Bounds in bytes and advice, by notice."""
        name = self._name
        check = f"see whether the capture runs and keeps up: `headwater capture status {name}`"
        advice = (
            "its disk may fill: resume or run the capture now,"
            f" or give it up with `headwater capture remove {name} app.py`"
        )
        if self.is_over:
            advice = (
                "the capture stops and drops its slot;"
                f" `headwater capture snapshot {name} app.py` takes a new snapshot"
            )
        return {
            "log retained": (self._source.alarm_bytes, check),
            "log limit": (self._source.limit_bytes, advice),
        }
