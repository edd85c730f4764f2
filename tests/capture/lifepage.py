"""docs/capture.md: the lives of a capture and of a table, from the tables by which they run. ``make capture-page`` writes them."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from headwater.capture.loop.phases import LIFE, Outcome
from headwater.capture.reread.table_states import TABLE_LIFE, TableEvent

PAGE = Path(__file__).parents[2] / "docs" / "capture.md"
MARKS = {
    "capture": (
        "<!-- life of a capture: written by make capture-page -->\n",
        "<!-- end of life of a capture -->\n",
    ),
    "table": (
        "<!-- life of a table: written by make capture-page -->\n",
        "<!-- end of life of a table -->\n",
    ),
}

Life = Mapping[Enum, Mapping[Enum, Enum]]


def generated() -> dict[str, str]:
    """The two parts of the page."""
    return {"capture": life(LIFE, Outcome), "table": life(TABLE_LIFE, TableEvent)}


def life(states: Life, causes: type[Enum]) -> str:
    """A table of the states, and one of the transitions: equal ones of several states are one row."""
    meanings = [f"| {state.value[0]} | {state.value[1]} |" for state in states]
    changes = [
        f"| {', '.join(word(state) for state in befores)} | {cause.value} | {word(after)} |"
        for cause in causes
        for after in states
        if (befores := [state for state in states if states[state].get(cause) is after])
    ]
    return "\n".join(
        [
            "",
            "| state | meaning |",
            "|---|---|",
            *meanings,
            "",
            "| from | when | to |",
            "|---|---|---|",
            *changes,
            "",
            "",
        ]
    )


def word(state: Enum) -> str:
    return str(state.value[0])


def page(text: str) -> str:
    """The page with both parts as they are now."""
    for name, part in generated().items():
        begin, end = MARKS[name]
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{part}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
