"""Defects of operators, put in one at a time: programs must find each of them. ``found.json`` has the seed that found each.

A defect is a few words of a function that are replaced. It is put into the functions of this process, and of Spark's Python workers, which
look before each task which one it is (``worker/sitecustomize.py``).
"""

import contextlib
import importlib
import inspect
import os
import textwrap
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

__all__ = ["MUTATIONS", "Mutation", "follow", "mutated", "mutated_code"]

FILE = "DIFFERENTIAL_MUTATION"
"""The variable with the name of the file that names the defect of the moment."""


class Mutation(NamedTuple):
    """Where it is, what is there, and what is there instead."""

    module: str
    function: str
    right: str
    wrong: str

    @property
    def about(self) -> str:
        """What the programs have in them that may find it, as a regular expression."""
        return ABOUT.get(self.module, "")


ABOUT = {
    "windows.sessions": "hw.sessions",
    "windows.sliding": "hw.sliding",
    "asof.timeline": "hw.enrich|SYSTEM_TIME",
    "asof.as_of_batch": "hw.enrich|SYSTEM_TIME",
    "interval.match": "hw.match",
    "interval.unmatched": "hw.unmatched",
    "windows.distinct": "hw.distinct",
    "time.late_split": "window|hw.s|hw.match",
    "tables.join_pairs": "JOIN|hw.join",
    "tables.join_by_row": "JOIN.* JOIN|hw.join|JOIN .SELECT|clicks|view",
    "tables.join_by_key": "JOIN|hw.join",
    "tables.group": "GROUP BY|hw.group",
    "tables.group_batch": "GROUP BY|hw.group",
    "tables.top_values": "GROUP BY|hw.group",
    "tables.exact_sums": r"sum\(|avg\(",
    "arrow.sortable_bytes": "min|max",
}
MUTATIONS = {
    "an update of a table does not take the old row out": Mutation(
        "tables.changelog", "Changelog.apply", "_with_weight(unpack(*placed(olds.drop_null()), shown.schema), -1),", ""
    ),
    "a deleted row of a table stays": Mutation(
        "tables.changelog", "Changelog.apply", "after = np.flatnonzero(changed & ~gone)", "after = np.flatnonzero(changed)"
    ),
    "of several changes of a row the first counts": Mutation(
        "tables.changelog", "newest_changes", "np.append(fresh[1:], True)", "fresh"
    ),
    "a row that moves to another partner stays with the old one": Mutation(
        "tables.join_by_key", "Route.apply", "has_old & ~same, ", "has_old & ~same & ~has_old, "
    ),
    "an outer join keeps its null row when a partner comes": Mutation(
        "tables.join_pairs", "_lonely", "- mine.before * ~before[mine.key]", "- mine.before * 0"
    ),
    "an outer join has no null row when the last partner goes": Mutation(
        "tables.join_pairs", "_lonely", "mine.after * ~after[mine.key]", "mine.after * ~(after | before)[mine.key]"
    ),
    "a right join shows no row without a match": Mutation(
        "tables.join_pairs", "PairJoin.pairs", "for side in (0, 1):\n        if self.outer[side]:", "for side in (0,):\n        if self.outer[side]:"
    ),
    "a join takes no pair back": Mutation(
        "tables.join_pairs", "PairJoin.pairs", "- one.before[left] * two.before[right]", "- one.before[left] * two.before[right] * 0"
    ),
    "pairs of rows that came in one batch are missed": Mutation(
        "tables.join_pairs", "PairJoin.pairs", "two.key[: two.changed], numbers, 0, 0)", "two.key[:0], numbers, 0, 0)"
    ),
    "a row that changes alone meets nothing": Mutation(
        "tables.join_pairs", "PairJoin.others", "wanted = np.flatnonzero(theirs)", "wanted = np.flatnonzero(theirs > 1)"
    ),
    "null is a key like others in a join of rows": Mutation(
        "tables.join_by_row", "RowJoin._input", "null |= mine.column(name).is_null().to_numpy()", "pass"
    ),
    "a sum forgets to subtract": Mutation(
        "tables.exact_sums", "totals", "np.add.reduceat(values * weights, starts)", "np.add.reduceat(values * np.abs(weights), starts)"
    ),
    "a count of values counts nulls": Mutation("tables.exact_sums", "totals", "np.where(valid, weights, 0)", "weights"),
    "an average divides by one too many": Mutation(
        "tables.exact_sums", "partial", "[total.count, value]", "[total.count + 1, value]"
    ),
    "a group without rows stays": Mutation("tables.group", "Group.apply", "after > 0)", "after >= 0)"),
    "a group that has not changed in number is not shown again": Mutation(
        "tables.group", "Group._rows", "differs |= column.differs", "pass"
    ),
    "the least value stays when it is taken out": Mutation(
        "tables.top_values", "top_values", "after = before + changed.weight", "after = before + np.abs(changed.weight)"
    ),
    "the next value does not come back": Mutation(
        "tables.top_values", "top_values", "minlength=len(groups.keys)) + aggregate.limit", "minlength=len(groups.keys)) * 0 + aggregate.limit"
    ),
    "a group of null is the group of a text": Mutation(
        "tables.group_batch", "read_groups", 'concat(row_prefixes, b"\\xff")', 'concat(row_prefixes, b"")'
    ),
    "greatest and least are exchanged for doubles below zero": Mutation(
        "arrow.sortable_bytes", "_ordered", "np.where(bits < 0, ~bits, bits ^ np.int64(-1 << 63))", "(bits ^ np.int64(-1 << 63))"
    ),
    "an event exactly a gap later begins a session": Mutation(
        "windows.sessions", "_merge_sessions", "session.first - before.last > gap_us", "session.first - before.last >= gap_us"
    ),
    "a session that became part of another stays": Mutation(
        "windows.sessions", "Sessions.apply", "if session.first not in firsts", "if False"
    ),
    "a session is forgotten a gap too early": Mutation(
        "windows.sessions", "Sessions._kept", "since = horizon - self.gap_us", "since = horizon"
    ),
    "a sliding window has what is exactly its size before": Mutation(
        "windows.sliding", "_changed_windows", "window.total(time - size_us)", "window.total(time - size_us - 1)"
    ),
    "a straggler does not change the rows after it": Mutation(
        "windows.sliding", "_changed_windows", "if following and time < last + size_us:", "if following and time == last:"
    ),
    "a version holds after its time only": Mutation(
        "asof.timeline", "find_versions", "last)] <= time)", "last)] < time)"
    ),
    "a version that comes late corrects nothing": Mutation(
        "asof.as_of_batch", "AsOfBatch._correct", "if self.logic.final_us is not None:", "if True:"
    ),
    "a row that is corrected is not taken back": Mutation(
        "asof.as_of_batch", "AsOfBatch._correct", "self._send(rows, old, differs, sign=-1)", "pass"
    ),
    "an event waits no longer at the bound": Mutation(
        "asof.as_of_batch", "AsOfBatch._waits", "time + self.hold >= self.moment.watermark", "time + self.hold > self.moment.watermark"
    ),
    "what is exactly at the bound does not match": Mutation(
        "interval.match", "Match._pairs", "left.time + after", "left.time + after - 1"
    ),
    "a match does not take the null row back": Mutation("interval.match", "_unmatched_rows", "(retracted, -1,", "(retracted[:0], -1,"),
    "a row of the state is met by no one": Mutation(
        "interval.match", "Match._pairs", "if n == len(left.key) or not right.fresh:", "if True:"
    ),
    "a row that was met is unmatched": Mutation("interval.unmatched", "Unmatched._unmatched", "start == end", "start <= end"),
    "a duplicate exactly as far away counts as new": Mutation(
        "windows.distinct", "Distinct._is_near", "held[place] <= time + self.within_us", "held[place] < time + self.within_us"
    ),
    "a key is its text": Mutation(
        "wire.wire", "identity_expression", "_identity(quoted(name), kinds[name])", "f'CAST({quoted(name)} AS STRING)'"
    ),
    "a row exactly at the watermark is late": Mutation(
        "time.late_split", "Judge.set_bounds", "watermark - self.horizon_us)", "watermark - self.horizon_us + 1)"
    ),
    "stragglers that still count are late": Mutation(
        "time.late_split", "Judge.set_bounds", "watermark - self.horizon_us)", "watermark)"
    ),
    "a LEFT JOIN loses rows by a condition of its left": Mutation(
        "sql.rewrite", "_Query._sort", 'elif columns <= left and how in ("inner", "right"):', "elif columns <= left:"
    ),
}  # fmt: skip
"""What of ``headwater.pipeline`` is replaced by what."""
_applied: dict[str, tuple[Any, CodeType]] = {}


