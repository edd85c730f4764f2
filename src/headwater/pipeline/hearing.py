"""Hearing: what a driver knows of the partitions of a view's inputs, from batch to batch, and the watermark that follows.

    stretch    what a batch reads: from where, up to where, by source
    silence    of a partition grows only as far as batches have read it to the end that was there when they were planned, and found no time
               in it; while the driver looked (``attention.py``). Slow batches, held views and long sleeps make nothing silent
    watermark  of a batch, from that (``time.py``)

No I/O: the stretch comes from Spark's checkpoint, times from what a batch has observed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headwater.pipeline import time
from headwater.pipeline.attention import When
from headwater.pipeline.topics import Positions
from headwater.result import Heard

__all__ = ["Hearing", "Stretch"]


class Stretch(NamedTuple):
    """What a batch reads."""

    before: Positions
    """Up to where batches before it have read."""
    sources: Sequence[Positions]
    """Up to where each source of the query reads; a topic that is read twice is in two."""
    records_max: int = 0
    """So many a source takes at most in a batch; 0 when that is not known."""

    def has_none(self, topic: str, partition: int) -> bool:
        """Whether the batch takes nothing of a partition. Then nothing was there: Spark takes a record of each partition that has any."""
        ends = [ends[topic][partition] for ends in self._of(topic, partition)]
        return bool(ends) and max(ends) == self._begun(topic, partition)

    def has_all(self, topic: str, partition: int) -> bool:
        """Whether the batch takes all of a partition that was there when it was planned, for certain.

        Spark gives each partition a share of the limit, rounded down: a batch that was cut is short of it by less than a record for each of them.
        """
        sources = self._of(topic, partition)
        return bool(sources) and all(
            self._taken(ends) + sum(map(len, ends.values())) <= self.records_max for ends in sources
        )

    def places(self) -> set[tuple[str, int]]:
        """Every topic and partition in it."""
        return {(topic, number) for ends in self.sources for topic, found in ends.items() for number in found}

    def _of(self, topic: str, partition: int) -> list[Positions]:
        return [ends for ends in self.sources if partition in ends.get(topic, {})]

    def _begun(self, topic: str, partition: int) -> int:
        return self.before.get(topic, {}).get(partition, 0)

    def _taken(self, ends: Positions) -> int:
        """Records that a source takes, or more."""
        return sum(
            max(0, end - self._begun(topic, partition))
            for topic, partitions in ends.items()
            for partition, end in partitions.items()
        )


class Hearing:
    """What was heard of a view's inputs. Belongs to the thread that plans its batches."""

    def __init__(
        self,
        inputs: Mapping[str, time.Input],
        known: Mapping[str, Heard],
        reached: int,
        decide: time.Watermark = time.watermark,
    ) -> None:
        self.known = dict(known)
        self.watermark = reached
        """The one that batches are judged by now."""
        self._earlier = self.known
        """What was known before the last batch was heard."""
        self._inputs = inputs
        self._decide = decide

    def plan(self, stretch: Stretch, planned: When) -> int:
        """The watermark of a batch, before it runs: partitions that it takes nothing of were silent until it was planned.

        One that it takes the first records of may bring any time, so that nothing moves before they were seen.
        """
        silent, fresh = [], []
        for place, topic, partition in self._places(stretch):
            if place not in self.known and not stretch.has_none(topic, partition):
                fresh.append(place)
            elif place in self.known and stretch.has_none(topic, partition):
                silent.append(place)
        known = time.silent(silent, self.known, planned.earliest_ms)
        self.known = time.unread(fresh, known, planned.earliest_ms)
        self.watermark = self._decide(self._inputs, self._proved(stretch), self.watermark)
        return self.watermark

    def _proved(self, stretch: Stretch) -> dict[str, Heard]:
        """What a batch may be judged by: an idle place that brings records again is left behind only by times that were heard before it was last
        known to be silent. Sources are asked one after the other, and the last ones may have been ahead.
        """
        again = [
            entry.at_ms + entry.silent_ms
            for place, topic, partition in self._places()
            if (entry := self.known[place]).silent_ms is not None
            and entry.silent_ms * 1000 > self._inputs[place.partition("/")[0]].idle_us
            and not stretch.has_none(topic, partition)
        ]
        if not again:
            return self.known
        unheard = Heard(time.NEVER, 0, None)
        return {
            place: entry if entry.at_ms <= min(again) else self._earlier.get(place, unheard)
            for place, entry in self.known.items()
        }

    def ahead(self) -> int:
        """The watermark if a batch were planned now that brings nothing new."""
        return self._decide(self._inputs, self.known, self.watermark)

    def take(self, notes: Mapping[str, int], stretch: Stretch, planned: When) -> None:
        """After a batch: the greatest time that it met of each place.

        A place in which it met none was silent until the batch was planned, if the batch took all of it; if more was left than the batch could take,
        nothing is known of that, and the place holds up the others until it is.
        """
        mute, unread = [], []
        for place, topic, partition in self._places():
            if place in notes or stretch.has_none(topic, partition):
                continue
            if stretch.has_all(topic, partition):
                mute.append(place)
            elif stretch.records_max:
                unread.append(place)
        known = time.silent(mute, self.known, planned.earliest_ms)
        self._earlier = time.unread(unread, known, planned.earliest_ms)
        self.known = time.heard(notes, self._earlier, planned.latest_ms)

    def silence(self, place: str, at_ms: int) -> None:
        """A place is known to have brought no time up to then."""
        self.known = time.silent([place], self.known, at_ms)

    def due_ms(self, open_us: int) -> int | None:
        """When the watermark passes a time-out if nothing more is heard, in the driver's attention; 0 when it has."""
        return time.due_ms(self._inputs, self.known, self.ahead(), open_us)

    def vague(self, notes: Mapping[str, int], stretch: Stretch) -> list[tuple[str, str, int]]:
        """The places of which a batch has taken records, and met no time in them."""
        return [
            each for each in self._places() if each[0] not in notes and not stretch.has_none(each[1], each[2])
        ]

    def _places(self, stretch: Stretch | None = None) -> Iterator[tuple[str, str, int]]:
        """All places that are known, each with its topic and partition; with a stretch, all that it reads too."""
        places = dict.fromkeys(self.known)
        for topic, partition in stretch.places() if stretch is not None else ():
            for stream, each in self._inputs.items():
                if each.topic == topic:
                    places[f"{stream}/{partition}"] = None
                elif each.pattern and re.fullmatch(each.pattern, topic):
                    places[f"{stream}/{topic}/{partition}"] = None
        for place in places:
            stream, _, rest = place.partition("/")
            topic, _, number = rest.rpartition("/")
            if stream in self._inputs:
                yield place, topic or self._inputs[stream].topic, int(number)
