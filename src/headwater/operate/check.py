"""Check: a live view against a batch over the same records, row by row, at one position.

The newest result that readers see says up to where the view has read and up to where its topic then reached. The topic is read
up to there, and the batch takes just the records up to there, but for those that came late. So the pipeline may run meanwhile.

The batch runs the same operators as the view. A plain one runs Spark's own instead, so that a defect of an operator cannot hide from its check.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from headwater.app import App
from headwater.compare import Row, unequal
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.graph import Graph, View
from headwater.late import duration_us
from headwater.operate import state
from headwater.pipeline import failed, late, plan, session
from headwater.pipeline.batch import Place, batch, records
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.differing import PUBLISH
from headwater.pipeline.failed import FailedRecord
from headwater.pipeline.groups import group
from headwater.pipeline.late import LateRecord
from headwater.pipeline.plain.moment import At
from headwater.pipeline.topics import Positions, Topics
from headwater.pipeline.wire import VERSION
from headwater.position import Position
from headwater.result import Result, results
from headwater.schema import wire

__all__ = ["Checked", "Difference", "LeftOut", "check", "compared", "left_out", "newest"]

PLACE = {"_topic": "topic", "_partition": "partition", "_offset": "offset"}
Rows = dict[str, list[Row]]
"""By key. In a view that appends a key has any number of rows; in others one, though a batch may find several for it."""


class Difference(msgspec.Struct, frozen=True):
    """A key whose row is not the batch's; None where there is none, and in a view that appends, one that has no like."""

    key: str
    view: Row | None
    batch: Row | None

    @property
    def columns(self) -> list[str]:
        return [] if self.view is None or self.batch is None else unequal(self.view, self.batch)


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What a check has found."""

    view: str
    rows: int
    records: int
    complete_to: str | None = None
    """The view's watermark, if it has one."""
    differing: int = 0
    first: Difference | None = None
    """That of the smallest key."""
    notes: tuple[str, ...] = ()
    plain: bool = False
    """Whether the batch was computed by Spark's plain operators."""

    def __str__(self) -> str:
        over = f"a {'plain ' if self.plain else ''}batch over {self.records:,} records"
        upto = f", complete up to {self.complete_to}" if self.complete_to else ""
        if self.first is None:
            return "\n".join([f"{self.view}: {self.rows:,} rows equal {over}{upto}", *self.notes])
        columns = f", in {', '.join(self.first.columns)}" if self.first.columns else ""
        return "\n".join(
            [
                f"{self.view}: {self.differing:,} of {self.rows:,} rows differ from {over}{upto}",
                f"the first is {self.first.key}{columns}",
                f"  view   {_text(self.first.view)}",
                f"  batch  {_text(self.first.batch)}",
                *self.notes,
            ]
        )


class _Reached(msgspec.Struct, frozen=True):
    """One position of a view: what it has read, and up to where its topic has what it made of it."""

    inputs: Positions
    outputs: dict[int, int]
    result: Result | None


def check(app: App, settings: Settings, name: str, *, plain: bool = False) -> Checked:
    """Compares a view with its batch answer; with ``plain``, one by Spark's plain operators.

    UsageError for a view without results, without a position to compare at, or that plain operators cannot compute.
    """
    graph = app.graph()
    if name not in graph.views:
        raise UsageError(f"unknown view {name!r}", expected=", ".join(graph.views))
    view = graph.views[name]
    topics = Topics(settings.access)
    try:
        reached = _settled(topics, graph, view) if view.latency == "realtime" else _reached(settings, name)
        before = _expired(topics, view, reached.result)
        shown = newest(topics, view, reached.outputs)
        without = left_out(topics, name, reached.result, reached.inputs)
        taken, lost = _taken(topics, reached.inputs, without.all())
    finally:
        topics.close()
    # A pipeline that runs beside this has its own session, and its logs in the data folder itself.
    session.start(settings, import_folder=app.folder, folder=session.data(settings) / "check")

    def computed(inputs: Positions, result: Result | None) -> Rows:
        there = [
            each for each in without.all() if each.offset < inputs.get(each.topic, {}).get(each.partition, 0)
        ]
        at = _moment(view, result) if plain else None
        return _answer(batch(app, settings, name, Position(inputs), there, plain=at), view)

    answer = computed(reached.inputs, reached.result)
    forgotten = []
    if view.forget is not None and any(key not in shown for key in answer):
        old = computed(before.inputs, before) if before is not None else {}
        forgotten = list(_forgotten(shown, answer, old))
    for key in forgotten:
        del answer[key]
    waiting = list(_waiting(view, reached.result, shown, answer))
    for key in waiting:
        del answer[key]
        shown.pop(key, None)
    several = 0 if view.append else sum(len(set(map(_text, rows))) > 1 for rows in answer.values())
    differing, first = compared(shown, answer, append=view.append)
    return Checked(
        view=name,
        rows=sum(map(len, shown.values())),
        records=taken,
        complete_to=_complete_to(reached.result),
        differing=differing,
        first=first,
        plain=plain,
        notes=(
            *_late_notes(view, reached.result, len(without.late), differs=first is not None),
            *_counted(
                len(without.failed), f"records are in {failed.topic(name)}, since the query fails on them"
            ),
            *_counted(
                lost, "records that the view has read are no longer in the log: rows may differ by them"
            ),
            *_forget_notes(view, reached.result, before, len(forgotten)),
            *_counted(len(waiting), "rows of the batch are not complete yet"),
            *_counted(
                several,
                "keys have several rows in the batch, and no order between them: the view has one of them",
            ),
        ),
    )


