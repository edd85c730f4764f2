"""Merge: sketches of many rows as one, without Spark.

Spark writes sketches in the format of Apache DataSketches, whose third byte names the kind, and Bloom filters
in its own. The library that reads them is loaded when something is merged for the first time.
"""

import importlib
import math
import re
from collections.abc import Callable
from typing import Any, Literal, Protocol

from headwater.errors import UsageError
from headwater.sketches.bloom import Bloom

__all__ = [
    "RANKS",
    "THETA_LG_MAX",
    "TOP",
    "How",
    "Merging",
    "add",
    "begin",
    "error_of_frequent",
    "error_of_hll",
    "error_of_kll",
    "error_of_theta",
    "has",
    "rank_name",
]

How = Literal["union", "intersection"]

RANKS = (0.5, 0.9, 0.99)
TOP = 10
THETA_LG_MAX = 16
"""The logarithm of the number of hashes that a union keeps: that of the largest of our own sketches."""
BROKEN = (IndexError, MemoryError, RuntimeError, ValueError)
"""Errors of the library for bytes that it cannot read."""


class Merging(Protocol):
    """Sketches of one kind that are merged into one."""

    kind: str

    def add(self, data: bytes) -> None:
        """Adds a sketch. Raises one of BROKEN if its bytes are damaged."""

    def estimate(self, like: Any) -> Any:
        """The estimate of all of them, in the form of a row's own estimate ``like``, if there is one."""

    @property
    def error(self) -> float:
        """The error of the estimate; see the function of the same kind in `headwater.sketch`."""


def begin(data: bytes, how: How = "union") -> Merging:
    """Begins a merge with its first sketch. UsageError for bytes that are not a sketch."""
    kind, make = _kind(data)
    if how == "intersection":
        if make is not _Union:
            raise UsageError(f"{kind} sketches have no intersection", expected="those of hw.sketch.members")
        make = _Intersection
    return _added(make, data)


def add(merging: Merging, data: bytes) -> None:
    """Adds a sketch. UsageError if it is of another kind, or not a sketch."""
    kind, _ = _kind(data)
    if kind != merging.kind:
        raise UsageError("sketches of different kinds cannot be merged", got=f"{merging.kind} and {kind}")
    _added(lambda _: merging, data)


def has(merging: Merging, text: str) -> bool:
    """Whether a merged Bloom filter holds a value."""
    if not isinstance(merging, _Bloom):
        raise UsageError(
            f"{merging.kind} sketches cannot look up values", expected="those of hw.sketch.bloom"
        )
    return merging.has(text)


def error_of_hll(lg: int) -> float:
    """The relative standard error of merged HLL sketches with 2^lg registers."""
    return 1.04 / math.sqrt(1 << lg)


def error_of_theta(lg: int) -> float:
    """The relative standard error of a theta sketch of 2^lg hashes."""
    return 1 / math.sqrt((1 << lg) - 1)


def error_of_kll(k: int) -> float:
    """The error of the rank of a percentile, in 99 of 100 cases: the library's own formula."""
    return float(2.296 / k**0.9723)


def error_of_frequent(lg: int) -> float:
    """The error of a count, as a share of all rows, for a table of 2^lg places."""
    return 3.5 / (1 << lg)


def rank_name(rank: float) -> str:
    """The name of a percentile in a row: p50, p99_9."""
    return f"p{rank * 100:.10g}".replace(".", "_")


class _Hll:
    kind = "distinct"

    def __init__(self, data: bytes) -> None:
        self._union = _library().hll_union(data[3])

    def add(self, data: bytes) -> None:
        self._union.update(_library().hll_sketch.deserialize(data))

    def estimate(self, _like: Any) -> int:
        return round(float(self._union.get_estimate()))

    @property
    def error(self) -> float:
        return error_of_hll(self._union.lg_config_k)


