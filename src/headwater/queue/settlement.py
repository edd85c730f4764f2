"""Settlement by an administrator: records that no member is to get, whatever has become of them."""

import math
from typing import NamedTuple

from headwater.queue.ranges import Range, Ranges
from headwater.queue.run import DeliveryState, Run
from headwater.queue.share_partition import SharePartition

__all__ = ["RANGES_AHEAD_MAX", "Settlement", "settle"]

RANGES_AHEAD_MAX = 1_000
"""How many ranges of a share partition may be settled before they come up."""


class Settlement(NamedTuple):
    """What has become of a range."""

    records: int
    """How many offsets are settled that were not."""
    held: list[Range]
    """What members or transactions hold, and so was left."""


def settle(share: SharePartition, first: int, last: int, *, held_too: bool = False) -> Settlement:
    """Settles a range, also as far as it has not come up.

    What members hold is left unless ``held_too``, what transactions hold always.
    """
    held: list[Range] = []
    count = 0

    def settled(run: Run) -> Run:
        if run.state is DeliveryState.SETTLED:
            return run
        if run.state is not DeliveryState.ACQUIRED or (held_too and run.deadline < math.inf):
            return run.settled()
        held.append(Range(run.first, run.last))
        return run

    if first < share.end and share.start <= last:
        count += share.change(max(first, share.start), min(last, share.end - 1), settled)
    if last >= share.end:
        parts = share.settled_ahead.split(max(first, share.end), last)
        count += sum(end - begin + 1 for begin, end, is_settled in parts if not is_settled)
        share.settled_ahead = Ranges.of([*share.settled_ahead, Range(max(first, share.end), last)])
        share.absorb()
    return Settlement(count, list(Ranges.of(held)))
