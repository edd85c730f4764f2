"""The catalog: which topics there are, their ids, partitions and settings; and the partitions themselves."""

import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from headwater.errors import ErrorCode, Refused
from headwater.log.disk import Disk
from headwater.log.partition import Partition, TopicConfig

__all__ = ["Catalog", "Topic"]

PARTITIONS_MAX = 10_000
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
CATALOG_FILE = "topics.json"


class _Entry(msgspec.Struct, frozen=True):
    id: uuid.UUID
    partitions: int
    config: dict[str, str] = {}


class Topic:
    """A name, its partitions, and the settings that differ from the defaults."""

    def __init__(self, name: str, entry: _Entry, partitions: list[Partition]) -> None:
        self.name = name
        self.id = entry.id
        self.config = entry.config
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
        self._folder = folder
        self._sync_on_commit = sync_on_commit
        self._on_dirty = on_dirty
        self._entries = self._read()
        self.topics = {name: self._open(name, entry) for name, entry in self._entries.items()}
        self.by_id = {topic.id: topic for topic in self.topics.values()}
        self._remove_leftovers()

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
        if dry_run:
            return Topic(name, entry, [])
        topic = self._open(name, entry)
        self._write(self._entries | {name: entry})
        self.topics[name] = self.by_id[topic.id] = topic
        return topic

    def delete(self, topic: Topic) -> None:
        self._write({name: entry for name, entry in self._entries.items() if name != topic.name})
        del self.topics[topic.name], self.by_id[topic.id]
        for partition in topic.partitions:
            partition.remove()

    def close(self) -> None:
        for topic in self.topics.values():
            for partition in topic.partitions:
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
        _parse_config(config)

    def _open(self, name: str, entry: _Entry) -> Topic:
        config = _parse_config(entry.config)
        folders = [self._folder / "topics" / f"{name}-{index}" for index in range(entry.partitions)]
        partitions = [Partition(self._disk, f, config, sync_on_commit=self._sync_on_commit) for f in folders]
        for partition in partitions:
            partition.on_dirty = self._on_dirty
        return Topic(name, entry, partitions)

    def _read(self) -> dict[str, _Entry]:
        data = self._disk.read(self._folder / CATALOG_FILE)
        return msgspec.json.decode(data, type=dict[str, _Entry]) if data else {}

    def _write(self, entries: dict[str, _Entry]) -> None:
        self._disk.replace(self._folder / CATALOG_FILE, msgspec.json.format(msgspec.json.encode(entries)))
        self._entries = entries

    def _remove_leftovers(self) -> None:
        """Folders of topics whose deletion or creation was cut short by a crash."""
        known = {p.folder.name for topic in self.topics.values() for p in topic.partitions}
        for name in self._disk.names(self._folder / "topics"):
            if name not in known:
                self._disk.remove_folder(self._folder / "topics" / name)


IGNORED_CONFIG = frozenset(
    {
        "compression.type",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.compaction.lag.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
"""Kafka's other topic settings: kept and shown, without effect so far."""


def _parse_config(config: dict[str, str]) -> TopicConfig:
    known = {key: value for key, value in config.items() if key not in IGNORED_CONFIG}
    unknown = known.keys() - set(TopicConfig.__struct_encode_fields__)
    if unknown:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {min(unknown)}")
    try:
        return msgspec.convert(known, TopicConfig, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from error
