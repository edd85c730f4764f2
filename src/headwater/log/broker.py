"""Broker: topics, groups and transactions of one data folder.

No sockets: ``door/kafka`` brings the requests.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from headwater.clock import Clock, SteadyClock, SystemClock
from headwater.decoders import from_json
from headwater.errors import ErrorCode, RequestError, StorageError
from headwater.log.groups.group import Group, GroupSnapshot, GroupState
from headwater.log.groups.offsets import OFFSETS_TOPIC, Offsets
from headwater.log.shares.share_store import SHARES_TOPIC, ShareStore
from headwater.log.shares.shares import Shares
from headwater.log.storage.catalog import INTERNAL, Catalog, Topic
from headwater.log.storage.commit import Committer
from headwater.log.storage.disk import Disk, RealDisk
from headwater.log.storage.disk_space import try_write
from headwater.log.storage.partition import Partition
from headwater.log.storage.retention import INTERVAL_S, Retention
from headwater.log.transactions.coordinator import TRANSACTIONS_TOPIC, Coordinator

__all__ = ["Broker"]

logger = logging.getLogger(__name__)

NODE_ID = 0
META_FILE = "meta.json"
PRODUCER_ID_BLOCK = 1000


INTERNAL_CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(4 << 20), "segment.ms": "3600000"}
"""Small segments: a start reads as much as there is state, however long the broker has existed."""


class _Meta(msgspec.Struct):
    cluster_id: str
    next_producer_id: int = 0


class Broker:
    """Owns the data folder until ``close``. Every call comes from the event loop in which it was made."""

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
        self.transactions = Coordinator(
            self._internal(TRANSACTIONS_TOPIC),
            self.catalog,
            self.offsets,
            SteadyClock(self.clock),
            committed=self.committed,
            new_producer_id=self.new_producer_id,
        )
        self.shares = Shares(self._open_share_store(), self.catalog, self.clock)
        self.transactions.ended[SHARES_TOPIC] = self.shares.end_transaction
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
        """A topic by name; ``create`` makes it, with the default number of partitions, if it is missing."""
        topic = self.catalog.topics.get(name)
        if topic is not None:
            return topic
        if not create:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
        return self.create_topic(name, self.partitions)

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, dry_run: bool = False
    ) -> Topic:
        """Makes a topic for a client; the broker makes those of its own state, with settings of its own."""
        if name in INTERNAL and name not in self.catalog.topics:
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal")
        return self.catalog.create(name, partitions, config, dry_run=dry_run)

    async def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic and its committed offsets; its name is reserved until these are durably deleted."""
        if topic.internal:
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
        if self.catalog.by_id.get(topic.id) is not topic:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} is deleted already")
        self.catalog.delete(topic)
        self.catalog.reserved.add(topic.name)
        self.shares.forget_topic(topic.id)
        await self._forget_offsets(topic.name)

    async def _forget_offsets(self, topic: str) -> None:
        """Forgets what groups committed for a deleted topic.

        A refusal of the disk is retried later, or by the next start.
        """
        if self.offsets.delete_topic(topic):
            await self.committed()
            if self.offsets.partition.offline:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{OFFSETS_TOPIC} is offline")
        self.catalog.reserved.discard(topic)

    def group(self, group_id: str) -> Group:
        """The consumer group of that name, which is empty if it is new."""
        if not group_id:
            raise RequestError(ErrorCode.INVALID_GROUP_ID, "a group has a name")
        if self.shares.has(group_id):
            what = f"{group_id} is a share group"
            raise RequestError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, what)
        if group_id not in self.groups:
            self.groups[group_id] = Group(group_id, new_id=lambda name: f"{name}-{uuid.uuid4()}")
        return self.groups[group_id]

    def check_share_group(self, name: str) -> None:
        """Raises RequestError for a consumer group: a name belongs to one kind of group."""
        if self.shares.has(name):
            return
        group = self.groups.get(name)
        if (group is not None and group.members) or self.offsets.of(name) or self.offsets.pending(name):
            raise RequestError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {name} is not a share group.")
        if name in self.offsets.snapshots:  # its last member left while the disk was full
            self.offsets.store_group(GroupSnapshot(name))

    def settle(self, group: Group) -> None:
        """After every change of a group: stores it if it is settled, and sets its timer."""
        snapshot = group.snapshot()
        if snapshot is not None and self.offsets.snapshots.get(group.id, GroupSnapshot(group.id)) != snapshot:
            # On a full disk the group is not stored: its members join again after a restart.
            with contextlib.suppress(RequestError):
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
        """An id that was never given out before, not even by an earlier run.

        Blocks of ids are reserved on disk.
        """
        if self._meta.next_producer_id >= self._producer_ids_end:
            end = self._meta.next_producer_id + PRODUCER_ID_BLOCK
            try:
                self._save_meta(_Meta(self._meta.cluster_id, end))
            except OSError as error:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{META_FILE}: {error}") from error
            self._producer_ids_end = end
        self._meta.next_producer_id += 1
        return self._meta.next_producer_id - 1

    async def close(self) -> None:
        """Writes what makes the next start quick, and unlocks the folder."""
        for timer in self._timers.values():
            timer.cancel()
        self.shares.close()
        await self.retention.close()
        await self.transactions.close()
        await self._committer.close()
        self.catalog.close()
        try_write(lambda: self._save_meta(self._meta))  # otherwise the rest of the block of ids is lost
        self._unlock()

    def _forget_lost_topics(self) -> None:
        """At a start: forgets the offsets of topics that were deleted, or were in memory only."""

        def is_lost(name: str) -> bool:
            topic = self.catalog.topics.get(name)
            return topic is None or not topic.parsed.headwater_durable

        try:
            self.offsets.delete_topics(is_lost)
        except RequestError as refused:
            logger.warning("offsets of deleted topics are kept until the disk has space: %s", refused)
            self.catalog.reserved |= {
                name for name in self.offsets.topics() if name not in self.catalog.topics
            }

    async def _forget_reserved(self) -> None:
        for name in sorted(self.catalog.reserved):
            with contextlib.suppress(RequestError):
                await self._forget_offsets(name)

    def _expire_unused(self) -> None:
        """Forgets transactional ids, offsets and groups that were unused for as long as Kafka keeps them."""
        if self.catalog.reserved:
            self._forgetting = self._loop.create_task(self._forget_reserved())
        self.transactions.expire()
        self.shares.expire()
        self.offsets.expire(lambda name: name in self.groups and bool(self.groups[name].members))
        for name, group in list(self.groups.items()):
            if group.state is GroupState.EMPTY and not self.offsets.of(name) and name not in self._timers:
                del self.groups[name]

    def _restore_groups(self) -> None:
        for name, snapshot in self.offsets.snapshots.items():
            if self.shares.has(name):
                logger.warning(
                    "%s is a share group; members of a consumer group of that name are left out", name
                )
                continue
            group = self.group(name)
            group.restore(snapshot, self.clock.monotonic())
            self.settle(group)

    def _open_share_store(self) -> ShareStore:
        """The state of share groups, whose topic is made when the first one is used."""

        def create() -> Partition:
            return self._internal(SHARES_TOPIC)

        existing = create() if SHARES_TOPIC in self.catalog.topics else None
        return ShareStore(existing, create, SteadyClock(self.clock))

    def _internal(self, name: str) -> Partition:
        """The one partition of a topic that holds the broker's own state."""
        topic = self.catalog.topics.get(name)
        if topic is not None and not topic.parsed.headwater_durable:  # a client made it, in memory
            self.catalog.delete(topic)
            topic = None
        topic = topic or self.catalog.create(name, 1, INTERNAL_CONFIG)
        config = INTERNAL_CONFIG | topic.config | {"cleanup.policy": "compact"}
        if topic.config != config:
            self.catalog.configure(topic, config)
        partition = topic.partitions[0]
        if partition.offline:
            raise StorageError(
                f"{partition.folder} cannot be read; it holds the groups or transactions of the broker",
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
                hint=f"restore {META_FILE} too: it says which producer ids are in use",
            )
        meta = _Meta(str(uuid.uuid4()))
        self._save_meta(meta)
        return meta

    def _has_topics(self) -> bool:
        return bool(self.catalog.topics)

    def _save_meta(self, meta: _Meta) -> None:
        self.disk.replace(self.folder / META_FILE, msgspec.json.encode(meta))
