"""The table of a life for a page of the documents: what its states mean, and which state follows which.

A life is a nested mapping of enums: state, event, next state. The value of a state is a word and a sentence,
that of an event a sentence.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

__all__ = ["Life", "LifePage", "table"]

Life = Mapping[Enum, Mapping[Enum, Enum]]


class LifePage(NamedTuple):
    """A page with lives, each between two marks with its name."""

    path: Path
    lives: Mapping[str, tuple[Life, type[Enum]]]
    target: str
    """The target of make that writes the page."""

    def text(self) -> str:
        """The page with the lives as they are now."""
        text = self.path.read_text()
        for name, (life, events) in self.lives.items():
            begin, end = (
                f"<!-- life of {name}: written by make {self.target} -->\n",
                f"<!-- end of {name} -->\n",
            )
            before, rest = text.split(begin)
            text = f"{before}{begin}\n{table(life, events)}\n{end}{rest.split(end)[1]}"
        return text

    def write(self) -> None:
        self.path.write_text(self.text())


def table(life: Life, events: type[Enum]) -> str:
    """The states with their meanings, and the changes of state: equal ones of several states are one row."""
    meanings = [f"| {_word(state)} | {state.value[1]} |" for state in life]
    changes = [
        f"| {_words(befores, life)} | {event.value} | {_word(after)} |"
        for event in events
        for after in life
        if (befores := [state for state in life if life[state].get(event) is after])
    ]
    head = ["| state | meaning |", "|---|---|"]
    return "\n".join([*head, *meanings, "", "| from | when | to |", "|---|---|---|", *changes, ""])


def _words(states: list[Enum], life: Life) -> str:
    lasting = [state for state in life if life[state]]
    return "any" if len(states) > 1 and states == lasting else ", ".join(map(_word, states))


def _word(state: Enum) -> str:
    return str(state.value[0])