# ---- the position --------------------------------------------------------------------------------------


def _reached(settings: Settings, view: str) -> _Reached:
    """The newest result that was made from all records up to one position."""
    known = state.results(settings, view)
    for batch_number in sorted(known, reverse=True):
        found = known[batch_number]
        checkpoint = Checkpoint(session.data(settings) / "checkpoints" / view / found.run)
        # A view that reads a topic twice may have read more of it here than there; the result says only the smaller.
        if checkpoint.ends(found.batch) in ({}, found.inputs):
            return _Reached(found.inputs, found.outputs, found)
    raise UsageError(
        f"view {view!r} cannot be compared now: it reads a topic twice, and not as far in both readings",
        hint="check it again, or when it has caught up",
    )


def _settled(topics: Topics, graph: Graph, view: View) -> _Reached:
    """Where a real-time view stands when it has read all: it says what it has read only now and then, so at no other time is that known."""
    names = [topic for stream in graph.inputs(view).values() for topic in topics.of(stream, graph)]
    ends = topics.ends(names)
    read = topics.committed(group(view.name), [(t, p) for t, partitions in ends.items() for p in partitions])
    behind = sum(end - read.get((t, p), 0) for t, partitions in ends.items() for p, end in partitions.items())
    if behind:
        raise UsageError(
            f"view {view.name!r} runs in real time and is known to have read all but {behind:,} records",
            expected="one that has read everything: in between, what its rows contain is not known",
            hint="check it when its streams are quiet; it says every few seconds how far it is",
        )
    return _Reached(ends, topics.ends([view.name]).get(view.name, {}), None)


class LeftOut(NamedTuple):
    """The records that a run has left out."""

    late: list[Place]
    failed: list[Place]

    def all(self) -> list[Place]:
        return sorted({*self.late, *self.failed})


def left_out(topics: Topics, view: str, found: Result | None, inputs: Positions) -> LeftOut:
    """Those of this run up to its result; a real-time view has neither results nor other runs."""
    runs = {found.run, ""} if found is not None else None

    def places(records: Iterable[LateRecord | FailedRecord]) -> list[Place]:
        return sorted(
            {
                Place(each.topic, each.partition, each.offset)
                for each in records
                if (runs is None or each.run in runs)
                and each.offset < inputs.get(each.topic, {}).get(each.partition, 0)
            }
        )

    timed = found is None or found.watermark is not None
    return LeftOut(
        places(late.published(topics, view)) if timed else [], places(failed.published(topics, view))
    )


def _taken(topics: Topics, inputs: Positions, without: Collection[Place]) -> tuple[int, int]:
    """How many records the batch takes, and how many of those that the view has read the log holds no more."""
    taken = lost = 0
    for topic, partitions in inputs.items():
        bounds = topics.bounds(topic)
        for number, end in partitions.items():
            start = min(bounds.get(number, (0, 0))[0], end)
            taken, lost = taken + end - start, lost + start
    return taken - len(without), lost


def _moment(view: View, found: Result | None) -> At:
    """What the view had heard of time by its result."""
    if found is None:
        return At(view=view.name)
    return At(
        view=view.name,
        now_us=found.now_us or None,
        watermark_us=found.watermark,
        horizon_us=view.late.horizon_us,
        opens=found.opens,
    )


def _expired(topics: Topics, view: View, found: Result | None) -> Result | None:
    """The newest result of a view that forgets which is as old as its rows get: what has not changed since then may be gone.

    If the log holds no result that is so old, the oldest one: what has changed since then must be there, of the rest nothing is known.
    """
    if view.forget is None or found is None:
        return None
    known = {each.batch: each for each in results(topics, view.name) if each.run == found.run}
    bound = found.now_us - duration_us(view.forget)
    old = [number for number, each in known.items() if each.now_us <= bound]
    if old:
        return known[max(old)]
    return known[min(known)] if min(known) > 0 else None


def _forgotten(shown: Rows, answer: Rows, old: Rows) -> Iterator[str]:
    """The keys that a view has rightly forgotten: their rows are those of a batch over what it had read when the time of its oldest rows began."""
    for key, rows in answer.items():
        if key not in shown and key in old and not unequal(rows[0], old[key][0]):
            yield key


# ---- the rows ------------------------------------------------------------------------------------------


