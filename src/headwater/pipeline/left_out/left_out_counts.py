"""Left-out counts: how many records of each topic a real-time view has left out, as its group notes it."""

from collections import Counter
from collections.abc import Mapping
from typing import Self

import msgspec

from headwater.follow.left_out_note import LeftOutNote
from headwater.pipeline.engine.engine import Notes
from headwater.pipeline.topics import Positions
from headwater.result import LeftOut

__all__ = ["LeftOutCounts"]


class LeftOutCounts(msgspec.Struct, frozen=True):
    """The counts of the batches that are settled, by topic."""

    since: Positions
    """From where on the records of each partition are counted; 0 where none is given."""
    late: Mapping[str, int]
    invalid: Mapping[str, int]

    @classmethod
    def of(cls, settled: Positions, notes: Notes) -> Self:
        """The counts that a group has noted; where it has no note, counting begins at the position."""
        since: Positions = {}
        late, invalid = dict[str, int](), dict[str, int]()
        for topic, partitions in settled.items():
            for partition, offset in partitions.items():
                note = LeftOutNote.read(notes.get(topic, {}).get(partition, ""))
                since.setdefault(topic, {})[partition] = offset if note is None else note.since
                if note is not None:
                    late[topic], invalid[topic] = note.late, note.invalid
        return cls(since, late, invalid)

    def plus(self, late: Mapping[str, int], invalid: Mapping[str, int]) -> "LeftOutCounts":
        """The counts with those of another batch."""
        return LeftOutCounts(
            self.since, Counter(self.late) + Counter(late), Counter(self.invalid) + Counter(invalid)
        )

    def notes(self, positions: Positions) -> Notes:
        """The notes beside these positions."""
        return {
            topic: {partition: self._note(topic, partition).text() for partition in partitions}
            for topic, partitions in positions.items()
        }

    def _note(self, topic: str, partition: int) -> LeftOutNote:
        since = self.since.get(topic, {}).get(partition, 0)
        return LeftOutNote(since, self.late.get(topic, 0), self.invalid.get(topic, 0))

    @property
    def sum(self) -> LeftOut:
        """The counts of all topics."""
        return LeftOut(sum(self.late.values()), sum(self.invalid.values()))
