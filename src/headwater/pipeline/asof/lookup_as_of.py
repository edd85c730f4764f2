"""Each event with the version of its key that was valid at the event's own time, in any order of arrival.

An event is joined with the versions known so far. It is kept as long as a version may arrive that changes its
answer: then its row is retracted, and the right one is inserted. The state reaches back ``lag`` before the
watermark: as far as stragglers are accepted, or as long as the operator itself waits, whichever is longer.

    k KEY                → TIME VERSIONS    the versions of a key (``timeline.py``) and its next time-out
    t TIME DIGEST        → KEY              the same, by time
    e DIGEST TIME NAME   → KEY EVENTS       emitted events that may change (``state/time_chunks.py``)
    w DIGEST TIME NAME   → KEY EVENTS       events that wait for their version
"""

from collections.abc import Mapping
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from headwater.pipeline.asof.as_of_batch import AsOfBatch
from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.two_inputs import LEFT, RIGHT
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.layouts import FORGETTING
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["LookupAsOf"]


class LookupAsOf(Spec, frozen=True, kw_only=True):
    """Rows of the stream with the columns of their version and its id.

    They are weighted, or with ``final_us`` emitted once.
    """

    stored_names: ClassVar[Mapping[str, str]] = {"LookupAsOf": "AsOf", "retractable": "taken"}

    key: tuple[str, ...]
    as_of: str
    valid: str
    columns: tuple[str, ...]
    """The columns of the table in the output."""
    version: str = "version"
    missing: str = "keep"
    wait_us: int = 0
    final_us: int | None = None
    correct_us: int = 0
    of_rows: bool = False
    """The table has a row for each version, which its weight inserts or retracts."""
    retractable: bool = False
    """Events may be retracted too."""
    kinds: str = ""
    """The columns of the rows in the state."""
    kind: str = "enrich"
    timed: str = "watermark"
    layout: str = FORGETTING

    def schema(self, rows: StructType) -> StructType:
        left, right = rows[LEFT].dataType, rows[RIGHT].dataType
        columns = [StructField(name, right[name].dataType) for name in self.columns]
        weight = [] if self.final_us is not None else [StructField(WEIGHT, IntegerType())]
        return StructType([*left.fields, *columns, StructField(self.version, StringType()), *weight])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        return AsOfBatch(self, rows, state, moment).applied()

    def hold_us(self) -> int | None:
        """How long an event waits after its own time; None if none waits."""
        if self.final_us is not None:
            return self.final_us
        return self.wait_us if self.missing == "wait" else None
