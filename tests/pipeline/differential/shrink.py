"""Shrinks what a difference was found with: one program, fewer changes, a simpler query; each step as long as it still differs."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pipeline.differential.oracles import Record
from pipeline.differential.programs import Program

__all__ = ["RUNS_MAX", "Case", "shrunk", "simpler"]

RUNS_MAX = 80
CLAUSES = (
    r" HAVING .*?(?=\)|$)",
    r" FILTER \(WHERE .*?\)(?= AS )",
    r" WHERE (?:(?! FROM | GROUP ).)*?(?= GROUP BY |$)",
)


class Case(NamedTuple):
    """Programs, and what happens to their tables."""

    programs: list[Program]
    batches: list[list[Record]]

    def __str__(self) -> str:
        lines = [f"{each.kind}: {each.text}" for each in self.programs]
        for number, batch in enumerate(self.batches):
            lines += [
                f"  batch {number}: {each.topic} {each.key} {each.row or 'is deleted'}" for each in batch
            ]
        return "\n".join(lines)


class _Tries:
    """Asks whether a case still fails, so many times at most."""

    def __init__(self, fails: Callable[[Case], bool], most: int) -> None:
        self._fails, self._left = fails, most

    def __call__(self, case: Case) -> bool:
        self._left -= 1
        return self._left >= 0 and self._fails(case)


def shrunk(case: Case, fails: Callable[[Case], bool], runs_max: int = RUNS_MAX) -> Case:
    """A smaller case that fails too. ``fails`` says whether one does."""
    tries = _Tries(fails, runs_max)
    for each in case.programs if len(case.programs) > 1 else ():
        if tries(case._replace(programs=[each])):
            case = case._replace(programs=[each])
            break
    while len(case.batches) > 1 and tries(case._replace(batches=case.batches[:-1])):
        case = case._replace(batches=case.batches[:-1])
    case = _fewer(case, tries)
    return _simpler(case, tries)


def _fewer(case: Case, tries: Callable[[Case], bool]) -> Case:
    """Leaves out stretches of what happens: halves, quarters, and so on."""
    size = max(sum(map(len, case.batches)) // 2, 1)
    while size:
        at = 0
        while at < sum(map(len, case.batches)):
            less = case._replace(batches=_without(case.batches, at, at + size))
            if tries(less):
                case = less
            else:
                at += size
        size //= 2
    return case


def _without(batches: list[list[Record]], start: int, end: int) -> list[list[Record]]:
    found, at = [], 0
    for batch in batches:
        found.append([each for n, each in enumerate(batch, at) if not start <= n < end])
        at += len(batch)
    return found


def _simpler(case: Case, tries: Callable[[Case], bool]) -> Case:
    if len(case.programs) != 1:
        return case
    for less in simpler(case.programs[0]):
        if tries(case._replace(programs=[less])):
            return _simpler(case._replace(programs=[less]), tries)
    return case


def simpler(program: Program) -> Iterator[Program]:
    """The same program in SQL without a clause, or without one of the columns that are not part of its key."""
    if program.code or program.query:
        return
    for clause in CLAUSES:
        for found in re.finditer(clause, program.sql):
            yield program._replace(sql=program.sql[: found.start()] + program.sql[found.end() :])
    head, _, rest = program.sql.partition(" FROM ")
    listed = _listed(head.removeprefix("SELECT "))
    for each in listed:
        if len(listed) > len(program.key) + 1 and re.search(r" AS [vs]\d$", each):
            less = ", ".join(other for other in listed if other is not each)
            yield program._replace(sql=f"SELECT {less} FROM {rest}")


def _listed(text: str) -> list[str]:
    """What is between the commas that no bracket is around."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
