"""What the driver sends to the tasks of a batch, and what they report."""

from collections.abc import Sequence

import msgspec

from headwater.decoders import from_json
from headwater.errors import MachineError
from headwater.pipeline.state.files import Place
from headwater.pipeline.time.watermark import NEVER, Moment
from headwater.result import Chain

__all__ = ["Plan", "Written", "written"]


class Plan(msgspec.Struct, frozen=True):
    """What the driver sends to the tasks of a batch: its time, and the place of each operator's state."""

    batch: int
    places: dict[str, Place]
    chains: dict[str, list[Chain]]
    watermark: int = NEVER
    now_us: int = 0
    horizon_us: int = 0
    """How far before the watermark stragglers are still accepted."""
    passed: dict[str, int] = {}
    """The watermark of each operator downstream of one that delays rows."""

    def moment(self, operator: str) -> Moment:
        watermark = self.passed.get(operator, self.watermark)
        return Moment(watermark, self.now_us, watermark - self.horizon_us)


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task has written: the chain of its shard after the batch, and its earliest time-out."""

    shard: int
    chain: Chain
    open: int | None = None
    ends: tuple[int, ...] = ()
    """When the published rows of the batch become complete."""


def written(notes: Sequence[str], shards: int) -> dict[int, Written]:
    """What each shard has written in a batch.

    If a task ran twice, both attempts wrote the same, and one is taken.
    """
    reports = [from_json(note, Written) for note in sorted(notes)]
    unknown = [report.shard for report in reports if not 0 <= report.shard < shards]
    if unknown:
        raise MachineError(
            "a task has reported a shard that does not exist",
            got=str(unknown[0]),
            expected=f"0 to {shards - 1}",
        )
    return {report.shard: report for report in reports}
