"""A query of the scripted engine: it plans batches, one after the other, and keeps the files of its checkpoint as Spark does."""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.errors import PySparkException

from headwater.declare.spec import Stream
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.engine.engine import Launch
from headwater.pipeline.time.watermark import tick_partition
from headwater.pipeline.topics import Positions
from headwater.result import TICKS
from simulation.answers import failed

__all__ = ["Query", "Rows"]


class Rows(NamedTuple):
    """A batch that was not run yet."""

    query: "Query"
    batch: int
    starts: list[Positions]
    ends: list[Positions]


class Query:
    """A query that runs, in a thread of its own. See `headwater.pipeline.engine.engine.Query`."""

    def __init__(
        self, engine: Any, prepared: Prepared, launch: Launch, take: Callable[[Any, int], None]
    ) -> None:
        self.prepared = prepared
        self.streams: list[Stream | None] = list(prepared.frame)
        if any(prepared.timed.values()):
            self.streams.append(None)  # ticks
        self.watermark_ms = self.began_ms = 0
        self._engine, self._launch, self._take = engine, launch, take
        self._folder = launch.checkpoint.folder
        self._stop, self._ended = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=f"query {launch.name}")
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self._busy}

    def exception(self) -> Exception | None:
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise (
                self._error
                if isinstance(self._error, PySparkException)
                else PySparkException(str(self._error))
            )
        return ended

    def stop(self) -> None:
        self._stop.set()
        self._ended.wait()

    # ---- its thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._begin()
            upto = self._latest() if self._launch.interval_ms is None else None
            while not self._stop.is_set():
                self._busy = True
                worked = self._trigger(upto)
                self._busy = False
                if not worked:
                    if upto is not None:
                        break
                    self._stop.wait((self._launch.interval_ms or 0) / 1000)
        except Exception as error:  # noqa: BLE001  the runner looks at it
            self._error = error
        self._busy = False
        self._ended.set()

    def _begin(self) -> None:
        """Where the checkpoint says that the query is."""
        planned, closed = _numbers(self._folder / "offsets"), _numbers(self._folder / "commits")
        self._batch = max(planned, default=0)
        self._reached = self._lines(self._batch - 1) if self._batch else self._initial()
        self._planned = bool(planned)
        if planned and self._batch:
            assert self._batch - 1 in planned, f"batch {self._batch - 1} is missing"
        if self._planned:
            self.watermark_ms = self._about(self._batch)["batchWatermarkMs"]
        if closed and max(closed) == self._batch:
            self._reached = self._lines(self._batch)
            said = json.loads((self._folder / "commits" / str(self._batch)).read_text().splitlines()[1])
            self.watermark_ms = said["nextBatchWatermarkMs"]
            self._batch, self._planned = self._batch + 1, False

    def _initial(self) -> list[Positions]:
        """From where the first batch reads, as each source has noted it."""
        found = []
        for number, stream in enumerate(self.streams):
            file = self._folder / "sources" / str(number) / "0"
            if not file.exists() or not file.stat().st_size:
                starts = self._offsets(stream, start=stream is not None)
                self._write(file, "v1", json.dumps(starts))
            found.append(_positions(file.read_text().partition("\n")[2]))
        return found

    def _trigger(self, upto: list[Positions] | None) -> bool:
        """Takes a batch, if there is one."""
        self.began_ms = time.time_ns() // 1_000_000
        if not self._planned:
            if upto is None and not self._engine.moods.news(self._reached):
                return False
            ends = self._limited(self._latest() if upto is None else upto)
            if ends == self._reached:
                return False
            about = {
                "batchWatermarkMs": self.watermark_ms,
                "batchTimestampMs": time.time_ns() // 1_000_000,
                "conf": {"spark.sql.shuffle.partitions": "2"},
            }
            lines = [json.dumps(each) for each in ends]
            self._write(self._folder / "offsets" / str(self._batch), "v1", json.dumps(about), *lines)
            self._planned = True
        ends = self._lines(self._batch)
        self._check_loss(ends)
        self._engine.nap("planned")
        self._take(Rows(self, self._batch, self._reached, ends), self._batch)
        self._engine.nap("closing")
        closed = json.dumps({"nextBatchWatermarkMs": self.watermark_ms})
        self._write(self._folder / "commits" / str(self._batch), "v1", closed)
        self._reached, self._planned, self._batch = ends, False, self._batch + 1
        return True

    def _latest(self) -> list[Positions]:
        """Where the sources end; one after the other is asked."""
        found = []
        for stream, reached in zip(self.streams, self._reached, strict=True):
            ends = self._offsets(stream)
            for topic, parts in reached.items():
                for number, offset in parts.items():
                    if ends.get(topic, {}).get(number, -1) < offset:
                        raise PySparkException(f"{topic}-{number} ends before {offset}: records may be lost")
            found.append(ends)
            self._engine.nap("planning")
        return found

    def _offsets(self, stream: Stream | None, *, start: bool = False) -> Positions:
        topic, only = (
            (TICKS, tick_partition(self.prepared.view.name)) if stream is None else (stream.topic, None)
        )

        async def ask() -> Positions:
            link = self._engine.link
            known = await link.ask("Metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False)
            numbers = [part.partition_index for part in known.topics[0].partitions]
            wanted = [
                {"partition_index": number, "timestamp": -2 if start else -1}
                for number in numbers
                if only in {None, number}
            ]
            topics = [{"name": topic, "partitions": wanted}]
            answer = await link.ask("ListOffsets", 4, isolation_level=1, topics=topics)
            for part in answer.topics[0].partitions:
                if part.error_code:
                    raise failed(part.error_code)
            return {topic: {part.partition_index: part.offset for part in answer.topics[0].partitions}}

        return self._engine.ask(ask)

    def _limited(self, latest: list[Positions]) -> list[Positions]:
        """As Spark limits a batch: a share of each partition, and one record at least. Ticks have no limit."""
        found = []
        for stream, ends, reached in zip(self.streams, latest, self._reached, strict=True):
            left = {
                (topic, number): end - reached.get(topic, {}).get(number, 0)
                for topic, parts in ends.items()
                for number, end in parts.items()
            }
            total, most = sum(left.values()), self.prepared.batch_records
            cut: Positions = {}
            for (topic, number), count in left.items():
                share = most * count / total if total else 0
                taken = count if stream is None or total <= most else min(count, max(int(share), count > 0))
                cut.setdefault(topic, {})[number] = ends[topic][number] - count + taken
            found.append(cut)
        return found

    def _check_loss(self, ends: list[Positions]) -> None:
        for stream, wanted in zip(self.streams, ends, strict=True):
            if stream is None:
                continue
            starts = self._offsets(stream, start=True)
            reached = self._reached[self.streams.index(stream)]
            for topic, parts in wanted.items():
                for number, end in parts.items():
                    begin = reached.get(topic, {}).get(number, 0)
                    if begin < starts.get(topic, {}).get(number, 0) and begin < end:
                        raise PySparkException(f"{topic}-{number} begins after {begin}: records were lost")

    # ---- its files -----------------------------------------------------------------------------------------

    def state(self, version: int) -> dict[str, int]:
        file = self._folder / "state" / "0" / str(version)
        return json.loads(file.read_text()) if version else {}

    def keep_state(self, version: int, state: dict[str, int]) -> None:
        file = self._folder / "state" / "0" / str(version)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{version}.{id(self)}")
        part.write_text(json.dumps(state))
        part.rename(file)
        self._engine.moods.wrote(file)

    def marks(self, batch: int) -> tuple[int, int]:
        """By which watermarks rows of a batch are dropped, and windows forgotten."""
        before = self._about(batch - 1)["batchWatermarkMs"] if batch else 0
        return before, self._about(batch)["batchWatermarkMs"]

    def _about(self, batch: int) -> dict[str, Any]:
        return json.loads((self._folder / "offsets" / str(batch)).read_text().splitlines()[1])

    def _lines(self, batch: int) -> list[Positions]:
        lines = (self._folder / "offsets" / str(batch)).read_text().splitlines()[2:]
        return [_positions(line) for line in lines]

    def _write(self, file: Path, *lines: str) -> None:
        """Renamed into place and not synced; a file that is there was written by another driver."""
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.{id(self)}")
        part.write_text("\n".join(lines))
        try:
            os.link(part, file)
        except FileExistsError:
            raise PySparkException(f"Multiple streaming queries are concurrently using {file}") from None
        finally:
            part.unlink()


def _numbers(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir() if file.name.isdecimal()] if folder.exists() else []


def _positions(line: str) -> Positions:
    return msgspec.json.decode(line, type=dict[str, dict[int, int]])
