"""Input times: what the driver knows of the partitions of a view's inputs, and the resulting watermark.

    stretch    what a batch reads: where it starts and ends, by source
    silence    of a partition grows only as far as batches have read it to the end that was there when they
               were planned, and have found no time in it; and only while the driver looked
               (``attention.py``). Slow batches, views that wait and long sleeps make nothing silent
    watermark  of a batch, from that (``watermark.py``)

No I/O: stretches come from Spark's checkpoint, times from the observations of batches.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headwater.pipeline.time import watermark
from headwater.pipeline.time.attention import When
from headwater.pipeline.topics import Positions
from headwater.result import Heard

__all__ = ["InputTimes", "Stretch"]


class Stretch(NamedTuple):
    """What a batch reads."""

    before: Positions
    """Where it starts."""
    sources: Sequence[Positions]
    """Where each source of the query ends; a topic that is read twice is in two of them."""
    records_max: int = 0
    """The maximum number of records that a source takes in a batch; 0 if unknown."""

    def has_none(self, topic: str, partition: int) -> bool:
        """Whether the batch takes nothing of a partition.

        Then nothing was there: Spark takes a record of each partition that has any.
        """
        ends = [ends[topic][partition] for ends in self._of(topic, partition)]
        return bool(ends) and max(ends) == self._start(topic, partition)

    def has_all(self, topic: str, partition: int) -> bool:
        """Whether the batch certainly takes all of a partition that was there when it was planned.

        Spark gives each partition a share of the limit, rounded down: a batch that reaches the limit is short
        of it by less than a record for each partition.
        """
        sources = self._of(topic, partition)
        return bool(sources) and all(
            self._records(ends) + sum(map(len, ends.values())) <= self.records_max for ends in sources
        )

    def places(self) -> set[tuple[str, int]]:
        """Every topic and partition in it."""
        return {
            (topic, number) for ends in self.sources for topic, numbers in ends.items() for number in numbers
        }

    def _of(self, topic: str, partition: int) -> list[Positions]:
        return [ends for ends in self.sources if partition in ends.get(topic, {})]

    def _start(self, topic: str, partition: int) -> int:
        return self.before.get(topic, {}).get(partition, 0)

    def _records(self, ends: Positions) -> int:
        """The number of records that a source takes, or more."""
        return sum(
            max(0, end - self._start(topic, partition))
            for topic, partitions in ends.items()
            for partition, end in partitions.items()
        )


class InputTimes:
    """The event times of a view's inputs so far. Belongs to the thread that plans its batches."""

    def __init__(
        self,
        inputs: Mapping[str, watermark.Input],
        known: Mapping[str, Heard],
        reached: int,
        decide: watermark.Watermark = watermark.watermark,
    ) -> None:
        self.known = dict(known)
        """By place, ``STREAM/PARTITION`` or ``STREAM/TOPIC/PARTITION``."""
        self.watermark = reached
        """The current watermark."""
        self._earlier: dict[str, Heard] = {}
        """What was known before the times of the last batch; nothing after a start."""
        self._inputs = inputs
        self._decide = decide

    def plan(self, stretch: Stretch, planned: When) -> int:
        """The watermark of a batch, before it runs.

        Partitions that it takes nothing of were silent until it was planned.
        The first records of a partition may bring any time, so nothing moves before they were seen.
        """
        silent, fresh = [], []
        for place, topic, partition in self._places(stretch):
            if place not in self.known and not stretch.has_none(topic, partition):
                fresh.append(place)
            elif place in self.known and stretch.has_none(topic, partition):
                silent.append(place)
        heard = watermark.note_silence(silent, self.known, planned.earliest_ms)
        self.known = watermark.note_unread(fresh, heard, planned.earliest_ms)
        self.watermark = self._decide(self._inputs, self._proved(stretch), self.watermark)
        return self.watermark

    def _proved(self, stretch: Stretch) -> dict[str, Heard]:
        """The times by which a batch may be judged.

        If an idle place brings records again, only times count that were known before its silence was last
        proved: sources are asked one after the other, and the last ones may have been ahead. A place that has
        never brought a time holds nothing up, so it is idle too.
        """
        again = [
            entry.at_ms + entry.silent_ms
            for place, topic, partition in self._places()
            if (entry := self.known[place]).silent_ms is not None
            and (entry.time_us == watermark.NEVER or entry.silent_ms * 1000 > self._idle_us(place))
            and not stretch.has_none(topic, partition)
        ]
        if not again:
            return self.known
        unheard = Heard(watermark.NEVER, 0, None)
        return {
            place: entry if entry.at_ms <= min(again) else self._earlier.get(place, unheard)
            for place, entry in self.known.items()
        }

    def _idle_us(self, place: str) -> int:
        return self._inputs[place.partition("/")[0]].idle_us

    def ahead(self) -> int:
        """The watermark of a batch that is planned now and brings nothing new."""
        return self._decide(self._inputs, self.known, self.watermark)

    def take(self, times: Mapping[str, int], stretch: Stretch, planned: When) -> None:
        """After a batch: the greatest time that it met in each place.

        A place without a time was silent until the batch was planned, if the batch took all of it. If more
        was there than the batch could take, nothing is known, and the place holds up the others.
        """
        mute, unread = [], []
        for place, topic, partition in self._places():
            if place in times or stretch.has_none(topic, partition):
                continue
            if stretch.has_all(topic, partition):
                mute.append(place)
            elif stretch.records_max:
                unread.append(place)
        heard = watermark.note_silence(mute, self.known, planned.earliest_ms)
        self._earlier = watermark.note_unread(unread, heard, planned.earliest_ms)
        self.known = watermark.note_times(times, self._earlier, planned.latest_ms)

    def silence(self, place: str, at_ms: int) -> None:
        """Notes that a place has brought no time up to then."""
        self.known = watermark.note_silence([place], self.known, at_ms)

    def due_ms(self, open_us: int) -> int | None:
        """When the watermark passes a time-out if no further event comes, in the driver's attention.

        0 if it has.
        """
        return watermark.due_ms(self._inputs, self.known, self.ahead(), open_us)

    def vague(self, times: Mapping[str, int], stretch: Stretch) -> list[tuple[str, str, int]]:
        """The places of which a batch has taken records, and met no time in them."""
        return [
            (place, topic, partition)
            for place, topic, partition in self._places()
            if place not in times and not stretch.has_none(topic, partition)
        ]

    def _places(self, stretch: Stretch | None = None) -> Iterator[tuple[str, str, int]]:
        """All known places with their topic and partition; with a stretch, also those that it reads."""
        places = dict.fromkeys(self.known)
        for topic, partition in stretch.places() if stretch is not None else ():
            for stream, spec in self._inputs.items():
                if spec.topic == topic:
                    places[f"{stream}/{partition}"] = None
                elif spec.pattern and re.fullmatch(spec.pattern, topic):
                    places[f"{stream}/{topic}/{partition}"] = None
        for place in places:
            stream, _, rest = place.partition("/")
            topic, _, number = rest.rpartition("/")
            if stream in self._inputs:
                yield place, topic or self._inputs[stream].topic, int(number)
