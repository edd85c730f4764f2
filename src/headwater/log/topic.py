"""The catalog: which topics there are, their ids, partitions and settings; and the partitions themselves."""

import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from headwater.errors import ErrorCode, Refused
from headwater.log.config import parse_config
from headwater.log.disk import Disk
from headwater.log.memory import MemoryDisk
from headwater.log.partition import Partition

__all__ = ["Catalog", "Partitions", "Topic"]

PARTITIONS_MAX = 10_000
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
CATALOG_FILE = "topics.json"


class _Entry(msgspec.Struct, frozen=True):
    id: uuid.UUID
    partitions: int
    config: dict[str, str] = {}


class Partitions:
    """The partitions of a topic. One that was never written has no files, and is no object until somebody asks for it."""

    def __init__(self, count: int, opened: Callable[[int], Partition]) -> None:
        self._count = count
        self._opened = opened
        self._used: dict[int, Partition] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Partition:
        found = self._used.get(index)
        if found is None:
            if not 0 <= index < self._count:
                raise IndexError(index)
            found = self._used[index] = self._opened(index)
        return found

    def used(self) -> list[Partition]:
        """Those that somebody has asked for, or that have files."""
        return list(self._used.values())

    def offline(self) -> set[int]:
        return {index for index, partition in self._used.items() if partition.offline}

    def size_bytes(self, index: int) -> int:
        return self._used[index].size_bytes if index in self._used else 0

    def grow(self, count: int) -> None:
        self._count = count


class Topic:
    """A name, its partitions, and the settings that differ from the defaults."""

    def __init__(self, name: str, entry: _Entry, partitions: Partitions) -> None:
        self.name = name
        self.id = entry.id
        self.config = entry.config
        self.parsed = parse_config(entry.config)
        self.partitions = partitions

    @property
    def internal(self) -> bool:
        return self.name.startswith("__")


class Catalog:
    """Owns all topics. A change is on the disk before it is answered; a deleted topic's files go after that."""

    def __init__(
        self, disk: Disk, folder: Path, *, sync_on_commit: bool, on_dirty: Callable[[Partition], None]
    ) -> None:
        self._disk = disk
        self._volatile = MemoryDisk()
        self._folder = folder
        self._sync_on_commit = sync_on_commit
        self._on_dirty = on_dirty
        self._entries = self._read()
        disk.make_folder(folder / "topics")
        disk.sync_folder(folder)
        self.topics = {name: self._topic(name, entry) for name, entry in self._entries.items()}
        self.by_id = {topic.id: topic for topic in self.topics.values()}
        self._open_folders()

    def partition(self, topic: str, index: int) -> Partition:
        """Raises Refused with UNKNOWN_TOPIC_OR_PARTITION."""
        found = self.topics.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{index}")
        return found.partitions[index]

    def create(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, dry_run: bool = False
    ) -> Topic:
        config = dict(config or {})
        self._check(name, partitions, config)
        entry = _Entry(uuid.uuid4(), partitions, config)
        topic = self._topic(name, entry)
        if dry_run:
            return topic
        self._write(self._entries | {name: entry})
        self.topics[name] = self.by_id[topic.id] = topic
        return topic

    def configure(self, topic: Topic, config: Mapping[str, str], *, dry_run: bool = False) -> None:
        """Gives a topic these settings instead of the ones it has."""
        parsed = parse_config(config)
        if dry_run:
            return
        entry = msgspec.structs.replace(self._entries[topic.name], config=dict(config))
        self._write(self._entries | {topic.name: entry})
        topic.config = entry.config
        topic.parsed = parsed
        for partition in topic.partitions.used():
            partition.config = parsed

    def add_partitions(self, topic: Topic, count: int, *, dry_run: bool = False) -> None:
        """Raises the number of partitions; keys written from now on may go elsewhere than before."""
        have = len(topic.partitions)
        if not have < count <= PARTITIONS_MAX:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {have} partitions, which is higher than the requested {count}.",
            )
        if dry_run:
            return
        entry = msgspec.structs.replace(self._entries[topic.name], partitions=count)
        self._write(self._entries | {topic.name: entry})
        topic.partitions.grow(count)

    def delete(self, topic: Topic) -> None:
        self._write({name: entry for name, entry in self._entries.items() if name != topic.name})
        del self.topics[topic.name], self.by_id[topic.id]
        for partition in topic.partitions.used():
            partition.remove()

    def close(self) -> None:
        for topic in self.topics.values():
            for partition in topic.partitions.used():
                partition.close()

    def _check(self, name: str, partitions: int, config: dict[str, str]) -> None:
        if not LEGAL_NAME.fullmatch(name) or name in {".", ".."}:
            what = f"topic name {name!r} is not legal: 1 to 249 letters, digits, '.', '_' and '-'"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise Refused(
                ErrorCode.INVALID_PARTITIONS,
                f"a topic has 1 to {PARTITIONS_MAX} partitions, got {partitions}",
            )
        parse_config(config)

    def _topic(self, name: str, entry: _Entry) -> Topic:
        topic = Topic(name, entry, Partitions(entry.partitions, lambda index: self._open(topic, index)))
        return topic

    def _open(self, topic: Topic, index: int) -> Partition:
        folder = self._folder / "topics" / f"{topic.name}-{index}"
        durable = topic.parsed.headwater_durable
        disk = self._disk if durable else self._volatile
        partition = Partition(disk, folder, topic.parsed, sync_on_commit=self._sync_on_commit and durable)
        partition.on_dirty = self._on_dirty
        return partition

    def _read(self) -> dict[str, _Entry]:
        data = self._disk.read(self._folder / CATALOG_FILE)
        return msgspec.json.decode(data, type=dict[str, _Entry]) if data else {}

    def _write(self, entries: dict[str, _Entry]) -> None:
        data = msgspec.json.format(msgspec.json.encode(entries))
        try:
            self._disk.replace(self._folder / CATALOG_FILE, data)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{CATALOG_FILE}: {error}") from error
        self._entries = entries

    def _open_folders(self) -> None:
        """Opens every partition that has files, and removes those of topics whose deletion or creation was cut short by a crash."""
        for folder in self._disk.names(self._folder / "topics"):
            name, _, number = folder.rpartition("-")
            topic = self.topics.get(name)
            index = int(number) if number.isdecimal() else -1
            if topic is not None and 0 <= index < len(topic.partitions) and str(index) == number:
                topic.partitions[index]
            else:
                self._disk.remove_folder(self._folder / "topics" / folder)
