"""The catalog: all topics with their ids, settings and partitions.

``topics.json`` decides which topics exist: a change is stored there durably before it is answered. A
partition's folder carries the id of its topic, so a topic that is created again under the same name never
finds the files of the former one. The files of a deleted topic are removed once the deletion is stored, and
at the next start if that was interrupted. A folder that belongs to no topic, present or deleted, is left
alone and logged: it may be all that is left of a user's data.

Formats of ``topics.json``:
    1   a table of topics; folders are named ``<topic>-<partition>``
    2   version, topics, and the ids of deleted topics that may still have files; folders carry ids
Folders of format 1 are migrated at the start; the next start continues a migration that was interrupted.
"""

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from headwater.decoders import from_json
from headwater.errors import ErrorCode, RequestError, StorageError
from headwater.log.storage.disk import Disk
from headwater.log.storage.memory import MemoryDisk
from headwater.log.storage.partition import Partition
from headwater.log.storage.topic_config import parse_config

__all__ = ["INTERNAL", "Catalog", "Partitions", "Topic", "check_name"]

logger = logging.getLogger(__name__)

FORMAT = 2
INTERNAL = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})
"""The topics that hold the broker's own state; users' topics may begin with the same characters."""
FOLDER_NAME_CHARACTERS = 200
"""How much of a topic's name is in the names of its folders; the id makes them unique."""
PARTITIONS_MAX = 10_000
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
CATALOG_FILE = "topics.json"


class _Entry(msgspec.Struct, frozen=True):
    id: uuid.UUID
    partitions: int
    config: dict[str, str] = {}
    unmarked: bool = False
    """Compaction of format 1 left segments without a mark at their end: a gap there is not a cut."""


class _Catalog(msgspec.Struct, frozen=True):
    version: int
    topics: dict[str, _Entry]
    deleted: dict[uuid.UUID, str] = {}
    """Topics that may still have files, with their names."""


class Partitions:
    """The partitions of a topic.

    A partition becomes an object when it is first used, and has files once it is written.
    """

    def __init__(self, count: int, open_partition: Callable[[int], Partition]) -> None:
        self._count = count
        self._open_partition = open_partition
        self._used: dict[int, Partition] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Partition:
        partition = self._used.get(index)
        if partition is None:
            if not 0 <= index < self._count:
                raise IndexError(index)
            partition = self._used[index] = self._open_partition(index)
        return partition

    def used(self) -> list[Partition]:
        """The partitions that have files or were asked for."""
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
        return self.name in INTERNAL


