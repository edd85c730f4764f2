"""docs/sql.md: what is refused, from the objects that refuse. ``make sql-page`` writes the generated part."""

from pathlib import Path

from headwater.declare.refusal import REFUSALS, Refusal
from headwater.pipeline import refusals

assert refusals

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
BEGIN, END = "<!-- refusals: written by make sql-page -->", "<!-- end of refusals -->"


def generated() -> str:
    """The list of what is refused, as it is between the two marks."""
    return "\n\n".join(map(entry, REFUSALS))


def entry(refused: Refusal) -> str:
    instead = [refused.shown(text) for text in (refused.expected, refused.instead) if text]
    return "\n".join(
        [
            f"### {refused.shown(refused.what)}",
            "",
            f"Why: {refused.why}.",
            *([f"Instead: {'; '.join(instead)}."] if instead else []),
            "",
            f"```{'sql' if refused.example.startswith('SELECT') else 'python'}",
            example(refused),
            "```",
        ]
    )


def example(refused: Refusal) -> str:
    """An example as a reader sees it: with the key and the options of its view, if these are what is refused."""
    options = "".join(f" {name}={value!r}" for name, value in refused.options)
    mark = "--" if refused.example.startswith("SELECT") else "#"
    return f"{refused.example}  {mark} key={', '.join(refused.key)}{options}"


def page(text: str) -> str:
    """The page with its list."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{generated()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