class _Union:
    kind = "members"

    def __init__(self, _data: bytes) -> None:
        self._set = _library().theta_union(THETA_LG_MAX)

    def add(self, data: bytes) -> None:
        self._set.update(_library().compact_theta_sketch.deserialize(data))

    def estimate(self, _like: Any) -> int:
        return round(float(self._set.get_result().get_estimate()))

    @property
    def error(self) -> float:
        union = self._set.get_result()
        estimate = union.get_estimate()
        return float((union.get_upper_bound(1) - estimate) / estimate) if estimate else 0.0


class _Intersection(_Union):
    def __init__(self, _data: bytes) -> None:
        self._set = _library().theta_intersection()


class _Kll:
    kind = "percentiles"

    def __init__(self, data: bytes) -> None:
        self._sketch = _library().kll_doubles_sketch(int.from_bytes(data[4:6], "little"))

    def add(self, data: bytes) -> None:
        self._sketch.merge(_library().kll_doubles_sketch.deserialize(data))

    def estimate(self, like: Any) -> dict[str, float | None]:
        ranks = {name: _rank(name) for name in (like if isinstance(like, dict) else map(rank_name, RANKS))}
        empty = self._sketch.is_empty()
        return {
            name: None if empty else float(self._sketch.get_quantile(rank))
            for name, rank in ranks.items()
            if rank is not None
        }

    @property
    def error(self) -> float:
        return error_of_kll(self._sketch.k)


class _Frequent:
    kind = "frequent"

    def __init__(self, data: bytes) -> None:
        self._lg = data[3]
        self._sketch = _library().frequent_strings_sketch(self._lg)

    def add(self, data: bytes) -> None:
        self._sketch.merge(_library().frequent_strings_sketch.deserialize(data))

    def estimate(self, like: Any) -> list[dict[str, Any]]:
        certain = _library().frequent_items_error_type.NO_FALSE_POSITIVES  # as in Spark
        items = sorted(self._sketch.get_frequent_items(certain), key=lambda item: (-item[1], item[0]))
        return [{"item": item[0], "count": item[1]} for item in items[: len(like) if like else TOP]]

    @property
    def error(self) -> float:
        return error_of_frequent(self._lg)


class _Bloom:
    kind = "bloom"

    def __init__(self, data: bytes) -> None:
        self._filter = Bloom(data)

    def add(self, data: bytes) -> None:
        self._filter.add(data)

    def has(self, text: str) -> bool:
        return self._filter.has(text)

    def estimate(self, _like: Any) -> int:
        return self._filter.estimate

    @property
    def error(self) -> float:
        return self._filter.error


BLOOM = b"\0\0\0\2"
FAMILIES: dict[int, tuple[str, Callable[[bytes], Merging]]] = {
    3: ("members", _Union),
    7: ("distinct", _Hll),
    10: ("frequent", _Frequent),
    15: ("percentiles", _Kll),
}
KINDS = "distinct (HLL), members (theta), percentiles (KLL of doubles), frequent or bloom"


def _kind(data: bytes) -> tuple[str, Callable[[bytes], Merging]]:
    if data[:4] == BLOOM:
        return _Bloom.kind, _Bloom
    if len(data) < 8 or data[2] not in FAMILIES:
        raise UsageError("this is not a sketch", got=f"{len(data)} bytes", expected=KINDS)
    return FAMILIES[data[2]]


def _added(make: Callable[[bytes], Merging], data: bytes) -> Merging:
    try:
        merging = make(data)
        merging.add(data)
    except BROKEN as error:
        raise UsageError("this sketch is damaged", got=str(error)[:100], expected=KINDS) from error
    return merging


def _rank(name: str) -> float | None:
    match = re.fullmatch(r"p(\d+)(?:_(\d+))?", name)
    return round(float(f"{match[1]}.{match[2] or 0}") / 100, 12) if match else None


def _library() -> Any:
    return importlib.import_module("datasketches")
