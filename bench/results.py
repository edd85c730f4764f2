"""The form of a published figure, and where it is kept. ``bench/report.py`` draws ``docs/benchmarks.md`` from it."""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figure:
    """One measure beside its peer. ``ratio`` above 1 always means that ours is better; it is met from ``goal`` on.

    Without a goal it is said what something costs, not how good it must be.
    """

    measure: str
    ours: float
    peer: float
    peer_name: str
    unit: str
    goal: float | None
    higher_is_better: bool = True
    ratio: float = field(init=False)
    met: bool | None = field(init=False)
    at: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))

    def __post_init__(self) -> None:
        ratio = self.ours / self.peer if self.higher_is_better else self.peer / self.ours
        object.__setattr__(self, "ratio", round(ratio, 2))
        object.__setattr__(self, "met", None if self.goal is None else ratio >= self.goal)


def save(name: str, figures: list[Figure]) -> None:
    """Writes the figures of one benchmark and prints them."""
    rows = [
        {key: value for key, value in asdict(figure).items() if key != "higher_is_better"}
        for figure in figures
    ]
    (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n")
    for figure in figures:
        verdict = "" if figure.goal is None else f"of {figure.goal:g} {'met' if figure.met else 'MISSED'}"
        print(
            f"{figure.measure:60} {figure.ours:>12,.4g} {figure.peer:>12,.4g} {figure.unit:14} "
            f"{figure.ratio:5.2f}x {verdict}  ({figure.peer_name})"
        )
