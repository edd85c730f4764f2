"""Failure search: which records of a batch make its query fail, found by trials with ever fewer of them.

No I/O: a trial is a function. ``pipeline/run/isolation.py`` has the one that computes a batch.
"""

from collections.abc import Callable, Sequence

from headwater.pipeline.engine.engine import Fault

__all__ = ["FAILED_FREE", "FAILED_MAX", "NotOfRecords", "TooMany", "allowed", "search"]

FAILED_FREE = 10
"""So many records may fail in any case."""
FAILED_SHARE = 0.1
"""If the query fails on a larger share of the recent records, the query is wrong, not the records."""
FAILED_MAX = 1_000
"""More records of one batch are not searched for: it would take hours."""

Trial = Callable[[Sequence[int]], Fault | None]
"""Computes a batch with only some of its records, given by number; returns the fault, if it fails."""

Blame = Callable[[int, Fault], None]
"""Is given each record that is found, with its fault. It ends the search by an exception."""


class TooMany(Exception):  # noqa: N818  its caller turns it into an error of the view
    """The query fails on more records than are to be left out."""

    def __init__(self, first: Fault) -> None:
        self.first = first


class NotOfRecords(Exception):  # noqa: N818  likewise
    """A batch fails without any of its records: the cause is in the state."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def allowed(records: int, recent: tuple[int, int]) -> int:
    """How many records of a batch may be left out.

    It has ``records`` records; ``recent`` are those of the batches before it, and how many of them failed.
    """
    records_before, failed_before = recent
    share = int(FAILED_SHARE * (records + records_before))
    return max(0, min(max(share, FAILED_FREE) - failed_before, FAILED_MAX))


def search(
    count: int,
    trial: Trial,
    fault: Fault | None,
    most: int = FAILED_MAX,
    blame: Blame = lambda _number, _fault: None,
) -> dict[int, Fault]:
    """The records to leave out, of ``count`` that fail together with ``fault``, each with its own fault.

    The last trial has all the other records, and passes. Each record that is found takes about
    log2(``count``) trials. The result is empty if everything passes in the end: what failed at first does not
    fail again. Raises ``NotOfRecords`` if the batch fails without any record, and ``TooMany`` if it fails on
    more than ``most``.
    """
    culprits: dict[int, Fault] = {}
    rest: Sequence[int] = range(count)
    fault_without_records = trial(rest[:0])
    if fault_without_records is not None:
        raise NotOfRecords(fault_without_records)
    while fault is not None:
        if len(culprits) >= most:
            raise TooMany(culprits[min(culprits)] if culprits else fault)
        culprit = _alone(rest, trial, fault) or _with_those_before(rest, trial)
        if culprit is None:
            break
        number, its_fault = culprit
        blame(number, its_fault)
        culprits[number] = its_fault
        rest = [other for other in rest if other != number]
        fault = trial(rest)
    return culprits


def _alone(part: Sequence[int], trial: Trial, fault: Fault) -> tuple[int, Fault] | None:
    """A record that fails alone, if there is one.

    Only first halves are tried: if one passes, the second is assumed to fail, and the last record is tried by
    itself.
    """
    tried = False
    while len(part) > 1:
        middle = len(part) // 2
        half_fault = trial(part[:middle])
        tried = half_fault is not None
        part, fault = (part[middle:], fault) if half_fault is None else (part[:middle], half_fault)
    if not tried:
        own_fault = trial(part)
        return None if own_fault is None else (part[0], own_fault)
    return part[0], fault


def _with_those_before(part: Sequence[int], trial: Trial) -> tuple[int, Fault] | None:
    """The record with which a part begins to fail: those before it pass. None if the whole part passes."""
    fault = trial(part)
    if fault is None:
        return None
    passes, fails = 0, len(part)
    while fails - passes > 1:
        middle = (passes + fails) // 2
        prefix_fault = trial(part[:middle])
        if prefix_fault is None:
            passes = middle
        else:
            fails, fault = middle, prefix_fault
    return part[fails - 1], fault
