"""Checkpoint: the folder in which Spark records what a view has read, as far as our code uses it."""

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from headwater.pipeline.topics import Positions

__all__ = ["Checkpoint"]


class Checkpoint:
    """The checkpoint folder of one run of a view, named by the run.

    Spark writes all but the first ``metadata``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, view: Path, run: str | None) -> Self:
        """The folder of a run; without one, of the run that began last, or of a new one."""
        begun = sorted(view.glob("*/metadata"), key=lambda file: file.stat().st_mtime)
        return cls(view / (run or (begun[-1].parent.name if begun else str(uuid.uuid4()))))

    @property
    def run(self) -> str:
        return self.folder.name

    def begin(self) -> None:
        """Creates the folder, with the id that Spark is to give to the query."""
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
        """Removes the files of the last batches that a power cut has left empty, and returns them.

        Their batches have no result, or are run again. The same holds for snapshots of Spark's own state,
        which it uploads in the background: there is an older one, and all changes since.
        """
        patterns = ("offsets/[0-9]*", "commits/[0-9]*", "state/**/*.zip")
        empty = [
            file for pattern in patterns for file in self.folder.glob(pattern) if not file.stat().st_size
        ]
        for file in empty:
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        return empty

    def last(self) -> int:
        """The last batch that Spark has closed, or -1."""
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
        """The number of partitions of Spark's own state, from the first batch on; None before it."""
        metadata = self._metadata(0)
        return int(metadata["conf"]["spark.sql.shuffle.partitions"]) if metadata else None

    def separates_attempts(self) -> bool:
        """Whether the state that an attempt of a batch writes never takes the place of another attempt's.

        It does in Spark's first format, whose files are named by the batch alone. A query keeps the format
        with which it has begun, and its commits have the same version.
        """
        file = self.folder / "commits" / str(self.last())
        first = file.exists() and file.read_text().startswith("v1")
        return not first or not any((self.folder / "state").glob("[0-9]*"))

    def watermark_us(self, batch: int) -> int | None:
        """Spark's own watermark in a batch, in microseconds; None while it has not moved."""
        metadata = self._metadata(batch)
        return metadata["batchWatermarkMs"] * 1000 if metadata and metadata["batchWatermarkMs"] else None

    def next_watermark_us(self, batch: int) -> int | None:
        """The watermark with which Spark begins the batch after a closed one."""
        file = self.folder / "commits" / str(batch)
        next_ms = json.loads(file.read_text().splitlines()[1])["nextBatchWatermarkMs"] if file.exists() else 0
        return next_ms * 1000 if next_ms else None

    def _metadata(self, batch: int) -> dict[str, Any]:
        file = self.folder / "offsets" / str(batch)
        return dict(json.loads(file.read_text().splitlines()[1])) if file.exists() else {}

    def planned_ms(self, batch: int) -> int:
        """When Spark had determined where a batch ends, as wall-clock time; 0 if it does not say."""
        return int(self._metadata(batch).get("batchTimestampMs", 0))

    def begun(self) -> Positions:
        """Where the first batch started, as each source has noted it; empty before that."""
        starts = [
            _positions(file.read_text().partition("\n")[2]) for file in self.folder.glob("sources/[0-9]*/0")
        ]
        return _merge(starts, min)

    def starts(self, batch: int) -> Positions:
        """Where a batch starts."""
        return self.reached(batch - 1)

    def ends(self, batch: int) -> Positions:
        """Where a batch ends: the greatest of its sources' positions."""
        return _merge(self.sources(batch), max)

    def reached(self, batch: int) -> Positions:
        """Up to where all sources have read by the end of a batch: the smallest of their positions."""
        return _merge(self.sources(batch), min)

    def complete(self) -> Positions:
        """What the last closed batch, and all before it, have read and published."""
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
