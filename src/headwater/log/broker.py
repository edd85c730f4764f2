"""Broker: everything that the log knows, put together. No sockets: ``kafka/`` brings the requests."""

import asyncio
import contextlib
import logging
import uuid
from pathlib import Path
from typing import Literal

import msgspec

from headwater.clock import Clock, SteadyClock, SystemClock
from headwater.decoders import from_json
from headwater.errors import ErrorCode, Refused, StorageError
from headwater.log.commit import Committer
from headwater.log.coordinator import TRANSACTIONS_TOPIC, Transactions
from headwater.log.disk import Disk, RealDisk
from headwater.log.group import Group, GroupSnapshot, State
from headwater.log.offsets import OFFSETS_TOPIC, Offsets
from headwater.log.partition import Partition
from headwater.log.retention import INTERVAL_S, Retention
from headwater.log.room import has_room
from headwater.log.topic import Catalog, Topic

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

NODE_ID = 0
META_FILE = "meta.json"
PRODUCER_ID_BLOCK = 1000


INTERNAL_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(4 << 20), "segment.ms": "3600000"}
"""Small segments: what the broker reads at a start is what there is to know, however long it has run."""


class _Meta(msgspec.Struct):
    cluster_id: str
    next_producer_id: int = 0


class Broker:
    """Owns the data folder from ``__init__`` to ``close``. Every call comes from the event loop that made it."""

    def __init__(
        self,
        folder: Path,
        *,
        flush: Literal["commit", "os"] = "commit",
        partitions: int = 1,
        disk: Disk | None = None,
        clock: Clock | None = None,
        retention_interval_s: float = INTERVAL_S,
    ) -> None:
        self._retention_interval_s = retention_interval_s
        self.disk = disk or RealDisk()
        self.clock = clock or SystemClock()
        self.partitions = partitions
        self.groups: dict[str, Group] = {}
        self.folder = folder
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._forgetting: asyncio.Task[None] | None = None
        self._unlock = self.disk.lock(folder)
        try:
            self._open(sync_on_commit=flush == "commit")
        except BaseException:
            self._unlock()
            raise

    def _open(self, *, sync_on_commit: bool) -> None:
        self._committer = Committer()
        self.catalog = Catalog(
            self.disk,
            self.folder,
            sync_on_commit=sync_on_commit,
            on_dirty=self._committer.mark,
            is_new=not self.disk.exists(self.folder / META_FILE),
        )
        self._meta = self._load_meta()
        self._producer_ids_end = self._meta.next_producer_id
        self.offsets = Offsets(self._internal(OFFSETS_TOPIC), SteadyClock(self.clock))
        self._forget_lost_topics()
        self.transactions = Transactions(
            self._internal(TRANSACTIONS_TOPIC),
            self.catalog,
            self.offsets,
            SteadyClock(self.clock),
            committed=self.committed,
            new_producer_id=self.new_producer_id,
        )
        self._restore_groups()
        self.retention = Retention(
            self.catalog, self.clock, expire=self._expire_unused, interval_s=self._retention_interval_s
        )

    @property
    def cluster_id(self) -> str:
        return self._meta.cluster_id

    def committed(self) -> asyncio.Future[None]:
        """Done when everything appended so far is as safe as ``flush`` asks for."""
        return self._committer.committed()

    def topic(self, name: str, *, create: bool) -> Topic:
        """A topic by name, made with the default number of partitions if it may be."""
        found = self.catalog.topics.get(name)
        if found is not None:
            return found
        if not create:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return self.catalog.create(name, self.partitions)

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic, and what groups have committed of it: until that is gone for good, its name cannot be used again."""
        if topic.internal:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
        if self.catalog.by_id.get(topic.id) is not topic:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} is deleted already")
        self.catalog.delete(topic)
        self.catalog.reserved.add(topic.name)
        await self._forget_offsets(topic.name)

    async def _forget_offsets(self, topic: str) -> None:
        """Of a deleted topic; what the disk refuses now is tried again later, and done by the next start."""
        if self.offsets.delete_topic(topic):
            await self.committed()
            if self.offsets.partition.offline:
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{OFFSETS_TOPIC} is offline")
        self.catalog.reserved.discard(topic)

    def group(self, group_id: str) -> Group:
        """The group of that name, empty if nobody asked for it before."""
        if not group_id:
            raise Refused(ErrorCode.INVALID_GROUP_ID, "a group has a name")
        if group_id not in self.groups:
            self.groups[group_id] = Group(group_id, new_id=lambda name: f"{name}-{uuid.uuid4()}")
        return self.groups[group_id]

    def settle(self, group: Group) -> None:
        """After every change of a group: stores it once it has settled, and sees to it that it hears of its next deadline."""
        snapshot = group.snapshot()
        if snapshot is not None and self.offsets.snapshots.get(group.id, GroupSnapshot(group.id)) != snapshot:
            with contextlib.suppress(Refused):  # a full disk: the members would join again after a restart
                self.offsets.store_group(snapshot)
        deadline = group.deadline()
        timer = self._timers.pop(group.id, None)
        if timer is not None:
            timer.cancel()
        if deadline is not None:
            delay = max(deadline - self.clock.monotonic(), 0)
            self._timers[group.id] = self._loop.call_later(delay, self._expire, group)

    def _expire(self, group: Group) -> None:
        group.expire(self.clock.monotonic())
        self.settle(group)

    def new_producer_id(self) -> int:
        """An id that was never given out before, also by an earlier run; ids are taken from the disk in blocks."""
        if self._meta.next_producer_id >= self._producer_ids_end:
            end = self._meta.next_producer_id + PRODUCER_ID_BLOCK
            try:
                self._save_meta(_Meta(self._meta.cluster_id, end))
            except OSError as error:
                raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{META_FILE}: {error}") from error
            self._producer_ids_end = end
        self._meta.next_producer_id += 1
        return self._meta.next_producer_id - 1

    async def close(self) -> None:
        """Writes what makes the next start quick, and gives the folder back."""
        for timer in self._timers.values():
            timer.cancel()
        await self.retention.close()
        await self.transactions.close()
        await self._committer.close()
        self.catalog.close()
        has_room(lambda: self._save_meta(self._meta))  # else the ids that are left of a block are lost
        self._unlock()

    def _forget_lost_topics(self) -> None:
        """At a start: offsets of topics that are gone, or were in memory only, are those of nothing."""

        def is_gone(name: str) -> bool:
            topic = self.catalog.topics.get(name)
            return topic is None or not topic.parsed.headwater_durable

        try:
            self.offsets.delete_topics(is_gone)
        except Refused as refused:
            logger.warning("offsets of topics that are gone stay until there is room: %s", refused)
            self.catalog.reserved |= {
                name for name in self.offsets.topics() if name not in self.catalog.topics
            }

    async def _forget_reserved(self) -> None:
        for name in sorted(self.catalog.reserved):
            with contextlib.suppress(Refused):
                await self._forget_offsets(name)

    def _expire_unused(self) -> None:
        """Forgets transactional ids, offsets and groups that were not used for longer than Kafka keeps them."""
        if self.catalog.reserved:
            self._forgetting = self._loop.create_task(self._forget_reserved())
        self.transactions.expire()
        self.offsets.expire(lambda name: name in self.groups and bool(self.groups[name].members))
        for name, group in list(self.groups.items()):
            if group.state is State.EMPTY and not self.offsets.of(name) and name not in self._timers:
                del self.groups[name]

    def _restore_groups(self) -> None:
        for name, snapshot in self.offsets.snapshots.items():
            group = self.group(name)
            group.restore(snapshot, self.clock.monotonic())
            self.settle(group)

    def _internal(self, name: str) -> Partition:
        """The one partition of a topic that keeps the broker's own state."""
        topic = self.catalog.topics.get(name) or self.catalog.create(name, 1, INTERNAL_CONFIG)
        if topic.config != INTERNAL_CONFIG | topic.config:
            self.catalog.configure(topic, INTERNAL_CONFIG | topic.config)
        partition = topic.partitions[0]
        if partition.offline:
            raise StorageError(
                f"{partition.folder} cannot be read, and without it the broker does not know its groups and transactions",
                hint="the log has the reason; check the disk, then start again",
            )
        return partition

    def _load_meta(self) -> _Meta:
        data = self.disk.read(self.folder / META_FILE)
        if data is not None:
            return from_json(data, _Meta)
        if self._has_topics():
            raise StorageError(
                f"data folder {self.folder} has topics and no {META_FILE}",
                hint=f"restore {META_FILE} too: it has the ids that producers were given, and none may be given twice",
            )
        meta = _Meta(str(uuid.uuid4()))
        self._save_meta(meta)
        return meta

    def _has_topics(self) -> bool:
        return bool(self.catalog.topics)

    def _save_meta(self, meta: _Meta) -> None:
        self.disk.replace(self.folder / META_FILE, msgspec.json.encode(meta))
