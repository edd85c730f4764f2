"""Watermark of a view: decided by the driver for each batch, and the same for all of its tasks.

The watermark says up to when a view's inputs are complete. It is the minimum, over the partitions of all
inputs, of the greatest event time less the stream's ``delay``. A partition that has been silent for ``idle``
does not count. When all are silent, time advances by the clock from where they stopped, so that a session
closes without further input. The watermark never goes back.

**Silent** is what the log proves, not how fast the driver is. The silence of a partition grows only up to the
moment at which a batch was planned that took nothing of it, or that took all of it and met no event time; and
only by time in which the driver has looked at the log (``attention.py``). A batch that takes longer than
``idle``, a view that waits for its sinks, a driver or a machine that sleeps and a log that is away leave
records unread, and unread is not silent: events that come in order are never late, however slow the pipeline
is.

    batch b    is judged by a watermark that follows from the batches up to b-1; b's result has it, so that b
               can be repeated
    split      late rows are taken out before any step of the view sees them (``late_split.py``)
    tick       a record in ``headwater.ticks`` that makes the shards of a view check their time-outs
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from headwater.declare.duration import duration_us
from headwater.result import Heard

__all__ = [
    "NEVER",
    "PLAN",
    "TICK_PARTITIONS",
    "Input",
    "Moment",
    "Watermark",
    "due_ms",
    "note_silence",
    "note_times",
    "note_unread",
    "output_watermark",
    "resume",
    "tick_partition",
    "watermark",
]

NEVER = -(1 << 62)
"""The watermark before the first event time."""
FUTURE_US = duration_us("1 hour")
"""A time this far ahead of the clock is that of a wrong clock: the row counts, its time moves nothing."""
PLAN = "headwater.plan"
"""The local property that gives the tasks of a batch its time and the places of their state."""
TICK_PARTITIONS = 64


class Input(NamedTuple):
    """What the watermark needs to know of a stream."""

    delay_us: int
    idle_us: int
    topic: str = ""
    """Its topic; places of a stream of a pattern name theirs."""
    pattern: str = ""
    """The pattern of its topics' names."""


Watermark = Callable[[Mapping[str, Input], Mapping[str, Heard], int], int]
"""How a watermark is decided: ``watermark`` below, or a test's own function."""


def watermark(inputs: Mapping[str, Input], known: Mapping[str, Heard], before: int) -> int:
    """The watermark now, in microseconds.

    ``known`` is by ``STREAM/PLACE``; ``before`` is the last watermark.
    """
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
    # All are idle since the last of them is, as far as the silence of all of them is proved.
    return max(before, max(silent) + max(0, min(known_us) - max(idle_us)))


def due_ms(
    inputs: Mapping[str, Input], known: Mapping[str, Heard], reached: int, open_us: int | None
) -> int | None:
    """When the watermark will pass a time-out if no further event comes, by the clock of ``at_ms``.

    0 if it has passed it, None if no time-out is open.
    """
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


def output_watermark(reached: int | None, opens: Iterable[int | None]) -> int:
    """Up to when an operator has emitted all that it got.

    ``reached``: the watermark; ``opens``: the earliest time-out of each of its shards, for rows that it still
    holds.
    """
    held = [open_us - 1 for open_us in opens if open_us is not None]
    return min([NEVER if reached is None else reached, *held])


def note_times(times: Mapping[str, int], before: Mapping[str, Heard], at_ms: int) -> dict[str, Heard]:
    """All places after a batch with these greatest times, whose records were in the log at ``at_ms``."""
    after = dict(before)
    for place, time_us in times.items():
        heard = after.get(place)
        after[place] = Heard(max(time_us, heard.time_us) if heard else time_us, at_ms, 0)
    return after


def note_silence(places: Iterable[str], before: Mapping[str, Heard], at_ms: int) -> dict[str, Heard]:
    """All places, of which these are known to have brought no time up to ``at_ms``."""
    after = dict(before)
    for place in places:
        heard = before[place]
        after[place] = Heard(heard.time_us, heard.at_ms, max(heard.silent_ms or 0, at_ms - heard.at_ms))
    return after


def note_unread(places: Iterable[str], before: Mapping[str, Heard], at_ms: int) -> dict[str, Heard]:
    """All places, of which these have unread records.

    Such a place holds up the others; one that has never brought a time holds up everything.
    """
    after = dict(before)
    for place in places:
        heard = before.get(place)
        if heard is None or heard.time_us == NEVER:
            after[place] = Heard(NEVER, at_ms, None)
        else:
            after[place] = Heard(heard.time_us, at_ms, 0)
    return after


def resume(last: Mapping[str, Heard], at_ms: int, now_ms: int) -> dict[str, Heard]:
    """All places after a pause of the pipeline: silences are as long as they were, and as far apart.

    ``at_ms``: when the last result was made.
    """
    after = {}
    newest_ms = max((entry.at_ms + (entry.silent_ms or 0) for entry in last.values()), default=now_ms)
    for place, entry in last.items():
        if entry.time_us == NEVER and entry.silent_ms is None:
            after[place] = Heard(NEVER, now_ms, None)
            continue
        if entry.silent_ms is None:
            silence = max(0, at_ms - entry.at_ms)
            after[place] = Heard(entry.time_us, now_ms - silence, silence)
        else:
            after[place] = Heard(entry.time_us, entry.at_ms + now_ms - newest_ms, entry.silent_ms)
    return after


def tick_partition(view: str) -> int:
    """The partition of ``headwater.ticks`` that a view reads."""
    return crc32(view.encode()) % TICK_PARTITIONS


class Moment(NamedTuple):
    """The time of a batch, the same in all of its tasks, in microseconds."""

    watermark: int
    """Up to when the inputs are complete, except for stragglers."""
    now_us: int
    """The driver's clock."""
    horizon: int = NEVER
    """No earlier row will come, not even a straggler: state that only such rows could change is dropped."""
