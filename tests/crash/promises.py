"""What a broker has promised its clients, and whether what readers see keeps it.

The checker of the kill tests, without any I/O. A value is ``writer:number`` or ``writer:number.attempt``. The numbers
of a writer grow, so a doubled or reordered record shows by itself.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Observed", "Place", "Promised", "Sent", "faults"]

Place = tuple[str, int]
"""A topic and a partition."""


@dataclass
class Sent:
    """One transaction: its records, and the offsets of a group that it moved."""

    values: set[tuple[Place, str]]
    outcome: Literal["committed", "aborted", "in doubt"] = "in doubt"


@dataclass
class Promised:
    """The promises of the broker so far. Each writer adds to it from a thread of its own."""

    acknowledged: dict[Place, list[tuple[int, str]]] = field(default_factory=dict)
    """Offset and value of each record that was acknowledged outside of transactions."""
    transactions: list[Sent] = field(default_factory=list)
    commits: dict[Place, list[int]] = field(default_factory=dict)
    """The offsets that a group may have: the last one acknowledged, and those in doubt since."""
    sent: set[str] = field(default_factory=set)


@dataclass
class Observed:
    """What a ``read_committed`` reader sees, and the offsets of the groups."""

    records: dict[Place, list[tuple[int, str]]]
    commits: dict[Place, int] = field(default_factory=dict)


def faults(promised: Promised, observed: Observed) -> list[str]:
    """Every promise that was broken, in words; nothing when all were kept."""
    return [
        *_lost(promised, observed),
        *_doubled_or_invented(promised, observed),
        *_reordered(observed),
        *_half_done(promised, observed),
        *_groups(promised, observed),
    ]


def _lost(promised: Promised, observed: Observed) -> list[str]:
    broken = []
    for place, acknowledged in promised.acknowledged.items():
        visible = dict(observed.records.get(place, ()))
        broken += [
            f"lost: {value} was acknowledged at {place}@{offset}, there is {visible.get(offset)}"
            for offset, value in acknowledged
            if visible.get(offset) != value
        ]
    return broken


def _doubled_or_invented(promised: Promised, observed: Observed) -> list[str]:
    counts = Counter(value for rows in observed.records.values() for _, value in rows)
    broken = [f"doubled: {value} is there {count} times" for value, count in counts.items() if count > 1]
    return broken + [f"invented: {value} was never sent" for value in counts if value not in promised.sent]


def _reordered(observed: Observed) -> list[str]:
    broken = []
    for place, rows in observed.records.items():
        last: dict[str, int] = {}
        for offset, value in rows:
            writer, _, rest = value.partition(":")
            number = int(rest.partition(".")[0])
            if number < last.get(writer, -1):
                broken.append(f"reordered: {value} at {place}@{offset} comes after number {last[writer]}")
            last[writer] = max(number, last.get(writer, -1))
    return broken


def _half_done(promised: Promised, observed: Observed) -> list[str]:
    visible = {(place, value) for place, rows in observed.records.items() for _, value in rows}
    broken = []
    for transaction in promised.transactions:
        seen = len(transaction.values & visible)
        whole = seen == len(transaction.values)
        if transaction.outcome == "committed" and not whole:
            broken.append(
                f"half a transaction: {seen} of {len(transaction.values)} committed records, {transaction.values}"
            )
        elif transaction.outcome == "aborted" and seen:
            broken.append(f"aborted, and visible: {transaction.values & visible}")
        elif transaction.outcome == "in doubt" and seen and not whole:
            broken.append(
                f"half a transaction: {seen} of {len(transaction.values)} records in doubt, {transaction.values}"
            )
    return broken


def _groups(promised: Promised, observed: Observed) -> list[str]:
    return [
        f"group: its offset of {place} is {observed.commits.get(place)}, it may be {allowed}"
        for place, allowed in promised.commits.items()
        if observed.commits.get(place) not in allowed
    ]