class Catalog:
    """Owns all topics.

    A change is on the disk before it is answered; a deleted topic's files are removed after that.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        sync_on_commit: bool,
        on_dirty: Callable[[Partition], None],
        is_new: bool = True,
    ) -> None:
        """A data folder that ``is_new`` may lack a catalog; any other may not."""
        self._disk = disk
        self._volatile = MemoryDisk()
        self._folder = folder
        self._sync_on_commit = sync_on_commit
        self._on_dirty = on_dirty
        stored = self._read(is_new=is_new)
        self._entries, self._deleted = stored.topics, stored.deleted
        self._left: set[uuid.UUID] = set()
        """Deleted topics of which some file could not be removed."""
        self.reserved: set[str] = set()
        """Names of deleted topics that must not be used again yet."""
        disk.make_folder(folder / "topics")
        disk.sync_folder(folder)
        self.topics = {name: self._topic(name, entry) for name, entry in self._entries.items()}
        self.by_id = {topic.id: topic for topic in self.topics.values()}
        if stored.version < FORMAT:
            self._migrate()
        self._open_folders()

    def partition(self, topic: str, index: int) -> Partition:
        """Raises RequestError with UNKNOWN_TOPIC_OR_PARTITION."""
        entry = self.topics.get(topic)
        if entry is None or not 0 <= index < len(entry.partitions):
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{index} does not exist")
        return entry.partitions[index]

    def create(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, dry_run: bool = False
    ) -> Topic:
        config = dict(config or {})
        self._check(name, partitions, config)
        entry = _Entry(uuid.uuid4(), partitions, config)
        topic = self._topic(name, entry)
        if dry_run:
            return topic
        self._write(self._entries | {name: entry}, self._deleted)
        self.topics[name] = self.by_id[topic.id] = topic
        return topic

    def configure(self, topic: Topic, config: Mapping[str, str], *, dry_run: bool = False) -> None:
        """Replaces the settings of a topic."""
        parsed = parse_config(config)
        if parsed.headwater_durable != topic.parsed.headwater_durable:
            what = "headwater.durable is fixed when a topic is created: its records would be unreachable"
            raise RequestError(ErrorCode.INVALID_CONFIG, what)
        if dry_run:
            return
        entry = msgspec.structs.replace(self._entries[topic.name], config=dict(config))
        self._write(self._entries | {topic.name: entry}, self._deleted)
        topic.config = entry.config
        topic.parsed = parsed
        for partition in topic.partitions.used():
            partition.config = parsed

    def add_partitions(self, topic: Topic, count: int, *, dry_run: bool = False) -> None:
        """Increases the number of partitions.

        From now on the records of a key may go to another partition.
        """
        have = len(topic.partitions)
        if not have < count <= PARTITIONS_MAX:
            raise RequestError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {have} partitions, which is higher than the requested {count}.",
            )
        if dry_run:
            return
        entry = msgspec.structs.replace(self._entries[topic.name], partitions=count)
        self._write(self._entries | {topic.name: entry}, self._deleted)
        topic.partitions.grow(count)

    def delete(self, topic: Topic) -> None:
        entries = {name: entry for name, entry in self._entries.items() if name != topic.name}
        self._write(entries, self._still_deleted() | {topic.id: topic.name})
        del self.topics[topic.name], self.by_id[topic.id]
        for partition in topic.partitions.used():
            try:
                partition.remove()
            except OSError as error:
                self._left.add(topic.id)
                logger.warning("%s: files remain until the next start: %s", partition.folder.name, error)

    def _still_deleted(self) -> dict[uuid.UUID, str]:
        """Of the topics that were deleted earlier, those whose files a power cut might still bring back."""
        try:
            self._disk.sync_folder(self._folder / "topics")
        except OSError:
            return self._deleted
        return {topic_id: name for topic_id, name in self._deleted.items() if topic_id in self._left}

    def close(self) -> None:
        """Closes every partition; one that fails is scanned at the next start."""
        for topic in self.topics.values():
            for partition in topic.partitions.used():
                try:
                    partition.close()
                except OSError as error:
                    logger.warning("%s: not closed cleanly: %s", partition.folder.name, error)

    def _check(self, name: str, partitions: int, config: dict[str, str]) -> None:
        check_name(name)
        if name in self.reserved:
            raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
        if name in self.topics:
            raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        metric = name.replace(".", "_")
        like = next((other for other in self.topics if other.replace(".", "_") == metric), None)
        if like is not None:
            what = f"Topic '{name}' collides with existing topic '{like}': they differ only in '.' and '_'"
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise RequestError(
                ErrorCode.INVALID_PARTITIONS,
                f"a topic has 1 to {PARTITIONS_MAX} partitions, got {partitions}",
            )
        parse_config(config)

    def _topic(self, name: str, entry: _Entry) -> Topic:
        topic = Topic(name, entry, Partitions(entry.partitions, lambda index: self._open(topic, index)))
        return topic

    def _open(self, topic: Topic, index: int) -> Partition:
        folder = self._folder / "topics" / _folder_name(topic.name, topic.id, index)
        durable = topic.parsed.headwater_durable
        partition = Partition(
            self._disk if durable else self._volatile,
            folder,
            topic.parsed,
            sync_on_commit=self._sync_on_commit and durable,
            gaps_are_cuts=not self._entries[topic.name].unmarked if topic.name in self._entries else True,
        )
        partition.on_dirty = self._on_dirty
        return partition

    def _read(self, *, is_new: bool) -> _Catalog:
        data = self._disk.read(self._folder / CATALOG_FILE)
        if data is None:
            return self._without_catalog(is_new=is_new)
        try:
            if "version" not in from_json(data, dict[str, msgspec.Raw]):
                return _Catalog(1, from_json(data, dict[str, _Entry]))
            catalog = from_json(data, _Catalog)
        except msgspec.DecodeError as error:
            raise StorageError(
                f"{self._folder / CATALOG_FILE} cannot be read",
                got=str(error),
                hint="restore it from a backup; without it the folders cannot be assigned to topics",
            ) from error
        if catalog.version > FORMAT:
            raise StorageError(
                f"data folder {self._folder} was written by a newer Headwater",
                got=f"format {catalog.version}",
                expected=f"at most {FORMAT}",
                hint="install that version again, or choose another folder with --data",
            )
        return catalog

    def _without_catalog(self, *, is_new: bool) -> _Catalog:
        """For a new folder.

        One that was used, but has no catalog, was restored incompletely: it is not touched.
        """
        folders = self._disk.names(self._folder / "topics")
        if folders or not is_new:
            raise StorageError(
                f"data folder {self._folder} was used before and has no {CATALOG_FILE}",
                got=f"{len(folders)} partitions" + (f", the first is {folders[0]}" if folders else ""),
                hint=f"restore {CATALOG_FILE} too, or choose another folder with --data for an empty log",
            )
        self._disk.make_folder(self._folder)
        self._disk.replace(self._folder / CATALOG_FILE, msgspec.json.encode(_Catalog(FORMAT, {})))
        return _Catalog(FORMAT, {})

    def _write(self, entries: dict[str, _Entry], deleted: dict[uuid.UUID, str]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_Catalog(FORMAT, entries, deleted)))
        try:
            self._disk.replace(self._folder / CATALOG_FILE, data)
        except OSError as error:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{CATALOG_FILE}: {error}") from error
        self._entries, self._deleted = entries, deleted

    def _migrate(self) -> None:
        """Renames the folders of format 1 to those of format 2, and then stores the catalog in format 2."""
        folder, count = self._folder / "topics", 0
        for name in self._disk.names(folder):
            topic_name, _, number = name.rpartition("-")
            topic = self.topics.get(topic_name)
            if topic is None or not number.isdecimal() or int(number) >= len(topic.partitions):
                continue
            self._disk.rename_folder(folder / name, folder / _folder_name(topic_name, topic.id, int(number)))
            count += 1
        self._disk.sync_folder(folder)
        if self._entries:
            migrated = {
                name: msgspec.structs.replace(
                    entry, unmarked="compact" in entry.config.get("cleanup.policy", "")
                )
                for name, entry in self._entries.items()
            }
            self._write(migrated, self._deleted)
            logger.info("%s: %d partitions migrated from format 1 to format %d", self._folder, count, FORMAT)

    def _open_folders(self) -> None:
        """Opens every partition that has files, and removes the files of deleted topics."""
        folder = self._folder / "topics"
        by_hex = {topic.id.hex: topic for topic in self.topics.values()}
        deleted = {topic_id.hex for topic_id in self._deleted}
        for name in self._disk.names(folder):
            start, _, topic_id = name.rpartition(".")
            number = start.rpartition("-")[2]
            topic = by_hex.get(topic_id)
            if topic is not None and number.isdecimal() and int(number) < len(topic.partitions):
                topic.partitions[int(number)]
            elif topic_id in deleted:
                self._disk.remove_folder(folder / name)
            else:
                logger.warning("%s belongs to no topic of %s and is left alone", folder / name, CATALOG_FILE)
        self._disk.sync_folder(folder)
        if self._deleted:
            # On a full disk the list stays, and the next start looks for the files once more.
            with contextlib.suppress(RequestError):
                self._write(self._entries, {})


def check_name(name: str) -> None:
    """Raises RequestError with INVALID_TOPIC_EXCEPTION for what cannot be the name of a topic."""
    if not LEGAL_NAME.fullmatch(name) or name in {".", ".."}:
        what = f"topic name {name!r} is not legal: 1 to 249 letters, digits, '.', '_' and '-'"
        raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, what)


def _folder_name(topic: str, topic_id: uuid.UUID, index: int) -> str:
    return f"{topic[:FOLDER_NAME_CHARACTERS]}-{index}.{topic_id.hex}"
