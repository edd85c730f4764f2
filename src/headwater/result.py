"""Result: what one batch of a view has made, as ``<view>.progress`` holds it.

It stands in the log in one transaction with the batch's records, so whoever reads it finds all that it speaks of.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from headwater.client import Client
from headwater.formats import RESULT

__all__ = [
    "RESULTS_KEPT",
    "Chain",
    "Chains",
    "Edit",
    "File",
    "Heard",
    "Replacement",
    "Result",
    "Runs",
    "Stragglers",
    "Taken",
    "backwards",
    "current",
    "files_of",
    "last_of",
    "newest",
    "of_run",
    "replacement",
    "results",
    "runs",
    "shadow_topic",
    "topic",
]

RESULTS_KEPT = 64
"""The topic is compacted, and the results of a run take turns in so many keys."""
STRETCH_OFFSETS = 2 * RESULTS_KEPT
"""So much of a topic is read at a time, from its end on: each result has the marker of its transaction."""

NOTE_RESULTS_MAX = 8
"""So many results a driver may still publish between the note that it is going to be replaced and its fence."""


class File(msgspec.Struct, frozen=True, array_like=True):
    """One state file of a chain: after it the shard is at ``version``. A whole one needs none before it."""

    name: str
    version: int
    whole: bool
    rows: int
    size_bytes: int
    checksum: int
    entries: int = 0
    """How many the shard has after it."""
    state_bytes: int = 0
    """The length of their keys and values."""

    @property
    def delta(self) -> bool:
        """Whether it holds the changes of one batch, and not those of several."""
        return self.name.endswith(".delta")


Chain = tuple[File, ...]
Chains = dict[str, list[Chain]]
"""By operator, the chain of each of its shards."""


def files_of(chains: Chains) -> set[tuple[str, str]]:
    """Operator and name of every state file that the chains need."""
    return {(operator, file.name) for operator, each in chains.items() for chain in each for file in chain}


class Edit(msgspec.Struct, frozen=True):
    """A change of a view that its state could go on with: what it is since then, from which batch, behind which records."""

    definition: str
    batch: int
    inputs: dict[str, dict[int, int]]


class Stragglers(msgspec.Struct, frozen=True, array_like=True):
    """The records of an input that a batch took in behind its watermark: how many, and where some of them stand, as PARTITION@OFFSET."""

    count: int
    places: tuple[str, ...]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The records of a topic that the batches of a run have read, by what became of them."""

    processed: int
    late: int
    invalid: int
    since: dict[int, int] = {}
    """From which offsets on they are counted, by partition: 0 where none is given."""
    failed: int = 0
    """Those that the query could not take."""

    def plus(self, processed: int, late: int, invalid: int, failed: int = 0) -> "Taken":
        return Taken(
            self.processed + processed,
            self.late + late,
            self.invalid + invalid,
            self.since,
            self.failed + failed,
        )


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """The greatest event time that a partition of an input has brought, and when it last brought one."""

    time_us: int
    at_ms: int
    """By a clock that only counts while the driver looks (``pipeline/attention.py``)."""
    silent_ms: int | None = None
    """For how long it is known to have brought none since then; None for one that has brought records and no time so far of which some are unread, and
    in results from before this was kept."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One batch of one run, complete."""

    format: int = 1
    """Of the result, and of the view's records and late records that it speaks of."""
    run: str
    batch: int
    inputs: dict[str, dict[int, int]]
    """Up to where the batch has read, by topic and partition; of a topic that it reads twice, the smaller one."""
    begun: dict[str, dict[int, int]] = {}
    """From where the run has read, by topic and partition: the first record where none is given."""
    outputs: dict[int, int] = {}
    """Up to where a reader of the view has to read to have seen it, by partition."""
    partitions: int
    """How many the view's topic has: keys stay in theirs."""
    changed: int = 0
    """Records that it published."""
    state: Chains = {}
    layouts: dict[str, str] = {}
    """By operator, how its state is laid out (``pipeline/layout.py``), where an entry is not simply a key and its value."""
    generation: str = ""
    """Names the last time that all of its files were made anew, by a swap or another number of shards: copies from before it are worth nothing."""
    shadow: bool = False
    """A run that is still catching up, beside the one that readers see: its records are in ``<view>.<run>.shadow``."""
    replaces: str = ""
    """The run whose place this one is about to take: that one's driver is fenced now, and waits."""
    definition: str = ""
    """A digest of what the view was made of."""
    parts: dict[str, str] = {}
    """What its state depends on (``pipeline/definition.py``): the run goes on only with the same."""
    edits: tuple[Edit, ...] = ()
    """When the rest of it was changed."""
    columns: dict[str, str] = {}
    """The columns of its rows in Spark's notation: who keeps them in tables of another kind makes these tables by it."""
    watermark: int | None = None
    """By what its rows were judged late, in microseconds; None for a view that keeps nothing for a time."""
    complete: int | None = None
    """Up to when its rows are complete, but for corrections: the watermark, or less behind an operator that holds rows back."""
    views: tuple[str, ...] = ()
    """The views among its inputs: up to when its rows are complete is bounded by theirs (``wait.py``)."""
    now_us: int = 0
    """What the clock said when it was planned."""
    heard: dict[str, Heard] = {}
    """By input and partition, after the batch."""
    opens: dict[str, list[int | None]] = {}
    """By operator, the earliest time-out that each of its shards still waits for, in microseconds."""
    late: int = 0
    """Rows that came too late, in all batches of the run."""
    taken: dict[str, Taken] = {}
    """By topic, in all batches of the run; without topics of a pattern, and without those that it reads twice."""
    failed: dict[str, dict[int, list[int]]] = {}
    """By topic and partition, the offsets of the records of this batch that the query could not take: whoever repeats the batch leaves them out too."""
    stragglers: dict[str, Stragglers] = {}
    """By input: what the corrections of this batch come from."""
    at_ms: int = 0


