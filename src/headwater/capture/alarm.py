"""Alarm: says in time how much of its log a database keeps for a capture, before that fills its disk."""

import logging
from typing import Literal, Protocol, runtime_checkable

from headwater.capture.control import Notice
from headwater.errors import CaptureError, HeadwaterError

__all__ = ["Alarm", "PastLimit", "Retaining"]

LOOK_S = 5.0
PastLimit = Literal["tell", "stop"]
"""Whether a capture goes on when the database keeps too much for it, or stops and lets go of it."""

logger = logging.getLogger(__name__)


@runtime_checkable
class Retaining(Protocol):
    """A source whose database keeps its log for as long as the capture needs it."""

    alarm_bytes: int
    limit_bytes: int
    past_limit: PastLimit

    def retained_bytes(self) -> int:
        """How much it keeps now. Away when it does not answer."""

    def give_up(self) -> None:
        """Makes the database keep nothing any more: what is not in the topics is lost to them. Away when it does not answer."""


class Alarm:
    """Looks every few seconds; each bound is told of once, and again after less than half of it was kept in between."""

    def __init__(self, name: str, source: Retaining) -> None:
        self.retained_bytes = 0
        self.stopped = False
        self._name = name
        self._source = source
        self._looked = -LOOK_S
        self._told: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the capture is to stop."""
        return self._source.past_limit == "stop" and self.retained_bytes >= self._source.limit_bytes

    def stop(self) -> CaptureError:
        """Lets go of the database's log, and gives what is to be raised. Away when the database does not answer."""
        self._source.give_up()
        self.stopped = True
        return CaptureError(
            f"capture {self._name} has stopped and dropped its slot, so that the database's disk does not fill",
            got=f"{self.retained_bytes:,} bytes of its log that the database kept for it",
            expected=f"less than {self._source.limit_bytes:,} (limit_bytes)",
            hint=f"`headwater capture snapshot {self._name} app.py` begins anew",
        )

    def look(self, now_s: float, now_ms: int) -> list[Notice]:
        """What is to be told."""
        if now_s - self._looked < LOOK_S:
            return []
        self._looked = now_s
        try:
            self.retained_bytes = kept = self._source.retained_bytes()
        except HeadwaterError:
            return []  # who reads meets it too, and says so
        name = self._name
        way_out = f"its disk may fill: resume or run the capture now, or give it up with `headwater capture remove {name} app.py`"
        if self.is_over:
            way_out = f"the capture stops and drops its slot; `headwater capture snapshot {name} app.py` begins anew"
        bounds = {
            "log retained": (
                self._source.alarm_bytes,
                f"see whether the capture runs and keeps up: `headwater capture status {name}`",
            ),
            "log limit": (
                self._source.limit_bytes,
                way_out,
            ),
        }
        notices = []
        for what, (bound, advice) in bounds.items():
            if kept >= bound and what not in self._told:
                self._told.add(what)
                text = f"the database keeps {kept:,} bytes of its log, the bound is {bound:,}; {advice}"
                logger.log(
                    logging.ERROR if what == "log limit" else logging.WARNING, "capture %s: %s", name, text
                )
                notices.append(Notice(what, now_ms, text=text, details={"bytes": kept, "bound": bound}))
            elif kept < bound // 2:
                self._told.discard(what)
        return notices
