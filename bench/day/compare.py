"""Compare: what sets two sides apart, as sentences for a person. Pure functions; an empty list means that they agree."""

from collections.abc import Mapping, Sequence
from typing import Any

Rows = Mapping[Any, tuple[Any, ...]]
SHOWN_MAX = 3


def rows_differ(what: str, shown: Rows, wanted: Rows) -> list[str]:
    """Rows of a view or store against those that it must have."""
    missing = [f"the row {key} with {wanted[key]} is missing" for key in wanted.keys() - shown.keys()]
    extra = [f"the row {key} with {shown[key]} should not be there" for key in shown.keys() - wanted.keys()]
    wrong = [
        f"the row {key} is {shown[key]}, and should be {wanted[key]}"
        for key in wanted.keys() & shown.keys()
        if tuple(shown[key]) != tuple(wanted[key])
    ]
    return _some(what, sorted(missing) + sorted(extra) + sorted(wrong))


def totals_differ(what: str, shown: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Figures by name, those of either side."""
    names = sorted(shown.keys() | wanted.keys())
    return [
        f"{what}, {name}: {shown.get(name, 0):,} found, {wanted.get(name, 0):,} sent"
        for name in names
        if shown.get(name, 0) != wanted.get(name, 0)
    ]


def accounts_differ(accounts: Sequence[Mapping[str, Any]], terms: Sequence[str]) -> list[str]:
    """Accounts of the ledger that do not add up, that wait for something, or whose records were removed unread."""
    faults = []
    for each in accounts:
        name = f"ledger, {each['topic']} for {each['consumer']}"
        held = sum(each[term] for term in terms)
        if held != each["produced"] or each["lost"] or each["beyond"]:
            faults.append(f"{name}: {each['produced']:,} produced, {held:,} accounted for")
        faults += [f"{name}: {each[term]:,} {term}" for term in ("waiting", "dead", "expired") if each[term]]
    return faults


def _some(what: str, faults: list[str]) -> list[str]:
    more = [f"{what}: and {len(faults) - SHOWN_MAX:,} more"] if len(faults) > SHOWN_MAX else []
    return [f"{what}: {fault}" for fault in faults[:SHOWN_MAX]] + more