def topic(view: str) -> str:
    """The topic of a view's results."""
    return f"{view}.progress"


def shadow_topic(view: str, run: str) -> str:
    """The topic of a run that catches up beside the one that readers see."""
    return f"{view}.{run}.shadow"


def results(client: Client, view: str) -> list[Result]:
    """All that the log holds of a view's results, of all its runs, the newest last. As many as it has made since compaction: see ``newest`` and ``of_run``."""
    return [_decoded(record) for record in client.read([topic(view)])]


def backwards(client: Client, view: str) -> Iterator[Result]:
    """The results of a view from the newest on, of all its runs. Reads only as much of the end of their topic as is asked for, a stretch at a time."""
    name = topic(view)
    end = client.end_offsets([name]).get((name, 0), 0)
    start, _ = client.bounds(name).get(0, (0, 0)) if end else (0, 0)
    while end > start:
        begin = max(start, end - STRETCH_OFFSETS)
        found = list(client.read([name], {name: {0: end}}, since={name: {0: begin}}))
        yield from map(_decoded, reversed(found))
        end = begin


def newest(client: Client, view: str) -> Result | None:
    """The newest result that readers see."""
    return next((each for each in backwards(client, view) if not each.shadow), None)


class Replacement(NamedTuple):
    """How far a run is that takes the place of another."""

    run: str
    batch: int


def replacement(client: Client, view: str, run: str) -> Replacement | None:
    """Who is about to take the place of a run, and how far it is. None when nobody is: whoever has published results since such a note has fenced its writer."""
    last: dict[str, int] = {}
    others = 0
    for each in backwards(client, view):
        last.setdefault(each.run, each.batch)
        if each.replaces == run:
            return Replacement(each.run, last[each.run])
        others += not each.shadow
        if others > NOTE_RESULTS_MAX:
            break
    return None


def of_run(client: Client, view: str, run: str, most: int = RESULTS_KEPT) -> list[Result]:
    """The last results of a run, one for each batch, the newest last."""
    return last_of(backwards(client, view), run, most)


def last_of(found: Iterable[Result], run: str, most: int = RESULTS_KEPT) -> list[Result]:
    """Of results from the newest on, the first ones of a run, the newest last; no more of them are looked at than it takes."""
    kept: dict[int, Result] = {}
    for each in found:
        if each.run == run and each.batch not in kept:  # a later one of the same batch has replaced it
            kept[each.batch] = each
            if len(kept) == most or each.batch == 0:
                break
    return [kept[batch] for batch in sorted(kept)]


class Runs(NamedTuple):
    """All runs of a view, each with its last result, the one with the newest last."""

    all: dict[str, Result]
    shown: dict[str, Result]
    """Those that readers have seen, by the last result that they saw."""

    @property
    def seen(self) -> Result | None:
        """The newest result that readers see."""
        return next(reversed(self.shown.values()), None)


def runs(client: Client, view: str) -> Runs:
    """The runs of a view; of their results no more is kept than that."""
    known, shown = dict[str, Result](), dict[str, Result]()
    for record in client.read([topic(view)]):
        each = _decoded(record)
        for into in (known,) if each.shadow else (known, shown):
            into.pop(each.run, None)
            into[each.run] = each
    return Runs(known, shown)


def current(found: list[Result]) -> Result | None:
    """The newest result that readers see, of all that there are."""
    return next((result for result in reversed(found) if not result.shadow), None)


def _decoded(record: Any) -> Result:
    name = record.topic()
    reset = (
        f"rebuild the view from the log: headwater view reset {name.removesuffix(topic(''))} --accept-loss"
    )
    return RESULT.decode(record.value(), Result, f"a result in {name}", reset)
