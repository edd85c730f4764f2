"""Consumer: confluent_kafka's consumer in the simulated world, as far as our code uses it.

It fetches ahead between two polls, drops what was fetched before a seek or a pause, says where partitions end, and hides aborted transactions from readers of
committed records. Callbacks run in `poll`. What it does not have: client-side caches of who leads, and topic ids in fetches.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from headwater.errors import ErrorCode
from headwater.record import CONTROL, TRANSACTIONAL, BatchHeader, open_batch, whole_batches
from simulation.actors import current_hub
from simulation.answers import Message, Metadata, Place, again_s, failed, insist, listed
from simulation.member import Change, Member
from simulation.network import Link

__all__ = ["Consumer"]

INVALID = -1001
FETCH_S = 0.5
FETCH_BYTES = (700, 5_000, 1 << 20)


@dataclass
class _Reading:
    """One assigned partition. ``offset`` is None where it must not be read until a seek."""

    offset: int | None
    paused: bool = False
    ended_at: int = -1
    """The end that was said last."""
    said: int = 0
    """The error that was said last."""
    version: int = 0


class Consumer:
    """Belongs to one actor; made by ``headwater.client.client.consumer``."""

    def __init__(self, options: dict[str, Any], logger: object = None) -> None:  # noqa: ARG002
        self._hub, self._link = current_hub(), Link()
        self._group = options["group.id"]
        self._committed = options.get("isolation.level", "read_committed") == "read_committed"
        self._reset = options.get("auto.offset.reset", "latest")
        self._says_ends = options.get("enable.partition.eof", False)
        self._session_ms = int(options.get("session.timeout.ms", 45_000))
        self._on_error: Callable[[KafkaError], None] | None = options.get("error_cb")
        self._readings: dict[Place, _Reading] = {}
        self._known: dict[Place, tuple[int, int]] = {}
        self._queue: deque[Message] = deque()
        self._errors: deque[KafkaError] = deque()
        self._changes: deque[Change] = deque()
        self._callbacks: dict[str, Any] = {}
        self._member: Member | None = None
        self._fetching: asyncio.Task | None = None
        self._wake: asyncio.Future | None = None
        self._version = 0
        self._closed = False

    # ---- questions -------------------------------------------------------------------------------------

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Metadata:
        return listed(self._link, topic, timeout)

    def get_watermark_offsets(
        self, place: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        at = (place.topic, place.partition)
        if cached:
            self._hub.check()
            return self._known.get(at, (INVALID, INVALID))
        return self._hub.wait(insist(self._link, timeout, lambda: self._ends(at)))

    async def _ends(self, at: Place) -> tuple[int, int]:
        return await self._offset(at, -2), await self._offset(at, -1)

    async def _offset(self, at: Place, timestamp: int) -> int:
        parts = [{"partition_index": at[1], "timestamp": timestamp}]
        level = int(self._committed)
        answer = await self._link.ask(
            "ListOffsets", 4, isolation_level=level, topics=[{"name": at[0], "partitions": parts}]
        )
        part = answer.topics[0].partitions[0]
        if part.error_code:
            raise failed(part.error_code)
        return part.offset

    def committed(self, places: Sequence[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        return self._hub.wait(insist(self._link, timeout, lambda: self._stored(places)))

    async def _stored(self, places: Sequence[TopicPartition]) -> list[TopicPartition]:
        wanted: dict[str, list[int]] = {}
        for place in places:
            wanted.setdefault(place.topic, []).append(place.partition)
        topics = [{"name": name, "partition_indexes": parts} for name, parts in wanted.items()]
        answer = await self._link.ask(
            "OffsetFetch", 7, group_id=self._group, topics=topics, require_stable=True
        )
        found = {(t.name, p.partition_index): p for t in answer.topics for p in t.partitions}
        if any(part.error_code for part in found.values()):
            raise ConnectionAbortedError("unstable")
        made = []
        for place in places:
            part = found[place.topic, place.partition]
            offset = part.committed_offset if part.committed_offset >= 0 else INVALID
            made.append(TopicPartition(place.topic, place.partition, offset, part.metadata or ""))
        return made

    def commit(
        self, message: object = None, offsets: Sequence[TopicPartition] = (), asynchronous: bool = True
    ) -> list[TopicPartition] | None:
        assert message is None, "our code commits offsets"
        self._hub.check()
        if asynchronous:
            task = self._hub.task(self._commit(list(offsets)))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            return None
        codes = self._hub.wait(insist(self._link, 60, lambda: self._commit(list(offsets))))
        for code in codes:
            if code:
                raise failed(code)
        return list(offsets)

    async def _commit(self, places: Sequence[TopicPartition]) -> list[int]:
        topics: dict[str, list[dict[str, Any]]] = {}
        for place in places:
            entry = {
                "partition_index": place.partition,
                "committed_offset": place.offset,
                "committed_metadata": place.metadata or "",
            }
            topics.setdefault(place.topic, []).append(entry)
        member = self._member
        answer = await self._link.ask(
            "OffsetCommit",
            7,
            group_id=self._group,
            generation_id_or_member_epoch=-1 if member is None else member.generation,
            member_id="" if member is None else member.id,
            topics=[{"name": name, "partitions": parts} for name, parts in topics.items()],
        )
        return [part.error_code for topic in answer.topics for part in topic.partitions]

    # ---- what is read ----------------------------------------------------------------------------------

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._readings = {}
        self.incremental_assign(places)

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        self._hub.check()
        for place in places:
            self._readings[place.topic, place.partition] = _Reading(place.offset)
        self._bump([(place.topic, place.partition) for place in places])

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self._readings.pop((place.topic, place.partition), None)
        self._bump([])

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition(*place) for place in self._readings]

    def seek(self, place: TopicPartition) -> None:
        self._hub.check()
        at = (place.topic, place.partition)
        if at not in self._readings:
            raise failed(KafkaError._STATE, "Erroneous state")
        reading = self._readings[at]
        reading.offset, reading.ended_at, reading.said = place.offset, -1, 0
        self._bump([at])

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self._set_paused(places, paused=True)

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self._set_paused(places, paused=False)

    def _set_paused(self, places: Sequence[TopicPartition], *, paused: bool) -> None:
        self._hub.check()
        for place in places:
            at = (place.topic, place.partition)
            if at in self._readings:
                self._back([at])
                self._readings[at].paused = paused
        self._bump([(place.topic, place.partition) for place in places])

    def _back(self, places: Sequence[Place]) -> None:
        """What was fetched and not handed out will be fetched again."""
        for place in places:
            waiting = [m.offset() for m in self._queue if m._place == place and m.error() is None]
            if waiting and self._readings[place].offset is not None:
                self._readings[place].offset = min(waiting)

    def _bump(self, places: Sequence[Place]) -> None:
        """What was fetched of these before now is outdated."""
        self._version += 1
        for place in places:
            if place in self._readings:
                self._readings[place].version = self._version
        self._queue = deque(m for m in self._queue if m._place in self._readings and m._place not in places)
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None

    # ---- polling ---------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        if self._closed:
            raise RuntimeError("Consumer closed")
        hub = self._hub
        hub.pause()
        seconds = 3600.0 if timeout is None or timeout < 0 else timeout
        limit = hub.loop.time() + (max(seconds, hub.slack) if seconds else 0)
        while True:
            self._serve()
            if self._queue:
                return self._queue.popleft()
            self._fetch()
            left = limit - hub.loop.time()
            if left <= 0:
                return None
            self._wake = hub.loop.create_future()
            try:
                hub.wait(self._wake, left)
            except TimeoutError:
                self._wake = None

    def consume(self, count: int = 1, timeout: float = -1) -> list[Message]:
        self._hub.check()
        assert timeout == 0, "our code takes what is there"
        return [self._queue.popleft() for _ in range(min(count, len(self._queue)))]

    def _awaken(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _serve(self) -> None:
        """Callbacks: of errors, and of the group's decisions."""
        if self._member is not None:
            self._member.polled_at = self._hub.loop.time()
        while self._errors:
            error = self._errors.popleft()
            if self._on_error is not None:
                self._on_error(error)
        while self._changes:
            change = self._changes.popleft()
            self._call_back(change)
            if not change.served.done():
                change.served.set_result(None)

    def _call_back(self, change: Change) -> None:
        places = [TopicPartition(*place) for place in change.places]
        function = self._callbacks.get(change.kind)
        if function is not None:
            function(self, places)
        elif change.kind == "assign":
            self.incremental_assign([TopicPartition(*place, OFFSET_BEGINNING) for place in change.places])
        else:
            self.incremental_unassign(places)

    def _fetch(self) -> None:
        """Fetches from what is assigned and not paused, in the background."""
        wanted = {
            place: reading
            for place, reading in self._readings.items()
            if not reading.paused and reading.offset is not None
        }
        if self._fetching is None and wanted and not self._queue:
            self._fetching = self._hub.task(self._fetched(wanted))
            self._fetching.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task) -> None:
        if self._fetching is task:
            self._fetching = None
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()
        self._awaken()

    async def _fetched(self, wanted: dict[Place, _Reading]) -> None:
        try:
            for place, reading in wanted.items():
                await self._begin(place, reading)
            versions = {place: reading.version for place, reading in wanted.items()}
            answer = await self._request(wanted)
        except (ConnectionError, TimeoutError):
            self._errors.append(KafkaError(KafkaError._ALL_BROKERS_DOWN))
            await asyncio.sleep(again_s(self._hub))
            return
        troubled = False
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic, part.partition_index)
                reading = self._readings.get(place)
                if reading is not None and reading.version == versions[place]:
                    troubled |= self._take(place, reading, part)
        if troubled:
            await asyncio.sleep(again_s(self._hub))

    async def _begin(self, place: Place, reading: _Reading) -> None:
        """The place of a start or an end that has no number yet."""
        if reading.offset in {OFFSET_BEGINNING, OFFSET_END, INVALID}:
            version = reading.version
            try:
                offset = await self._offset(place, -2 if reading.offset != OFFSET_END else -1)
            except KafkaException:
                return  # the fetch will say it
            if reading.version == version:
                reading.offset = offset

    async def _request(self, wanted: dict[Place, _Reading]) -> Any:
        at_end = all(reading.ended_at == reading.offset for reading in wanted.values())
        wait_s = max(FETCH_S, self._hub.slack) if at_end or not self._says_ends else 0.0
        topics: dict[str, list[dict[str, int]]] = {}
        size = self._link.network.chance.choice(FETCH_BYTES)
        for (topic, number), reading in wanted.items():
            part = {"partition": number, "fetch_offset": reading.offset, "partition_max_bytes": size}
            topics.setdefault(topic, []).append(part)
        return await self._link.ask(
            "Fetch",
            11,
            within_s=wait_s + 30,
            max_wait_ms=int(wait_s * 1000),
            min_bytes=1,
            max_bytes=1 << 21,
            session_epoch=-1,
            isolation_level=int(self._committed),
            topics=[{"topic": name, "partitions": parts} for name, parts in topics.items()],
        )

    def _take(self, place: Place, reading: _Reading, part: Any) -> bool:
        """The answer for one partition; True where it is better asked again later."""
        if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return self._out_of_range(place, reading)
        if part.error_code:
            if reading.said != part.error_code:
                reading.said = part.error_code
                error = KafkaError(part.error_code)
                self._queue.append(Message(place, reading.offset or 0, error=error))
            return True
        reading.said = 0
        end = part.last_stable_offset if self._committed else part.high_watermark
        self._known[place] = (part.log_start_offset, end)
        before, skipped = reading.offset, set()
        waiting = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
        for batch in whole_batches(part.records):
            header = BatchHeader.read(batch)
            while waiting and waiting[0][0] <= header.last_offset:
                skipped.add(waiting.pop(0)[1])
            hidden = self._committed and header.attributes & TRANSACTIONAL and header.producer_id in skipped
            if header.attributes & CONTROL:
                skipped.discard(header.producer_id)
            elif not hidden:
                found = (record for record in open_batch(batch) if record.offset >= before)
                self._queue.extend(Message(place, record.offset, record) for record in found)
            reading.offset = max(reading.offset, header.last_offset + 1)
        if self._says_ends and reading.offset >= end and reading.ended_at != reading.offset:
            reading.ended_at = reading.offset
            self._queue.append(Message(place, reading.offset, error=KafkaError(KafkaError._PARTITION_EOF)))
        return False

    def _out_of_range(self, place: Place, reading: _Reading) -> bool:
        if self._reset == "error":
            reading.offset = None
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET)
            self._queue.append(Message(place, 0, error=error))
        else:
            reading.offset = OFFSET_BEGINNING if self._reset == "earliest" else OFFSET_END
        return False

    # ---- the group -------------------------------------------------------------------------------------

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        self._hub.check()
        self._callbacks = {name.removeprefix("on_"): each for name, each in callbacks.items()}
        self._member = Member(self._link, self._group, topics, self._session_ms, self._changed)

    def _changed(self, change: Change) -> None:
        self._changes.append(change)
        self._awaken()

    def close(self) -> None:
        self._hub.check()
        if self._closed:
            return
        self._closed = True
        if self._fetching is not None:
            self._fetching.cancel()
        if self._member is None:
            return
        if self._readings:
            self._call_back(Change("revoke", sorted(self._readings), self._hub.loop.create_future()))
        with contextlib.suppress(ConnectionError, TimeoutError):
            self._hub.wait(self._member.leave(), 10)
