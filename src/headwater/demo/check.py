"""The demo's check of itself: every row against a batch run over the same log, every sum against the generator.

Pure functions over rows that others have fetched; a difference is a sentence for a person.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from headwater.compare import Row, unequal
from headwater.demo.tally import Figures

__all__ = ["Row", "differences", "invalid_differences", "sum_differences"]


def differences(name: str, key: Sequence[str], shown: Sequence[Row], batch: Sequence[Row]) -> list[str]:
    """What sets the rows of a view apart from those of the batch run; empty when they are the same."""
    found = list(_keyed(key, shown).items())
    expected = _keyed(key, batch)
    problems = [f"{name}: the row {place} is there {count} times" for place, count in _repeated(key, shown)]
    for place, row in found:
        wanted = expected.pop(place, None)
        if wanted is None:
            problems.append(f"{name}: the row {place} is not in the batch run")
        elif unequal(row, wanted):
            problems.append(f"{name}: the row {place} is {_text(row)}, in the batch run {_text(wanted)}")
    problems += [f"{name}: the row {place} of the batch run is missing" for place in expected]
    return problems


def sum_differences(rows: Mapping[str, Sequence[Row]], figures: Figures) -> dict[str, list[str]]:
    """For each view, the sums that are not what the generator counted."""
    cents: Counter[str] = Counter()
    for row in rows["revenue"]:
        cents[row["country"]] += round(row["revenue"] * 100)
    return {
        "click_through": _unequal(
            ("searches", _total(rows["click_through"], "searches"), figures.searches),
            ("matched clicks", _total(rows["click_through"], "clicks"), figures.matched_clicks),
        ),
        "revenue": _unequal(
            ("orders", _total(rows["revenue"], "orders"), figures.orders),
            *((f"cents of {c}", cents[c], figures.cents.get(c, 0)) for c in sorted(cents | figures.cents)),
        ),
        "page_views_per_minute": _unequal(
            ("page views", _total(rows["page_views_per_minute"], "views"), figures.page_views)
        ),
        "requests_per_second": _unequal(
            ("requests", _total(rows["requests_per_second"], "requests"), figures.requests)
        ),
    }


def invalid_differences(found: Mapping[str, int], figures: Figures) -> list[str]:
    """Topics whose count of invalid records is not the number of broken ones that were sent."""
    topics = sorted(figures.records)
    return _unequal(
        *((f"invalid {topic}", found.get(topic, 0), figures.broken.get(topic, 0)) for topic in topics)
    )


def _unequal(*sums: tuple[str, int, int]) -> list[str]:
    return [f"{what}: {shown:,} shown, {sent:,} sent" for what, shown, sent in sums if shown != sent]


def _total(rows: Sequence[Row], column: str) -> int:
    return sum(row[column] for row in rows)


def _keyed(key: Sequence[str], rows: Sequence[Row]) -> dict[str, Row]:
    return {_place(key, row): row for row in rows}


def _repeated(key: Sequence[str], rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    counts = Counter(_place(key, row) for row in rows)
    return ((place, count) for place, count in counts.items() if count > 1)


def _place(key: Sequence[str], row: Row) -> str:
    values = [row[column]["start"] if column == "window" else row[column] for column in key]
    return " ".join(map(str, values))


def _text(row: Row) -> str:
    return msgspec.json.encode(row).decode()