def _function(mutation: Mutation) -> FunctionType:
    module = importlib.import_module(f"headwater.pipeline.{mutation.module}")
    found = reduce(getattr, mutation.function.split("."), module)
    assert isinstance(found, FunctionType)
    return found


def mutated_code(mutation: Mutation) -> CodeType:
    """The code of the function with the defect in it."""
    function = _function(mutation)
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(mutation.right) == 1, f"{mutation.right!r} is there {text.count(mutation.right)} times"
    known: dict[str, Any] = {}
    lines = compile(text.replace(mutation.right, mutation.wrong), inspect.getfile(function), "exec")
    exec(lines, dict(vars(importlib.import_module(function.__module__))), known)  # noqa: S102
    made = known[function.__name__].__code__
    assert isinstance(made, CodeType)
    return made


def _put_in(names: Sequence[str]) -> None:
    """Puts defects in, or none; takes out those that were there."""
    if list(_applied) == list(names):
        return
    for function, code in _applied.values():
        function.__code__ = code
    _applied.clear()
    for name in names:
        function = _function(MUTATIONS[name])
        code = mutated_code(MUTATIONS[name])
        _applied[name] = function, function.__code__
        function.__code__ = code


def follow() -> None:
    """In a worker: has the defects that the file names."""
    file = Path(os.environ[FILE])
    _put_in(file.read_text().splitlines() if file.exists() else [])


@contextlib.contextmanager
def mutated(spark: Any, folder: Path, *names: str) -> Iterator[None]:
    """Operators with these defects, each in another function, here and in the workers of plans that are made meanwhile."""
    file, tests = folder / "mutation", Path(__file__).parents[2]
    environment = spark.sparkContext.environment
    known = dict(environment)
    paths = [str(Path(__file__).parent / "worker"), str(tests), environment.get("PYTHONPATH", "")]
    environment |= {FILE: str(file), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    file.write_text("\n".join(names))
    _put_in(names)
    try:
        yield
    finally:
        _put_in([])
        file.unlink()
        environment.clear()
        environment.update(known)
