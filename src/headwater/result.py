"""Result: what one batch of a view has read, published and stored, as a record of ``<view>.progress``.

It is in the log in the same transaction as the records of the batch, so a reader of a result finds everything
that the result names.
"""

import msgspec

__all__ = [
    "RESULTS_KEPT",
    "TICKS",
    "Chain",
    "Chains",
    "Edit",
    "File",
    "Heard",
    "LeftOut",
    "Result",
    "Stragglers",
    "Taken",
    "files_of",
    "shadow_topic",
    "topic",
]

RESULTS_KEPT = 64
"""The topic is compacted, and the results of a run reuse this many keys in turn."""


TICKS = "headwater.ticks"


class File(msgspec.Struct, frozen=True, array_like=True):
    """One state file of a chain: after it the shard is at ``version``. A whole file needs none before it."""

    name: str
    version: int
    whole: bool
    rows: int
    size_bytes: int
    checksum: int
    entries: int = 0
    """The number of entries of the shard after it."""
    state_bytes: int = 0
    """The length of their keys and values."""

    @property
    def delta(self) -> bool:
        """Whether it holds the changes of one batch, not those of several."""
        return self.name.endswith(".delta")


Chain = tuple[File, ...]
Chains = dict[str, list[Chain]]
"""By operator, the chain of each of its shards."""


def files_of(chains: Chains) -> set[tuple[str, str]]:
    """Operator and name of every state file of the chains."""
    return {
        (operator, file.name) for operator, shards in chains.items() for chain in shards for file in chain
    }


class Edit(msgspec.Struct, frozen=True):
    """A change of a view with which its state could continue.

    It has the definition since then, its first batch, and the position up to which the old one had read.
    """

    definition: str
    batch: int
    inputs: dict[str, dict[int, int]]


class Stragglers(msgspec.Struct, frozen=True, array_like=True):
    """The records of an input that a batch took although they were before its watermark.

    It has their number, and the places of some of them as PARTITION@OFFSET.
    """

    count: int
    places: tuple[str, ...]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """The records of a topic that the batches of a run have read, counted by what became of them."""

    processed: int
    late: int
    invalid: int
    since: dict[int, int] = {}
    """The offset of each partition from which on they are counted; 0 where none is given."""
    failed: int = 0
    """Records on which the query failed."""

    def plus(self, processed: int, late: int, invalid: int, failed: int = 0) -> "Taken":
        return Taken(
            self.processed + processed,
            self.late + late,
            self.invalid + invalid,
            self.since,
            self.failed + failed,
        )


class LeftOut(msgspec.Struct, frozen=True):
    """How many records the run of a view has left out, and why."""

    late: int = 0
    invalid: int = 0
    failed: int = 0


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """The greatest event time of a partition of an input, and when the partition last had an event time."""

    time_us: int
    at_ms: int
    """By a clock that only runs while the driver looks (``pipeline/time/attention.py``)."""
    silent_ms: int | None = None
    """How long since then it is known to have had no event time.

    None for a partition that has had records without an event time, some of them unread; and in older
    results.
    """


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One complete batch of one run."""

    format: int = 1
    """Of the result, and of the records and late records of the view that it names."""
    run: str
    batch: int
    inputs: dict[str, dict[int, int]]
    """The offsets up to which the batch has read, by topic and partition.

    Of a topic that it reads twice, the smaller ones.
    """
    begun: dict[str, dict[int, int]] = {}
    """The offsets at which the run began to read, by topic and partition; by default the first records."""
    outputs: dict[int, int] = {}
    """The offsets up to which a reader of the view has to read to have seen the batch, by partition."""
    partitions: int
    """The number of partitions of the view's topic; it does not change, so keys stay in theirs."""
    changed: int = 0
    """How many records it has published."""
    state: Chains = {}
    layouts: dict[str, str] = {}
    """By operator, the layout of its state (``pipeline/state/layouts.py``).

    Without one, an entry is a key and its value.
    """
    generation: str = ""
    """Names the last time that all state files were rewritten, by a swap or for a new number of shards.

    Copies from before it are worthless.
    """
    shadow: bool = False
    """Whether the run is still catching up while readers see another one.

    Its records are in ``<view>.<run>.shadow``.
    """
    replaces: str = ""
    """The run that this one is about to replace: the driver of that run is fenced by now, and waits."""
    definition: str = ""
    """A digest of the definition of the view."""
    parts: dict[str, str] = {}
    """What its state depends on (``pipeline/definition/definition.py``).

    The run continues only with the same parts.
    """
    edits: tuple[Edit, ...] = ()
    """When the rest of the definition was changed."""
    columns: dict[str, str] = {}
    """The columns of its rows in Spark's notation; tables of stores are created by them."""
    watermark: int | None = None
    """The event time before which its rows were late, in microseconds.

    None for a view without event time.
    """
    reached: int | None = None
    """The watermark at ``at_ms``, if it has advanced by the clock since the batch."""
    complete: int | None = None
    """The event time up to which its rows are complete, but for corrections.

    It is the watermark, or less downstream of an operator that delays rows.
    """
    views: tuple[str, ...] = ()
    """The views among its inputs: its rows are not more complete than theirs (``follow/lineage.py``)."""
    now_us: int = 0
    """The time at which it was planned."""
    heard: dict[str, Heard] = {}
    """By input and partition, after the batch."""
    opens: dict[str, list[int | None]] = {}
    """By operator, the earliest pending time-out of each of its shards, in microseconds."""
    ends: tuple[int, ...] = ()
    """The times after ``complete`` at which published rows become complete; a few of many."""
    late: int = 0
    """Late rows, in all batches of the run."""
    taken: dict[str, Taken] = {}
    """By topic, in all batches of the run.

    Topics of a pattern, and topics that it reads twice, are left out.
    """
    failed: dict[str, dict[int, list[int]]] = {}
    """By topic and partition, the offsets of records of this batch on which the query failed.

    A repetition of the batch leaves them out too.
    """
    stragglers: dict[str, Stragglers] = {}
    """By input, the records that caused the corrections of this batch."""
    at_ms: int = 0


def topic(view: str) -> str:
    """The topic of a view's results."""
    return f"{view}.progress"


def shadow_topic(view: str, run: str) -> str:
    """The topic of a run that is catching up while readers see another one."""
    return f"{view}.{run}.shadow"
