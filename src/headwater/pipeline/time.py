"""Time: the watermark of a view, decided by the driver for each batch and the same for all of its tasks.

The watermark says up to when a view's inputs are complete. It is the smallest, over the partitions of all inputs, of the greatest event
time less the stream's ``delay``. A partition that has been silent for ``idle`` holds up no other. When all are silent, time
goes on by the clock from where they stopped, so that a session closes with no further input. The watermark never goes back.

**Silent** is what the log says, not how fast the driver is. The silence of a partition grows only up to the moment at which a batch was
planned that took nothing of it, or that took all of it and met no event time; and only by time in which the driver has looked (``attention.py``).
A batch that takes longer than ``idle``, a view that is held for its sinks, a driver or a machine that sleeps and a log that is
away leave records unread, and what is unread is not silent: events that come in order are never late, however slow the pipeline is.

    batch b    is judged by a watermark made from what batches up to b-1 have heard; b's result holds it, so that b can be repeated
    split      late rows are taken out before any step of the view sees them (``split.py``)
    tick       a record in ``headwater.ticks`` that makes the shards of a view look at their time-outs when there is no input
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from headwater.late import duration_us
from headwater.result import Heard

__all__ = [
    "NEVER",
    "PLAN",
    "TICKS",
    "TICK_PARTITIONS",
    "Input",
    "Watermark",
    "due_ms",
    "heard",
    "passed",
    "resumed",
    "silent",
    "tick_partition",
    "unread",
    "watermark",
]

NEVER = -(1 << 62)
"""The watermark before anything was heard."""
FUTURE_US = duration_us("1 hour")
"""A time so far ahead of the clock is a wrong clock's: the row counts, its time moves nothing."""
PLAN = "headwater.plan"
"""The local property that tells the tasks of a batch its time and where their state is."""
TICKS = "headwater.ticks"
TICK_PARTITIONS = 64


class Input(NamedTuple):
    """What a watermark has to know of a stream."""

    delay_us: int
    idle_us: int
    topic: str = ""
    """Its topic; the places of a stream by pattern name theirs."""
    pattern: str = ""
    """What the names of such topics look like."""


Watermark = Callable[[Mapping[str, Input], Mapping[str, Heard], int], int]
"""How a watermark is decided: ``watermark`` below, or a test's own."""


def watermark(inputs: Mapping[str, Input], known: Mapping[str, Heard], before: int) -> int:
    """The watermark now, in microseconds. ``known`` is by ``stream/place``; ``before`` is the last one."""
    active: list[int] = []
    silent: list[int] = []
    known_us, idle_us = [], []
    for place, entry in known.items():
        stream = inputs.get(place.partition("/")[0])
        if stream is None:
            continue
        if entry.silent_ms is None:
            active.append(NEVER)
            continue
        known_us.append((entry.at_ms + entry.silent_ms) * 1000)
        if entry.time_us == NEVER:
            continue
        idle_us.append(entry.at_ms * 1000 + stream.idle_us)
        (active if known_us[-1] <= idle_us[-1] else silent).append(entry.time_us - stream.delay_us)
    if active:
        return max(before, min(active))
    if not silent:
        return before
    # All are idle since the last of them is, and that is known up to when the first of them was read.
    return max(before, max(silent) + max(0, min(known_us) - max(idle_us)))


def due_ms(
    inputs: Mapping[str, Input], known: Mapping[str, Heard], reached: int, open_us: int | None
) -> int | None:
    """When the watermark will pass a time-out if nothing more is heard, by the clock of ``at_ms``; 0 when it has, None when nothing is open."""
    if open_us is None:
        return None
    times = [
        (entry.at_ms * 1000 + stream.idle_us, entry.time_us - stream.delay_us)
        for place, entry in known.items()
        if (stream := inputs.get(place.partition("/")[0])) and entry.time_us != NEVER
    ]
    if open_us <= reached or not times:
        return 0
    missing_us = max(0, open_us - max(time for _, time in times))
    return (max(quiet for quiet, _ in times) + missing_us) // 1000 + 1


def passed(reached: int | None, opens: Iterable[int | None]) -> int:
    """Up to when an operator has handed on all that it got, when the watermark has reached so far and these time-outs are open in its shards."""
    held = [open_us - 1 for open_us in opens if open_us is not None]
    return min([NEVER if reached is None else reached, *held])


def heard(notes: Mapping[str, int], before: Mapping[str, Heard], at_ms: int) -> dict[str, Heard]:
    """What is known of all places after a batch has noted the greatest times it met; its records were there at ``at_ms``."""
    after = dict(before)
    for place, time_us in notes.items():
        known = after.get(place)
        after[place] = Heard(max(time_us, known.time_us) if known else time_us, at_ms, 0)
    return after


def silent(places: Iterable[str], before: Mapping[str, Heard], at_ms: int) -> dict[str, Heard]:
    """What is known of all places when these are known to have brought no time up to ``at_ms``."""
    after = dict(before)
    for place in places:
        known = before[place]
        after[place] = Heard(known.time_us, known.at_ms, max(known.silent_ms or 0, at_ms - known.at_ms))
    return after


def unread(places: Iterable[str], before: Mapping[str, Heard], at_ms: int) -> dict[str, Heard]:
    """What is known of all places when these have records that nobody has seen: they hold up the others, and those that never brought a time hold up everything."""
    after = dict(before)
    for place in places:
        known = before.get(place)
        if known is None or known.time_us == NEVER:
            after[place] = Heard(NEVER, at_ms, None)
        else:
            after[place] = Heard(known.time_us, at_ms, 0)
    return after


def resumed(last: Mapping[str, Heard], at_ms: int, now_ms: int) -> dict[str, Heard]:
    """What is known after a pause of the pipeline, in which nobody looked: silences are as long as they were. ``at_ms`` is when the last result was made."""
    after = {}
    for place, entry in last.items():
        if entry.time_us == NEVER and entry.silent_ms is None:
            after[place] = Heard(NEVER, now_ms, None)
            continue
        silence = max(0, at_ms - entry.at_ms) if entry.silent_ms is None else entry.silent_ms
        after[place] = Heard(entry.time_us, now_ms - silence, silence)
    return after


def tick_partition(view: str) -> int:
    """The partition of ``headwater.ticks`` that a view listens to."""
    return crc32(view.encode()) % TICK_PARTITIONS
