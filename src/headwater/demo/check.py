"""The final check of the demo: every row against a batch over the same log, every sum against the generator.

Pure functions over rows; they fetch nothing. Each difference is a sentence.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from headwater.demo.tally import Figures
from headwater.operate.compare_rows import Row, unequal

__all__ = ["Row", "differences", "invalid_differences", "sum_differences"]


def differences(name: str, key: Sequence[str], shown: Sequence[Row], batch: Sequence[Row]) -> list[str]:
    """The differences between the rows of a view and those of the batch; empty if they are equal."""
    expected = _by_key(key, batch)
    problems = [f"{name}: the row {place} is there {count} times" for place, count in _repeated(key, shown)]
    for place, row in _by_key(key, shown).items():
        in_batch = expected.pop(place, None)
        if in_batch is None:
            problems.append(f"{name}: the row {place} is not in the batch run")
        elif unequal(row, in_batch):
            problems.append(f"{name}: the row {place} is {_text(row)}, in the batch run {_text(in_batch)}")
    problems += [f"{name}: the row {place} of the batch run is missing" for place in expected]
    return problems


def sum_differences(rows: Mapping[str, Sequence[Row]], figures: Figures) -> dict[str, list[str]]:
    """For each view, the sums that differ from the generator's."""
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


def invalid_differences(invalid: Mapping[str, int], figures: Figures) -> list[str]:
    """The topics whose number of invalid records differs from the number of broken ones that were sent."""
    topics = sorted(figures.records)
    return _unequal(
        *((f"invalid {topic}", invalid.get(topic, 0), figures.broken.get(topic, 0)) for topic in topics)
    )


def _unequal(*sums: tuple[str, int, int]) -> list[str]:
    return [f"{what}: {shown:,} shown, {sent:,} sent" for what, shown, sent in sums if shown != sent]


def _total(rows: Sequence[Row], column: str) -> int:
    return sum(row[column] for row in rows)


def _by_key(key: Sequence[str], rows: Sequence[Row]) -> dict[str, Row]:
    return {_place(key, row): row for row in rows}


def _repeated(key: Sequence[str], rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    counts = Counter(_place(key, row) for row in rows)
    return ((place, count) for place, count in counts.items() if count > 1)


def _place(key: Sequence[str], row: Row) -> str:
    values = [row[column]["start"] if column == "window" else row[column] for column in key]
    return " ".join(map(str, values))


def _text(row: Row) -> str:
    return msgspec.json.encode(row).decode()
