"""The check of a view: its rows are compared, row by row, with a batch over the same records.

The newest result gives a position: the offsets that the view has read, and the offsets of its topic with the
rows made from them. The rows up to there are compared with a batch over exactly those records, except the
ones that the view has left out, such as late records. So the pipeline may run at the same time.

By default the batch uses the same operators as the view. A plain batch uses Spark's own operators instead,
which finds defects in Headwater's operators too.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from headwater.config import Settings
from headwater.declare.app import App
from headwater.declare.duration import duration_us
from headwater.declare.schema import wire
from headwater.declare.spec import View
from headwater.errors import UsageError
from headwater.operate.compare_rows import unequal
from headwater.operate.views.row_diff import Difference, Rows, as_text, batch_rows, diff, view_rows
from headwater.operate.views.view_position import (
    count_records,
    left_out,
    moment_of,
    position_of,
    result_before_forget,
)
from headwater.pipeline.batch.batch import Place, batch
from headwater.pipeline.left_out import failed_records, late_records
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.spark import session
from headwater.pipeline.topics import Positions, Topics
from headwater.position import Position
from headwater.result import Result

__all__ = ["CheckReport", "check"]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a check; its text is what ``headwater view check`` prints."""

    view: str
    rows: int
    records: int
    complete_to: str | None = None
    """The view's watermark, if it has one."""
    differing: int = 0
    first: Difference | None = None
    """The difference at the smallest key."""
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
                f"  view   {as_text(self.first.view)}",
                f"  batch  {as_text(self.first.batch)}",
                *self.notes,
            ]
        )


class _Batch(NamedTuple):
    """The batch that a view is compared with."""

    app: App
    settings: Settings
    view: View
    left_out: list[Place]
    plain: bool

    def rows(self, inputs: Positions, result: Result | None) -> Rows:
        """Its rows over the records up to a position."""
        skipped = [
            place
            for place in self.left_out
            if place.offset < inputs.get(place.topic, {}).get(place.partition, 0)
        ]
        at = moment_of(self.view, result) if self.plain else None
        rows = batch(self.app, self.settings, self.view.name, Position(inputs), skipped, plain=at)
        return batch_rows(rows, self.view)


def check(app: App, settings: Settings, name: str, *, plain: bool = False) -> CheckReport:
    """Compares a view with a batch; with ``plain``, with one that uses only Spark's own operators.

    UsageError if the view has no results, has no position at which it can be compared, or uses something that
    plain operators cannot compute.
    """
    graph = app.graph()
    if name not in graph.views:
        raise UsageError(f"unknown view {name!r}", expected=", ".join(graph.views))
    view = graph.views[name]
    topics = Topics(settings.access)
    try:
        position = position_of(topics, settings, graph, view)
        result = position.result
        old_result = result_before_forget(topics, view, result)
        shown = view_rows(topics, view, position.outputs)
        skipped = left_out(topics, name, result, position.inputs)
        records, lost = count_records(topics, position.inputs, skipped.all())
    finally:
        topics.close()
    # A pipeline that is running has a session of its own, with logs of its own.
    session.start(settings, import_folder=app.folder, name="check")
    computed = _Batch(app, settings, view, skipped.all(), plain)
    answer = computed.rows(position.inputs, result)
    forgotten = _drop_forgotten(computed, shown, answer, old_result)
    held_back = _drop_held_back(view, result, shown, answer)
    differing, first = diff(shown, answer, append=view.append)
    return CheckReport(
        view=name,
        rows=sum(map(len, shown.values())),
        records=records,
        complete_to=_complete_to(result),
        differing=differing,
        first=first,
        plain=plain,
        notes=(
            *_late_notes(view, result, len(skipped.late), differs=first is not None),
            *_left_out_notes(name, len(skipped.failed), lost),
            *_forget_notes(view, result, old_result, forgotten),
            *_counted(held_back, "rows of the batch are not complete yet, so the view holds them back"),
            *_several_notes(view, answer),
        ),
    )


def _drop_forgotten(computed: _Batch, shown: Rows, answer: Rows, old: Result | None) -> int:
    """Drops from the answer the rows that the view has rightly forgotten, and returns their number.

    They have not changed since an old result.
    """
    if computed.view.forget is None or all(key in shown for key in answer):
        return 0
    old_rows = computed.rows(old.inputs, old) if old is not None else {}
    forgotten = [
        key
        for key, rows in answer.items()
        if key not in shown and key in old_rows and not unequal(rows[0], old_rows[key][0])
    ]
    for key in forgotten:
        del answer[key]
    return len(forgotten)


def _drop_held_back(view: View, result: Result | None, shown: Rows, answer: Rows) -> int:
    """Drops from both the keys whose rows a view with ``emit="ready"`` may still hold back.

    Those are the rows that end at the same time as the first row that it holds back, or later.
    """
    opens = [open_us for open_us in result.opens.get(PUBLISH, ()) if open_us is not None] if result else []
    if view.emit != "ready" or not opens:
        return 0
    first = _iso(min(opens) - 1)
    held_back = []
    for key, rows in answer.items():
        ends = [window["end"] for name in view.key if isinstance(window := rows[0][name], dict)]
        if max(ends, default="") >= first and (key not in shown or unequal(shown[key][0], rows[0])):
            held_back.append(key)
    for key in held_back:
        del answer[key]
        shown.pop(key, None)
    return len(held_back)


# ---- the report ----------------------------------------------------------------------------------------


def _complete_to(result: Result | None) -> str | None:
    """The time up to which the rows are complete, as text; None while there is no such time."""
    if result is None or result.complete is None or result.complete < 0:
        return None
    return _iso(result.complete)


def _iso(time_us: int) -> str:
    return str(wire(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)))


def _late_notes(view: View, result: Result | None, published: int, *, differs: bool) -> Iterator[str]:
    missing = result.late - published if result is not None else 0
    if view.late.policy == "drop":
        yield from _counted(
            missing, "late records were dropped and published nowhere: rows may differ because of them"
        )
    elif differs:
        topic = late_records.topic(view.name)
        yield from _counted(missing, f"late records are not in {topic}: rows may differ because of them")


def _left_out_notes(view: str, failed: int, lost: int) -> Iterator[str]:
    yield from _counted(failed, f"records on which the query fails are in {failed_records.topic(view)}")
    yield from _counted(
        lost, "records that the view has read are no longer in the log: rows may differ because of them"
    )


def _forget_notes(view: View, result: Result | None, old: Result | None, forgotten: int) -> Iterator[str]:
    yield from _counted(
        forgotten, f"rows of the batch are no longer in the view, which has forget={view.forget!r}"
    )
    if forgotten and view.forget and result and old and old.now_us > result.now_us - duration_us(view.forget):
        yield "the log holds no result that is old enough to tell when these rows had to be forgotten"


def _several_notes(view: View, answer: Rows) -> Iterator[str]:
    several = 0 if view.append else sum(len(set(map(as_text, rows))) > 1 for rows in answer.values())
    yield from _counted(
        several, "keys have several rows in the batch, in no defined order: the view may show any of them"
    )


def _counted(number: int, text: str) -> Iterator[str]:
    if number > 0:
        yield f"{number:,} {text}"
