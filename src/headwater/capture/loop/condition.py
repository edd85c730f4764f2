"""The condition of a capture, as its process says it on its board."""

import threading

from headwater.capture.loop.feed import Feed
from headwater.capture.loop.phases import Phase
from headwater.clock import Clock, SystemClock
from headwater.health.board import BoardFile
from headwater.health.condition import Condition

__all__ = ["judge", "say"]

LOOK_S = 0.5
SILENT_S = 60.0
"""A capture that reads gets something from its database many times a second, also if nothing has changed."""


def say(feed: Feed, board: BoardFile, over: threading.Event, clock: Clock | None = None) -> None:
    """Says how a capture is, until it is over; for a thread of its own."""
    clock = clock or SystemClock()
    condition = Condition(clock)
    condition.begin()
    while not over.wait(LOOK_S):
        judge(feed, condition, clock.monotonic())
        board.write([condition.status("capture", feed.name, lag_ms=feed.state.lag_ms)])
    board.remove()


def judge(feed: Feed, condition: Condition, now: float) -> None:
    """Reports the capture to its condition. It hangs if its last round has begun long ago."""
    if feed.phase in {Phase.PAUSED, Phase.REMOVED}:
        condition.pause()
    elif feed.trouble:
        condition.fail(" ".join(feed.trouble.split()))
    elif feed.phase is Phase.READING and now - feed.round_at > SILENT_S:
        condition.fail(f"the database or the log has not answered for more than {SILENT_S:.0f} s")
    elif feed.phase is Phase.READING:
        condition.work()
