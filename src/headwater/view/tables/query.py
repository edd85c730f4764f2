"""The parameters of a request for the rows of a view: filters, order, limit and more.

    col=value        equal          col.ne=value      not equal
    col.lt=value     less           col.lte=value     less or equal
    col.gt=value     greater        col.gte=value     greater or equal
    order=-col,col2  descending by col, then ascending by col2
    limit=N          at most N rows
    ready=true       only rows that are complete, or with false only those that are not (`completeness`)
    as_of=TIME       of rows that are valid from ``valid_from`` until ``valid_to``, those valid at a time
    at_least=POS     waits until the table includes everything before a position, for wait=N seconds at most
    merge=col        the sketches of all these rows merged, or one for each value of by=col2,col3;
                     combine=intersection intersects them, has=value asks a Bloom filter

A nested column is written with dots (``window.start``). A column with the name ``order``, ``limit``,
``as_of``, ``at_least``, ``wait`` or ``merge`` is filtered with ``order.eq=``. Timestamps may have any ISO
8601 form.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from headwater.errors import UsageError
from headwater.position import Position
from headwater.sketches.merge import How

__all__ = [
    "AtLeast",
    "Filter",
    "RowQuery",
    "SketchMerge",
    "SortTerm",
    "parse",
    "parse_at_least",
    "parse_merge",
]

OPERATORS = {"eq": "IS", "ne": "IS NOT", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
LIMIT_DEFAULT = 1_000
LIMIT_MAX = 100_000
TERMS_MAX = 32
MERGE_ROWS_MAX = 20_000
MERGE_PARAMETERS = frozenset({"merge", "by", "combine", "has", "order", "limit"})
HOWS: dict[str, How] = {"union": "union", "intersection": "intersection"}
WAIT_SECONDS_DEFAULT = 10.0
WAIT_SECONDS_MAX = 60.0

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+ -]\d\d:?\d\d)?")

_WIRE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Filter(msgspec.Struct, frozen=True):
    """One condition on one column. Numbers are compared as numbers, texts as text."""

    column: str
    operator: str
    value: str


class SortTerm(msgspec.Struct, frozen=True):
    column: str
    descending: bool = False


class RowQuery(msgspec.Struct, frozen=True):
    """Which rows, in which order (the key decides ties), and how many; without a limit, all."""

    filters: tuple[Filter, ...] = ()
    order: tuple[SortTerm, ...] = ()
    limit: int | None = None
    ready: bool | None = None
    """True: only rows that are complete. False: only rows that are not complete yet."""
    as_of: str | None = None
    """Only rows that were valid at this time."""


class AtLeast(msgspec.Struct, frozen=True):
    """The position that the rows must include, and how long a reader waits for it."""

    position: Position
    seconds: float = WAIT_SECONDS_DEFAULT


class SketchMerge(msgspec.Struct, frozen=True):
    """Which sketches to merge, for each value of ``by``, and the value to look up in a Bloom filter."""

    column: str
    by: tuple[str, ...] = ()
    how: How = "union"
    has: str | None = None


def parse_at_least(parameters: Iterable[tuple[str, str]]) -> tuple[AtLeast | None, list[tuple[str, str]]]:
    """The position that the rows must include, and the other parameters."""
    wanted = {"at_least": "", "wait": ""}
    rest = []
    for name, value in parameters:
        if name in wanted:
            wanted[name] = value
        else:
            rest.append((name, value))
    seconds = number(wanted["wait"]) if wanted["wait"] else WAIT_SECONDS_DEFAULT
    if seconds is None or not 0 < seconds <= WAIT_SECONDS_MAX:
        expected = f"seconds, more than 0 and at most {WAIT_SECONDS_MAX:g}"
        raise UsageError("wait is wrong", got=repr(wanted["wait"][:40]), expected=expected)
    if wanted["at_least"]:
        return AtLeast(Position.parse(wanted["at_least"]), seconds), rest
    if wanted["wait"]:
        raise UsageError("wait without at_least", hint="a column of that name is filtered with wait.eq=")
    return None, rest


def parse_merge(parameters: Iterable[tuple[str, str]]) -> tuple[SketchMerge | None, list[tuple[str, str]]]:
    """The sketches to merge, and the other parameters; all parameters without ``merge``."""
    parameters = list(parameters)
    merge_parameters = {name: value for name, value in parameters if name in MERGE_PARAMETERS}
    if "merge" not in merge_parameters:
        return None, parameters
    refused = [name for name in ("order", "limit") if name in merge_parameters]
    if refused:
        raise UsageError(
            f"{refused[0]} does not go with merge", hint="all rows that the filters select are merged"
        )
    how = merge_parameters.get("combine", "union")
    if how not in HOWS:
        raise UsageError("combine is wrong", got=repr(how[:40]), expected="union or intersection")
    by = tuple(column for column in merge_parameters.get("by", "").split(",") if column)
    rest = [(name, value) for name, value in parameters if name not in merge_parameters]
    return SketchMerge(merge_parameters["merge"], by, HOWS[how], merge_parameters.get("has")), rest


def parse(parameters: Iterable[tuple[str, str]]) -> RowQuery:
    """The query of a URL's parameters; a UsageError names a parameter that is wrong."""
    filters: list[Filter] = []
    order: tuple[SortTerm, ...] = ()
    limit = LIMIT_DEFAULT
    as_of = None
    for name, value in parameters:
        if name == "order":
            order = tuple(_order(term) for term in value.split(",") if term)
        elif name == "limit":
            limit = _limit(value)
        elif name == "as_of":
            as_of = _as_of(value)
        else:
            filters.append(_filter(name, value))
    if len(filters) + len(order) > TERMS_MAX:
        raise UsageError(
            "too many filters", got=str(len(filters) + len(order)), expected=f"at most {TERMS_MAX}"
        )
    return RowQuery(tuple(filters), order, limit, as_of=as_of)


def number(text: str) -> int | float | None:
    """The number in a text, or None."""
    for convert in (int, float):
        try:
            converted = convert(text)
        except ValueError:
            continue
        return converted if abs(converted) < 2**63 else float(converted)
    return None


def _filter(name: str, value: str) -> Filter:
    column, dot, last = name.rpartition(".")
    if dot and last in OPERATORS:
        return Filter(column, last, _wire(value))
    return Filter(name, "eq", _wire(value))


def _order(term: str) -> SortTerm:
    return SortTerm(term.lstrip("-"), descending=term.startswith("-"))


def _limit(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not 0 < int(text) <= LIMIT_MAX:
        raise UsageError("limit is wrong", got=repr(text[:40]), expected=f"a number from 1 to {LIMIT_MAX}")
    return int(text)


def _as_of(value: str) -> str:
    time = _wire(value)
    if not _WIRE.fullmatch(time):
        raise UsageError(
            "as_of is not a time",
            got=repr(value[:40]),
            expected="a time like 2026-01-05T09:00:00Z",
            hint="a column of that name is filtered with as_of.eq=",
        )
    return time


def _wire(value: str) -> str:
    """A timestamp in the form that tables have (UTC, microseconds); any other text unchanged."""
    if not _TIME.fullmatch(value):
        return value
    try:
        at = datetime.fromisoformat(value.replace(" ", "+"))
    except ValueError:
        return value
    utc = at if at.tzinfo is None else at.astimezone(UTC)
    return f"{utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
