"""Comparison of two rows.

Doubles may differ in their last digits, since a sum depends on its order; all else must be equal.
"""

import math
from typing import Any

__all__ = ["DOUBLES_MAY_DIFFER_BY", "Row", "is_equal", "unequal"]

DOUBLES_MAY_DIFFER_BY = 1e-9
"""Relative to the greater of the two."""

Row = dict[str, Any]


def unequal(one: Row, other: Row) -> list[str]:
    """The columns in which two rows differ; empty if they are equal."""
    return [
        name
        for name in [*one, *(name for name in other if name not in one)]
        if name not in one or name not in other or not is_equal(one[name], other[name])
    ]


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values decoded from JSON are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=DOUBLES_MAY_DIFFER_BY)
    if isinstance(one, dict):
        return not unequal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other)
