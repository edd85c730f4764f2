"""Results of a view, read from the log: the newest one, those of a run, all runs."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from headwater.client.client import Client
from headwater.formats import RESULT
from headwater.result import RESULTS_KEPT, Result, topic

__all__ = [
    "Replacement",
    "Runs",
    "backwards",
    "current",
    "last_of",
    "newest",
    "of_run",
    "replacement",
    "results",
    "runs",
]


STRETCH_OFFSETS = 2 * RESULTS_KEPT
"""How much of a topic is read at a time, from its end backwards.

Each result is followed by a transaction marker.
"""
NOTE_RESULTS_MAX = 8
"""How many results a driver may publish after the note that it is being replaced, until it is fenced."""


def results(client: Client, view: str) -> list[Result]:
    """All results of a view that the log has, of all its runs, the newest last.

    They are as many as since the last compaction; ``newest`` and ``of_run`` read less.
    """
    return [_decode(record) for record in client.read([topic(view)])]


def backwards(client: Client, view: str) -> Iterator[Result]:
    """The results of a view, of all its runs, the newest first.

    Reads the topic backwards, a stretch at a time, only as far as they are asked for.
    """
    name = topic(view)
    end = client.end_offsets([name]).get((name, 0), 0)
    start, _ = client.bounds(name).get(0, (0, 0)) if end else (0, 0)
    while end > start:
        begin = max(start, end - STRETCH_OFFSETS)
        records = list(client.read([name], {name: {0: end}}, since={name: {0: begin}}))
        yield from map(_decode, reversed(records))
        end = begin


def newest(client: Client, view: str) -> Result | None:
    """The newest result that readers see."""
    return next((result for result in backwards(client, view) if not result.shadow), None)


class Replacement(NamedTuple):
    """The run that is about to replace another one, and its last batch."""

    run: str
    batch: int


def replacement(client: Client, view: str, run: str) -> Replacement | None:
    """The run that is about to replace a run, and how far it is; None if there is none.

    A driver that has published results since the note of a replacement has fenced the writer of the note.
    """
    last: dict[str, int] = {}
    others = 0
    for result in backwards(client, view):
        last.setdefault(result.run, result.batch)
        if result.replaces == run:
            return Replacement(result.run, last[result.run])
        others += not result.shadow
        if others > NOTE_RESULTS_MAX:
            break
    return None


def of_run(client: Client, view: str, run: str, most: int = RESULTS_KEPT) -> list[Result]:
    """The last results of a run, one for each batch, the newest last."""
    return last_of(backwards(client, view), run, most)


def last_of(newest_first: Iterable[Result], run: str, most: int = RESULTS_KEPT) -> list[Result]:
    """The first results of a run in a sequence from the newest on, the newest last.

    Takes no more from the sequence than it needs.
    """
    by_batch: dict[int, Result] = {}
    for result in newest_first:
        if (
            result.run == run and result.batch not in by_batch
        ):  # a later result of a batch replaces earlier ones
            by_batch[result.batch] = result
            if len(by_batch) == most or result.batch == 0:
                break
    return [by_batch[batch] for batch in sorted(by_batch)]


class Runs(NamedTuple):
    """All runs of a view, each with its last result; the run with the newest result is the last one."""

    all: dict[str, Result]
    shown: dict[str, Result]
    """The runs that readers have seen, each with the last result that they saw."""

    @property
    def seen(self) -> Result | None:
        """The newest result that readers see."""
        return next(reversed(self.shown.values()), None)


def runs(client: Client, view: str) -> Runs:
    """The runs of a view. Only their last results are kept in memory."""
    last, shown = dict[str, Result](), dict[str, Result]()
    for record in client.read([topic(view)]):
        result = _decode(record)
        for by_run in (last,) if result.shadow else (last, shown):
            by_run.pop(result.run, None)
            by_run[result.run] = result
    return Runs(last, shown)


def current(newest_last: list[Result]) -> Result | None:
    """The newest result that readers see, of all results."""
    return next((result for result in reversed(newest_last) if not result.shadow), None)


def _decode(record: Any) -> Result:
    name = record.topic()
    view = name.removesuffix(topic(""))
    remedy = f"rebuild the view from the log: headwater view reset {view} --accept-loss"
    return RESULT.decode(record.value(), Result, f"a result in {name}", remedy)
