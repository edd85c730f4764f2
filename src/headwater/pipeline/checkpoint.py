"""Checkpoint: the folder in which Spark notes what a view has read, as far as we read or write it ourselves."""

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from headwater.pipeline.topics import Positions

__all__ = ["Checkpoint"]


class Checkpoint:
    """The checkpoint folder of one run of a view, under the run's name; Spark writes everything but the first ``metadata``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, view: Path, run: str | None) -> Self:
        """The folder of a run; without one, of the newest that was begun, or of a new one."""
        begun = sorted(view.glob("*/metadata"), key=lambda file: file.stat().st_mtime)
        return cls(view / (run or (begun[-1].parent.name if begun else str(uuid.uuid4()))))

    @property
    def run(self) -> str:
        return self.folder.name

    def begin(self) -> None:
        """Makes the folder, with the id that Spark is to give to the query."""
        metadata = self.folder / "metadata"
        if not metadata.exists():
            metadata.parent.mkdir(parents=True, exist_ok=True)
            part = metadata.with_suffix(".part")
            with part.open("w") as out:
                out.write(json.dumps({"id": self.run}))
                out.flush()
                os.fsync(out.fileno())
            part.replace(metadata)

    def mend(self) -> list[Path]:
        """Takes away the files of the last batches that a power cut has left empty, and returns them: their batches have no result, or are run once more.

        So are snapshots of Spark's own state, which it makes aside: there is an older one, and all changes since.
        """
        looked = ("offsets/[0-9]*", "commits/[0-9]*", "state/**/*.zip")
        empty = [file for pattern in looked for file in self.folder.glob(pattern) if file.stat().st_size == 0]
        for file in empty:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        return empty

    def last(self) -> int:
        """The last batch that is complete, or -1."""
        return max((int(file.name) for file in (self.folder / "commits").glob("[0-9]*")), default=-1)

    def sources(self, batch: int) -> list[Positions]:
        """Where each source of the query ends in a batch; a topic that is read twice has two entries."""
        file = self.folder / "offsets" / str(batch)
        if not file.exists():
            return []
        # v1: version, metadata, then one line for each source ("-" while a source has nothing yet).
        lines = file.read_text().splitlines()[2:]
        return [_positions(line) for line in lines if line.startswith("{")]

    def partitions(self) -> int | None:
        """Of what Spark keeps for its operators, from the first batch on; None before it."""
        found = self._metadata(0)
        return int(found["conf"]["spark.sql.shuffle.partitions"]) if found else None

    def watermark_us(self, batch: int) -> int | None:
        """Spark's own watermark in a batch, in microseconds; None when it has not got anywhere."""
        found = self._metadata(batch)
        return found["batchWatermarkMs"] * 1000 if found and found["batchWatermarkMs"] else None

    def next_watermark_us(self, batch: int) -> int | None:
        """The one with which Spark begins the batch behind a complete one."""
        file = self.folder / "commits" / str(batch)
        found = json.loads(file.read_text().splitlines()[1])["nextBatchWatermarkMs"] if file.exists() else 0
        return found * 1000 if found else None

    def _metadata(self, batch: int) -> dict[str, Any]:
        file = self.folder / "offsets" / str(batch)
        return dict(json.loads(file.read_text().splitlines()[1])) if file.exists() else {}

    def planned_ms(self, batch: int) -> int:
        """When Spark had found up to where a batch reads, by the time of day; 0 when it does not say."""
        return int(self._metadata(batch).get("batchTimestampMs", 0))

    def begun(self) -> Positions:
        """From where the first batch has read, as each source has noted it; empty before that."""
        found = [
            _positions(file.read_text().partition("\n")[2]) for file in self.folder.glob("sources/[0-9]*/0")
        ]
        return _merge(found, min)

    def starts(self, batch: int) -> Positions:
        """From where a batch reads."""
        return self.reached(batch - 1)

    def ends(self, batch: int) -> Positions:
        """Up to where a batch reads: the greatest of its sources' positions."""
        return _merge(self.sources(batch), max)

    def reached(self, batch: int) -> Positions:
        """What every source has read by the end of a batch: the smallest of its sources' positions."""
        return _merge(self.sources(batch), min)

    def complete(self) -> Positions:
        """What has been read and published for good, by the last complete batch."""
        return self.reached(self.last())


def _positions(line: str) -> Positions:
    return {
        topic: {int(p): offset for p, offset in partitions.items()}
        for topic, partitions in json.loads(line).items()
    }


def _merge(sources: list[Positions], choose: Callable[[int, int], int]) -> Positions:
    merged: Positions = {}
    for positions in sources:
        for topic, partitions in positions.items():
            into = merged.setdefault(topic, {})
            for partition, offset in partitions.items():
                into[partition] = choose(into.get(partition, offset), offset)
    return merged
