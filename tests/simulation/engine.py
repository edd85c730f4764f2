"""A scripted engine in Spark's place: it cuts batches, keeps a checkpoint, computes views in plain Python, and hands their batches to the real driver.

What it does as Spark does, since the driver's promises rest on it:

    positions   offsets/<b> is written before batch b runs and commits/<b> after it, renamed into place and not synced. A driver that finds
                the file of another driver there ends
    planning    one source after the other is asked where it ends, then the time is noted; a limit is shared out between the partitions that have
                records, one each at least
    state       of its own operators is a version for each batch. It forgets windows by the watermark with which a batch was planned, and drops rows by
                the one before that
    tasks       may run twice, and write state files by the real code (``operator.answers``)
    loss        of records that were not read yet ends the query

A view is one of four queries, by its name (``QUERIES``). ``Moods`` makes it slow, and lets tasks fail.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.errors import PySparkException

from headwater.declare.duration import duration_us
from headwater.declare.graph import Graph
from headwater.declare.spec import VIEW_GROUP, Stream, View
from headwater.follow.pace import batch_records
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.definition.definition import Definition
from headwater.pipeline.engine.engine import Computed, Launch, Notes
from headwater.pipeline.engine.observed import Observed
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.state.layouts import WAITING
from headwater.pipeline.time import late_split
from headwater.pipeline.time.watermark import FUTURE_US, Input
from headwater.pipeline.topics import Positions
from headwater.record import CONTROL, TRANSACTIONAL, BatchHeader, Record, open_batch, whole_batches
from simulation.answers import failed, insist
from simulation.computed import COUNTED, Computing, parsed
from simulation.network import Link
from simulation.query import Query, Rows

__all__ = ["Moods", "Scripted"]

ANSWER_S = 60.0
"""So long the engine waits for a log that is away before its query fails."""


@dataclass
class Moods:
    """How the engine feels. ``slow`` gives seconds that a step takes: planning, computing, closing; ``fails``: whether a task does now."""

    slow: Callable[[str], float] = lambda _: 0.0
    fails: Callable[[], bool] = lambda: False
    twice: Callable[[], bool] = lambda: False
    """Whether a task runs twice."""
    news: Callable[[list[Positions]], bool] = lambda _: True
    """Whether a look for records is worth its questions to the log: most are in vain."""
    wrote: Callable[[Path], None] = lambda _: None
    """Hears of files that were renamed into place, and are not synced."""


class Judge(late_split.Judge):
    """Decides which rows are late, by bounds of its own."""

    def __init__(self, horizon_us: int, partitions: Mapping[str, int]) -> None:
        self.horizon_us, self.realtime = horizon_us, False
        self._partitions, self._places = partitions, {}
        self.late_us = self.future_us = 0

    def set_bounds(self, watermark: int, now_us: int) -> None:
        self.late_us, self.future_us = watermark - self.horizon_us, now_us + FUTURE_US + 1


class Groups:
    """Commits positions of views, without waiting."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def commit(
        self,
        view: str,
        positions: Positions,
        notes: Notes | None = None,  # noqa: ARG002
        *,
        wait: bool = True,  # noqa: ARG002
    ) -> bool:
        topics = [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "committed_offset": offset, "committed_metadata": ""}
                    for number, offset in parts.items()
                ],
            }
            for topic, parts in positions.items()
        ]
        who = {"group_id": VIEW_GROUP + view, "generation_id_or_member_epoch": -1, "member_id": ""}
        task = self._link.hub.task(self._link.ask("OffsetCommit", 7, topics=topics, **who))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return False

    def committed(self, view: str) -> tuple[Positions, Notes]:
        raise NotImplementedError(view)

    def close(self) -> None:
        pass