def newest(topics: Topics, view: View, outputs: Mapping[int, int] | None = None) -> Rows:
    """The rows of a view as a reader has them who has read its topic up to a position; without one, up to its end."""
    messages = topics.read([view.name], upto=None if outputs is None else {view.name: outputs})
    if view.append:
        return _by_key((each.key().decode(), each.value()) for each in messages)
    found: dict[str, Row] = {}
    for each in messages:
        key = each.key().decode()
        if each.value() is None:
            found.pop(key, None)
            continue
        row = msgspec.json.decode(each.value())
        if VERSION not in row or row[VERSION] >= found.get(key, {}).get(VERSION, 0):
            found[key] = row
    return {key: [_shown(row)] for key, row in found.items()}


def _answer(rows: DataFrame, view: View) -> Rows:
    """What the batch has found. Of rows that were each made of one record, a view has the newest; between partitions there is no order."""
    placed = None if view.append else plan.traced(rows, PLACE)
    if placed is None:
        return _by_key(records(rows, view))
    same = Window.partitionBy(*(f"`{name}`" for name in view.key), "_topic", "_partition")
    last = placed.withColumn("_last", F.max("_offset").over(same)).where("_offset = _last")
    return _by_key(records(last, view))


def _waiting(view: View, found: Result | None, shown: Rows, answer: Rows) -> Iterator[str]:
    """The keys whose rows a view that publishes complete ones may still hold back: those that end with or behind the first that waits."""
    opens = [each for each in found.opens.get(PUBLISH, ()) if each is not None] if found else []
    if view.emit != "ready" or not opens:
        return
    first = _iso(min(opens) - 1)
    for key, rows in answer.items():
        ends = [window["end"] for name in view.key if isinstance(window := rows[0][name], dict)]
        if max(ends, default="") >= first and (key not in shown or unequal(shown[key][0], rows[0])):
            yield key


def _by_key(pairs: Iterable[tuple[str, bytes]]) -> Rows:
    found: Rows = {}
    for key, value in pairs:
        found.setdefault(key, []).append(_shown(msgspec.json.decode(value)))
    return found


def _shown(row: Row) -> Row:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def compared(shown: Rows, answer: Rows, *, append: bool) -> tuple[int, Difference | None]:
    """How many rows differ, and the difference at the smallest key."""
    differing, first = 0, None
    for key in sorted(shown.keys() | answer.keys()):
        ours, theirs = shown.get(key, []), answer.get(key, [])
        if not append:
            # Which of several rows a view shows depends on the order of arrival: it must be one of them.
            theirs = [row for row in theirs if ours and not unequal(ours[0], row)][:1] or theirs[:1]
        ours, theirs = _unmatched(ours, theirs)
        differing += max(len(ours), len(theirs))
        if first is None and (ours or theirs):
            first = Difference(key, ours[0] if ours else None, theirs[0] if theirs else None)
    return differing, first


def _unmatched(ours: list[Row], theirs: list[Row]) -> tuple[list[Row], list[Row]]:
    """What is left of two lists of rows when those that are the same are taken out in pairs."""
    exact = Counter(map(_text, ours)) & Counter(map(_text, theirs))
    left, right = list(_without(ours, exact)), list(_without(theirs, exact))
    alone = []
    for row in left:
        like = next((number for number, other in enumerate(right) if not unequal(row, other)), None)
        if like is None:
            alone.append(row)
        else:
            del right[like]
    return alone, right


def _without(rows: list[Row], taken: Counter[str]) -> Iterator[Row]:
    left = Counter(taken)
    for row in rows:
        text = _text(row)
        if left[text]:
            left[text] -= 1
        else:
            yield row


def _text(row: Row | None) -> str:
    return "-" if row is None else msgspec.json.encode(row).decode()


# ---- what is said --------------------------------------------------------------------------------------


def _complete_to(found: Result | None) -> str | None:
    """Up to when its rows are complete, as text; before anything was heard there is nothing that a person could read."""
    if found is None or found.complete is None or found.complete < 0:
        return None
    return _iso(found.complete)


def _iso(time_us: int) -> str:
    return str(wire(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)))


def _late_notes(view: View, found: Result | None, known: int, *, differs: bool) -> Iterator[str]:
    missing = found.late - known if found is not None else 0
    if view.late.policy == "drop":
        yield from _counted(missing, "late records were dropped without a trace: rows may differ by them")
    elif differs:
        yield from _counted(
            missing, f"late records are not in {late.topic(view.name)}: rows may differ by them"
        )


def _forget_notes(view: View, found: Result | None, old: Result | None, forgotten: int) -> Iterator[str]:
    yield from _counted(forgotten, f"rows of the batch have left the view, which forgets after {view.forget}")
    if forgotten and view.forget and found and old and old.now_us > found.now_us - duration_us(view.forget):
        yield "the log holds no result from as long ago: of rows from before its oldest one it is not known when they had to go"


def _counted(number: int, text: str) -> Iterator[str]:
    if number > 0:
        yield f"{number:,} {text}"
