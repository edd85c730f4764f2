"""Input topics of simulated views: who writes them, who follows the rows that come out, and who looks."""

import asyncio
import random
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import msgspec

from headwater.declare.app import App
from headwater.declare.graph import Graph
from headwater.declare.lateness import correct, drop, side
from headwater.declare.schema import Event
from headwater.declare.spec import SINK_GROUP, Sink
from headwater.errors import ErrorCode
from headwater.pipeline.left_out.late_records import LateRecord
from headwater.pipeline.topics import Positions
from headwater.record import Record, encode_batch
from headwater.result import TICKS, Result
from simulation.ground import Ground
from simulation.model import Wrong
from simulation.network import Link, Network
from simulation.views import Inputs, Shown
from simulation.world import Loop

__all__ = ["Traffic", "declared"]

DELAY_S, IDLE_S = 10, 30
HONEST_S = 8.0
"""Who writes in time writes at most so long after the event."""
VIEWS = ("counts", "counts", "counts", "ready", "ready", "totals", "newest", "all")


class Tick(Event):
    """An event of the inputs."""

    key: str
    time: datetime


def declared(chance: random.Random) -> App:
    """An application of one or two views."""
    app = App("life")
    for name in ("a", "b"):
        app.stream(name, Tick, key="key", time="time", delay=f"{DELAY_S} seconds", idle=f"{IDLE_S} seconds")

    def both(a: Any, b: Any) -> Any:
        raise NotImplementedError

    def one(a: Any) -> Any:
        raise NotImplementedError

    for name in dict.fromkeys(chance.choices(VIEWS, k=chance.choice((1, 1, 2)))):
        late = chance.choice((side(), side(), drop(), correct("2 minutes")))
        app.view(
            key="key",
            name=name,
            late=late,
            append=name == "all",
            emit="ready" if name == "ready" else "changes",
            pace=chance.choice(("", "", "sink")) if name in {"counts", "newest"} else "",
        )(both if name in {"counts", "ready"} else one)
    for view in app.graph().views:
        app._sinks.append(Sink(f"of-{view}", view, SimpleNamespace(kind="nothing")))
    return app