class Scripted:
    """See `headwater.pipeline.engine.engine.Engine`. Belongs to one process."""

    def __init__(self, moods: Moods) -> None:
        self.moods = moods

    def start(self, slots: int, folder: Path | None) -> None:  # noqa: ARG002
        self.link = Link()
        self.groups = Groups(self.link)

    def reading(self) -> int:
        return 0

    def partitions(self) -> int:
        return 0  # rows are never left where they were grouped

    def prepare(
        self,
        graph: Graph,
        view: View,
        shards: int,
        *,
        partitions: Mapping[str, int],
        in_groups: bool,  # noqa: ARG002
    ) -> Prepared:
        streams = list(graph.inputs(view).values())
        judged = view.name in {"counts", "ready"}
        judge = Judge(view.late.horizon_us, partitions) if judged else None
        for stream in streams if judge is not None else ():
            judge.places(stream)
        timed = {PUBLISH: "watermark" if view.emit == "ready" else ""}
        if view.name == "totals":
            timed = {COUNTED: "", **timed}
        text = f"{view.name} of {', '.join(stream.topic for stream in streams)}"
        most = self.most(view)
        return Prepared(
            view,
            streams,
            timed,
            {PUBLISH: WAITING} if view.emit == "ready" else {},
            shards,
            {
                stream.name: Input(duration_us(stream.delay), duration_us(stream.idle), stream.topic)
                for stream in streams
                if judged
            },
            Definition(text, {"steps": text}),
            judge=judge,
            sources={stream.name: stream.topic for stream in streams},
            batch_records=most,
            dated=judged,
        )

    def most(self, view: View) -> int:
        return (
            self.records_max if not view.pace else min(self.records_max, batch_records(40, len(view.inputs)))
        )

    records_max = 30

    def run(self, prepared: Prepared, launch: Launch, take: Callable[[Any, int], None]) -> Query:
        return Query(self, prepared, launch, take)

    def run_in_real_time(self, prepared: Prepared, launch: Launch) -> Query:
        raise NotImplementedError

    def held(self, query: Query) -> Any:  # noqa: ARG002
        return nullcontext()

    def began_ms(self, query: Query) -> int:
        return query.began_ms

    def forget(self, query: Query, reached_us: int) -> None:
        query.watermark_ms = max(query.watermark_ms, reached_us // 1000)

    # ---- batches -----------------------------------------------------------------------------------------

    def compute(self, rows: Rows, plan: Plan, query: Query | None) -> Computed:
        assert query is rows.query
        return self._computed(rows, plan)

    def repeat(self, rows: Rows, plan: Plan) -> None:
        self._computed(rows, plan)

    def _computed(self, rows: Rows, plan: Plan) -> Computed:
        query = rows.query
        made = Computing(rows, plan)
        self.nap("computing")
        for stream, starts, ends in zip(query.streams, rows.starts, rows.ends, strict=True):
            if stream is not None:
                made.hear(stream, self._records(stream.topic, starts, ends))
        for _ in range(2 if self.moods.twice() else 1):
            made.work()
        if self.moods.fails():
            raise PySparkException("a task has failed four times")
        query.keep_state(rows.batch + 1, made.state)
        return Computed(made.notes, Observed.of_rows(made.seen))

    def _records(self, topic: str, starts: Positions, ends: Positions) -> Iterator[tuple[int, Record]]:
        for partition, end in ends[topic].items():
            start = starts.get(topic, {}).get(partition, 0)
            for record in self.ask(lambda p=partition, s=start, e=end: self._fetched(topic, p, s, e)):
                yield partition, record

    async def _fetched(self, topic: str, partition: int, start: int, end: int) -> list[Record]:
        found: list[Record] = []
        at = start
        while at < end:
            part = {"partition": partition, "fetch_offset": at, "partition_max_bytes": 1 << 20}
            fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": -1}
            topics = [{"topic": topic, "partitions": [part]}]
            answer = await self.link.ask("Fetch", 11, isolation_level=1, topics=topics, **fields)
            answered = answer.responses[0].partitions[0]
            if answered.error_code:
                raise failed(answered.error_code, f"{topic}-{partition} at {at}")
            before = at
            waiting = sorted((a.first_offset, a.producer_id) for a in answered.aborted_transactions or ())
            skipped: set[int] = set()
            for batch in whole_batches(answered.records):
                header = BatchHeader.read(batch)
                while waiting and waiting[0][0] <= header.last_offset:
                    skipped.add(waiting.pop(0)[1])
                if header.attributes & CONTROL:
                    skipped.discard(header.producer_id)
                elif not (header.attributes & TRANSACTIONAL and header.producer_id in skipped):
                    found += [r for r in open_batch(batch) if before <= r.offset < end]
                at = header.last_offset + 1
            if at == before:
                raise failed(-1, f"{topic}-{partition} ends at {at}, and not at {end}")
        return found

    # ---- records that are read once more -------------------------------------------------------------------

    def late(self, stream: Stream, starts: Positions, ends: Positions, *, before_us: int) -> Iterable[Any]:
        for partition, record in self._records(stream.topic, starts, ends):
            event = parsed(record.value)
            if event is not None and event[1] < before_us:
                yield _Found(stream.topic, partition, record.offset, record.value.decode(), event[1])

    def invalid(self, stream: Stream, starts: Positions, ends: Positions) -> Iterable[Any]:
        for partition, record in self._records(stream.topic, starts, ends):
            if parsed(record.value) is None:
                yield _Found(stream.topic, partition, record.offset, record.value, 0)

    # ---- the log -------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[], Any]) -> Any:
        return self.link.hub.wait(insist(self.link, ANSWER_S, question))

    def nap(self, step: str) -> None:
        seconds = self.moods.slow(step)
        if seconds:
            time.sleep(seconds)


class _Found(NamedTuple):
    topic: str
    partition: int
    offset: int
    value: Any
    time_us: int
