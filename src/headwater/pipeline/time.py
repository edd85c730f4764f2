"""Time: the watermark of a view, decided by the driver for each batch and the same for all of its tasks.

The watermark says up to when a view's inputs are complete. It is the smallest, over the partitions of all inputs, of the greatest event
time less the stream's ``delay``. A partition that has said nothing for ``idle`` holds nobody up. When all are silent, time
goes on by the clock from where they stopped, so that a session closes with no further input; while the
pipeline is down the clock stands. The watermark never goes back.

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
    "tick_partition",
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


Watermark = Callable[[Mapping[str, Input], Mapping[str, Heard], int, int], int]
"""How a watermark is decided: ``watermark`` below, or a test's own."""


def watermark(inputs: Mapping[str, Input], known: Mapping[str, Heard], now_ms: int, before: int) -> int:
    """The watermark now, in microseconds. ``known`` is by ``stream/place``; ``before`` is the last one."""
    active: list[tuple[int, int]] = []
    silent: list[tuple[int, int]] = []
    for place, entry in known.items():
        stream = inputs.get(place.partition("/")[0])
        if stream is None:
            continue
        quiet_us = now_ms * 1000 - entry.at_ms * 1000 - stream.idle_us
        (active if quiet_us <= 0 else silent).append((entry.time_us - stream.delay_us, quiet_us))
    if active:
        return max(before, min(time for time, _ in active))
    if silent:
        return max(before, max(time for time, _ in silent) + min(quiet for _, quiet in silent))
    return before


def due_ms(
    inputs: Mapping[str, Input], known: Mapping[str, Heard], reached: int, open_us: int | None
) -> int | None:
    """When the watermark will pass a time-out if nothing more is heard; 0 when it has, None when nothing is open."""
    if open_us is None:
        return None
    times = [
        (entry.at_ms * 1000 + stream.idle_us, entry.time_us - stream.delay_us)
        for place, entry in known.items()
        if (stream := inputs.get(place.partition("/")[0]))
    ]
    if open_us <= reached or not times:
        return 0
    missing_us = max(0, open_us - max(time for _, time in times))
    return (max(quiet for quiet, _ in times) + missing_us) // 1000 + 1


def passed(reached: int | None, opens: Iterable[int | None]) -> int:
    """Up to when an operator has handed on all that it got, when the watermark has reached so far and these time-outs are open in its shards."""
    held = [open_us - 1 for open_us in opens if open_us is not None]
    return min([NEVER if reached is None else reached, *held])


def heard(notes: Mapping[str, int], before: Mapping[str, Heard], now_ms: int) -> dict[str, Heard]:
    """What is known of all places after a batch has noted the greatest times it met."""
    after = dict(before)
    for place, time_us in notes.items():
        known = after.get(place)
        after[place] = Heard(max(time_us, known.time_us) if known else time_us, now_ms)
    return after


def resumed(last: Mapping[str, Heard], at_ms: int, now_ms: int) -> dict[str, Heard]:
    """What is known after a pause of the pipeline since ``at_ms``, in which the clock stood for all of them."""
    return {place: Heard(entry.time_us, entry.at_ms + now_ms - at_ms) for place, entry in last.items()}


def tick_partition(view: str) -> int:
    """The partition of ``headwater.ticks`` that a view listens to."""
    return crc32(view.encode()) % TICK_PARTITIONS