class Traffic(Ground):
    """Two input topics and the topics of views, read and written without the driver's code."""

    graph: Graph
    writers: Link

    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.inputs = Inputs()
        self.shown: dict[str, Shown] = {}
        self.sink_s = 5.0
        self._read: dict[tuple[str, int], int] = {}

    # ---- who writes and reads ----------------------------------------------------------------------------

    def now_us(self) -> int:
        """The time of those who write, which is never set."""
        return 1_767_603_600_000_000 + int(self.loop.elapsed * 1e6)

    async def write(self, topic: str, partition: int, count: int = 1) -> int | None:
        """Some records, of which a few are late or no events at all; the offset of the first. What a dying broker does not answer is in the log or not."""
        records = []
        for _ in range(count):
            odd = self.chance.random()
            age_us = int(self.chance.uniform(0, HONEST_S if odd > 0.1 else 400) * 1e6)
            event = {
                "key": f"{topic}{partition}{self.chance.randrange(3)}",
                "time_us": self.now_us() - age_us,
            }
            value = b"nothing" if odd > 0.97 else msgspec.json.encode(event)
            headers = () if odd > 0.1 else (("odd", b""),)
            records.append(Record(event["key"].encode(), value, headers, self.clock.now_ms()))
        data = [{"index": partition, "records": encode_batch(records)}]
        try:
            answer = await self.writers.ask(
                "Produce", 9, acks=-1, timeout_ms=1000, topic_data=[{"name": topic, "partition_data": data}]
            )
        except (ConnectionError, TimeoutError):
            return None
        part = answer.responses[0].partition_responses[0]
        if part.error_code:
            raise Wrong(f"{topic}-{partition}: a record was refused: {ErrorCode(part.error_code).name}")
        return part.base_offset

    async def writing(self, seconds: float) -> None:
        """Traffic for some time: of some partitions, at some speed."""
        until = self.loop.time() + seconds
        places = [(topic, n) for topic, count in self.topics().items() for n in range(count)]
        places = self.chance.sample(places, self.chance.randint(1, len(places)))
        pause = self.chance.choice((1, 4, 4, 15))
        while self.loop.time() < until:
            await self.write(*self.chance.choice(places), count=self.chance.choice((1, 1, 3)))
            await asyncio.sleep(self.chance.uniform(0, 2 * pause))

    def topics(self) -> dict[str, int]:
        if self.broker is None:
            return {"a": 2, "b": 1}
        return {name: len(self.broker.catalog.topics[name].partitions) for name in ("a", "b")}

    def has_news(self, reached: list[Positions]) -> bool:
        """Whether topics end elsewhere; of a broker that is down nothing is known."""
        if self.broker is None:
            return True
        known = self.broker.catalog.topics
        return any(
            topic not in known
            or (topic != TICKS and len(known[topic].partitions) != len(parts))
            or any(known[topic].partitions[n].last_stable_offset != offset for n, offset in parts.items())
            for positions in reached
            for topic, parts in positions.items()
        )

    async def follow_rows(self) -> None:
        """The sinks of all views: they commit what they have read."""
        link = Link(Network(self.hub, lambda: self.broker))
        while True:
            await asyncio.sleep(self.sink_s)
            for view in self.graph.views:
                if self.broker is None or view not in self.broker.catalog.topics:
                    continue
                ends = [
                    {"partition_index": n, "committed_offset": part.high_watermark, "committed_metadata": ""}
                    for n, part in enumerate(self.broker.catalog.topics[view].partitions)
                ]
                who = {
                    "group_id": f"{SINK_GROUP}of-{view}",
                    "generation_id_or_member_epoch": -1,
                    "member_id": "",
                }
                try:
                    await link.ask("OffsetCommit", 7, topics=[{"name": view, "partitions": ends}], **who)
                except (ConnectionError, TimeoutError):
                    continue

    # ---- looking -----------------------------------------------------------------------------------------

    async def look(self) -> None:
        """A committed reader reads what is new of everything."""
        found = {name: await self.news(f"{name}.progress", 0) for name in self.shown}
        for topic, count in self.topics().items():
            for number in range(count):
                self.inputs.take((topic, number), await self.news(topic, number))
        for name, shown in self.shown.items():
            if name in self.broker.catalog.topics:
                for number in range(len(self.broker.catalog.topics[name].partitions)):
                    shown.records.setdefault(number, []).extend(await self.news(name, number))
            for row in found[name]:
                shown.take(row.offset, msgspec.json.decode(row.value, type=Result), self.inputs)
            late = [row for number in range(2) for row in await self.rows(f"{name}.late", number)]
            shown.check_late([msgspec.json.decode(row.value, type=LateRecord) for row in late])
            shown.check_files()

    async def news(self, topic: str, partition: int) -> list[Record]:
        """What has come since the last look."""
        if topic not in self.broker.catalog.topics:
            return []
        start = self.broker.catalog.topics[topic].partitions[partition].log_start_offset
        rows, self._read[topic, partition] = await self.client.read(
            topic, partition, max(self._read.get((topic, partition), 0), start)
        )
        return rows

    def is_caught_up(self) -> bool:
        """Whether all views have read everything, and published what is complete."""
        for shown in self.shown.values():
            if shown.seen is None:
                return False
            streams = ("a", "b") if len(shown.view.inputs) > 1 else ("a",)
            for (topic, number), records in self.inputs.records.items():
                if (
                    topic in streams
                    and records
                    and shown.seen.inputs.get(topic, {}).get(number, 0) <= max(records)
                ):
                    return False
            if shown.view.name in {"counts", "ready"} and not shown.complete_rows():
                return False
        return True
