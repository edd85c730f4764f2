"""Rows with a weight: 1 inserts a row, -1 retracts one."""

import numpy as np
import pyarrow as pa

from headwater.pipeline.arrow.row_bytes import pack
from headwater.pipeline.state import weighted_entries
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["consolidate"]


def consolidate(rows: pa.Table) -> pa.Table:
    """Equal rows as one, with the sum of their weights; rows whose weights cancel are dropped."""
    plain = rows.drop_columns([WEIGHT])
    weights = rows.column(WEIGHT).to_numpy().astype(np.int64)
    changed = weighted_entries.changed(pack(plain), weights)
    return plain.take(pa.array(changed.row)).append_column(WEIGHT, pa.array(changed.weight.astype(np.int32)))
