"""What clients were told, and whether what readers find keeps it: the checker of the kill tests, without any I/O.

A value is ``writer:number`` or ``writer:number.attempt``; the numbers of a writer grow, so that a doubled or reordered record
shows by itself.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Found", "Place", "Sent", "Told", "faults"]

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass
class Sent:
    """One transaction: its records, and the offsets of a group that it moved."""

    values: set[tuple[Place, str]]
    outcome: Literal["committed", "aborted", "in doubt"] = "in doubt"


@dataclass
class Told:
    """The promises of the broker so far. Each writer adds to it from a thread of its own."""

    acknowledged: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    """Offset and value of each record that was acknowledged outside of transactions."""
    transactions: list[Sent] = field(default_factory=list)
    commits: dict[Place, list[int]] = field(default_factory=dict)
    """The offsets that a group may stand at: the last one acknowledged, and those in doubt since."""
    sent: set[str] = field(default_factory=set)


@dataclass
class Found:
    """What a ``read_committed`` reader sees, and where the groups stand."""

    records: dict[Place, list[tuple[int, str]]]
    commits: dict[Place, int] = field(default_factory=dict)


def faults(told: Told, found: Found) -> list[str]:
    """Every promise that was broken, in words; nothing when all were kept."""
    return [
        *_lost(told, found),
        *_doubled_or_invented(told, found),
        *_reordered(found),
        *_half_done(told, found),
        *_groups(told, found),
    ]


def _lost(told: Told, found: Found) -> list[str]:
    said = []
    for place, promised in told.acknowledged.items():
        there = dict(found.records.get(place, ()))
        said += [
            f"lost: {value} was acknowledged at {place}@{offset}, there is {there.get(offset)}"
            for offset, value in promised
            if there.get(offset) != value
        ]
    return said


def _doubled_or_invented(told: Told, found: Found) -> list[str]:
    counts = Counter(value for rows in found.records.values() for _, value in rows)
    said = [f"doubled: {value} is there {count} times" for value, count in counts.items() if count > 1]
    return said + [f"invented: {value} was never sent" for value in counts if value not in told.sent]


def _reordered(found: Found) -> list[str]:
    said = []
    for place, rows in found.records.items():
        last: dict[str, int] = {}
        for offset, value in rows:
            writer, _, rest = value.partition(":")
            number = int(rest.partition(".")[0])
            if number < last.get(writer, -1):
                said.append(f"reordered: {value} at {place}@{offset} stands behind number {last[writer]}")
            last[writer] = max(number, last.get(writer, -1))
    return said


def _half_done(told: Told, found: Found) -> list[str]:
    there = {(place, value) for place, rows in found.records.items() for _, value in rows}
    said = []
    for each in told.transactions:
        seen = len(each.values & there)
        whole = seen == len(each.values)
        if each.outcome == "committed" and not whole:
            said.append(f"half a transaction: {seen} of {len(each.values)} committed records, {each.values}")
        elif each.outcome == "aborted" and seen:
            said.append(f"aborted, and visible: {each.values & there}")
        elif each.outcome == "in doubt" and seen and not whole:
            said.append(f"half a transaction: {seen} of {len(each.values)} records in doubt, {each.values}")
    return said


def _groups(told: Told, found: Found) -> list[str]:
    return [
        f"group: its offset of {place} is {found.commits.get(place)}, it may be {allowed}"
        for place, allowed in told.commits.items()
        if found.commits.get(place) not in allowed
    ]
