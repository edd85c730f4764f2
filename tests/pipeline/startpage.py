"""pipeline/DESIGN.md: how a view starts, from the tables that the code consults. ``make start-page`` writes them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headwater.pipeline.run import start
from headwater.pipeline.run.start import HISTORY_CASES, PLAN_CASES, Case
from headwater.pipeline.run.takeover import FOLLOW_CASES

PAGE = Path(start.__file__).parents[1] / "DESIGN.md"
MARKS = {
    "history": HISTORY_CASES,
    "plan": PLAN_CASES,
    "follow": FOLLOW_CASES,
}
"""The tables of the page, each between two marks with its name."""


def table(cases: Iterable[Case[Any, Any]]) -> str:
    """The cases in the order in which they are checked."""
    lines = ["| case | the view is | |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {case.when} | {case.verdict} | {case.then} |" for case in cases)])


def page(text: str) -> str:
    """DESIGN.md with the tables as they are now."""
    for name, cases in MARKS.items():
        begin, end = f"<!-- start: {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table(cases)}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
