"""The catalog: which topics there are, their ids, partitions and settings; and the partitions themselves.

``topics.json`` is the truth about topics: a change is there, durably, before it is answered. A partition's folder carries the id of
its topic, so a topic that is made again under the same name never meets the files of the one before. Files of a deleted topic are
removed after the deletion is on record, and again at the next start if that was cut short. A folder that belongs to no topic that is or
was here is left alone, and said: it may be all that is left of somebody's data.

Formats of ``topics.json``:  1   a table of topics; folders are named ``<topic>-<partition>``
                             2   version, topics, and the ids of deleted topics whose files may be left; folders carry ids
A folder of format 1 is taken over at the start, one folder after the other, and again if that is interrupted.
"""

import contextlib
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from headwater.decoders import from_json
from headwater.errors import ErrorCode, Refused, StorageError
from headwater.log.config import parse_config
from headwater.log.disk import Disk
from headwater.log.memory import MemoryDisk
from headwater.log.partition import Partition

__all__ = ["Catalog", "Partitions", "Topic", "check_name"]

logger = logging.getLogger(__name__)

FORMAT = 2
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})
"""The topics that keep the broker's own state; other names may begin like theirs."""
FOLDER_NAME_CHARACTERS = 200
"""So much of a topic's name is in the names of its folders; the id makes them different."""
PARTITIONS_MAX = 10_000
LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
CATALOG_FILE = "topics.json"


class _Entry(msgspec.Struct, frozen=True):
    id: uuid.UUID
    partitions: int
    config: dict[str, str] = {}
    unmarked: bool = False
    """Whether compaction of format 1 has left segments without a mark at their end: there a gap is not a cut."""


class _Catalog(msgspec.Struct, frozen=True):
    version: int
    topics: dict[str, _Entry]
    deleted: dict[uuid.UUID, str] = {}
    """Topics whose files may be left, with their names."""


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
        return self.name in INTERNAL


class Catalog:
    """Owns all topics. A change is on the disk before it is answered; a deleted topic's files go after that."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        *,
        sync_on_commit: bool,
        on_dirty: Callable[[Partition], None],
        is_new: bool = True,
    ) -> None:
        """A folder that ``is_new`` needs no catalog."""
        self._disk = disk
        self._volatile = MemoryDisk()
        self._folder = folder
        self._sync_on_commit = sync_on_commit
        self._on_dirty = on_dirty
        found = self._read(is_new=is_new)
        self._entries, self._deleted = found.topics, found.deleted
        self._left: set[uuid.UUID] = set()
        """Deleted topics of which a file could not be removed."""
        self.reserved: set[str] = set()
        """Names of deleted topics that must not be used again yet."""
        disk.make_folder(folder / "topics")
        disk.sync_folder(folder)
        self.topics = {name: self._topic(name, entry) for name, entry in self._entries.items()}
        self.by_id = {topic.id: topic for topic in self.topics.values()}
        if found.version < FORMAT:
            self._take_over()
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
        self._write(self._entries | {name: entry}, self._deleted)
        self.topics[name] = self.by_id[topic.id] = topic
        return topic

    def configure(self, topic: Topic, config: Mapping[str, str], *, dry_run: bool = False) -> None:
        """Gives a topic these settings instead of the ones it has."""
        parsed = parse_config(config)
        if parsed.headwater_durable != topic.parsed.headwater_durable:
            what = "headwater.durable is chosen when a topic is created; its records would be out of reach"
            raise Refused(ErrorCode.INVALID_CONFIG, what)
        if dry_run:
            return
        entry = msgspec.structs.replace(self._entries[topic.name], config=dict(config))
        self._write(self._entries | {topic.name: entry}, self._deleted)
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
        self._write(self._entries | {topic.name: entry}, self._deleted)
        topic.partitions.grow(count)

    def delete(self, topic: Topic) -> None:
        left = {name: entry for name, entry in self._entries.items() if name != topic.name}
        self._write(left, self._still_deleted() | {topic.id: topic.name})
        del self.topics[topic.name], self.by_id[topic.id]
        for partition in topic.partitions.used():
            try:
                partition.remove()
            except OSError as error:
                self._left.add(topic.id)
                logger.warning("%s: files are left until the next start: %s", partition.folder.name, error)

    def _still_deleted(self) -> dict[uuid.UUID, str]:
        """Of the topics that were deleted before this one, those whose files may come back with a power cut."""
        try:
            self._disk.sync_folder(self._folder / "topics")
        except OSError:
            return self._deleted
        return {each: name for each, name in self._deleted.items() if each in self._left}

    def close(self) -> None:
        """Closes every partition; one that fails is read from its start the next time."""
        for topic in self.topics.values():
            for partition in topic.partitions.used():
                try:
                    partition.close()
                except OSError as error:
                    logger.warning("%s: no clean end: %s", partition.folder.name, error)

    def _check(self, name: str, partitions: int, config: dict[str, str]) -> None:
        check_name(name)
        if name in self.reserved:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion.")
        if name in self.topics:
            raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        metric = name.replace(".", "_")
        like = next((other for other in self.topics if other.replace(".", "_") == metric), None)
        if like is not None:
            what = f"Topic '{name}' collides with existing topic '{like}': they differ in '.' and '_' alone"
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)
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
            found = from_json(data, _Catalog)
        except msgspec.DecodeError as error:
            raise StorageError(
                f"{self._folder / CATALOG_FILE} cannot be read",
                got=str(error),
                hint="restore it from a backup; without it nobody knows which topics the folders hold",
            ) from error
        if found.version > FORMAT:
            raise StorageError(
                f"data folder {self._folder} was written by a newer Headwater",
                got=f"format {found.version}",
                expected=f"at most {FORMAT}",
                hint="install that version again, or choose another folder with --data",
            )
        return found

    def _without_catalog(self, *, is_new: bool) -> _Catalog:
        """A new folder; one that was used and has no catalog was restored in part, and is left as it is."""
        folders = self._disk.names(self._folder / "topics")
        if folders or not is_new:
            raise StorageError(
                f"data folder {self._folder} was used before and has no {CATALOG_FILE}",
                got=f"{len(folders)} partitions" + (f", {folders[0]} the first" if folders else ""),
                hint=f"restore {CATALOG_FILE} too, or choose another folder with --data to begin with an empty log",
            )
        self._disk.make_folder(self._folder)
        self._disk.replace(self._folder / CATALOG_FILE, msgspec.json.encode(_Catalog(FORMAT, {})))
        return _Catalog(FORMAT, {})

    def _write(self, entries: dict[str, _Entry], deleted: dict[uuid.UUID, str]) -> None:
        data = msgspec.json.format(msgspec.json.encode(_Catalog(FORMAT, entries, deleted)))
        try:
            self._disk.replace(self._folder / CATALOG_FILE, data)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{CATALOG_FILE}: {error}") from error
        self._entries, self._deleted = entries, deleted

    def _take_over(self) -> None:
        """Gives the folders of format 1 the names of format 2, and then says so in the catalog."""
        here, count = self._folder / "topics", 0
        for name in self._disk.names(here):
            topic_name, _, number = name.rpartition("-")
            topic = self.topics.get(topic_name)
            if topic is None or not number.isdecimal() or int(number) >= len(topic.partitions):
                continue
            self._disk.rename_folder(here / name, here / _folder_name(topic_name, topic.id, int(number)))
            count += 1
        self._disk.sync_folder(here)
        if self._entries:
            taken = {
                name: msgspec.structs.replace(
                    entry, unmarked="compact" in entry.config.get("cleanup.policy", "")
                )
                for name, entry in self._entries.items()
            }
            self._write(taken, self._deleted)
            logger.info("%s: %d partitions of format 1 taken over to format %d", self._folder, count, FORMAT)

    def _open_folders(self) -> None:
        """Opens every partition that has files, and removes those of topics whose deletion was cut short."""
        here = self._folder / "topics"
        by_hex = {topic.id.hex: topic for topic in self.topics.values()}
        deleted = {each.hex for each in self._deleted}
        for name in self._disk.names(here):
            start, _, topic_id = name.rpartition(".")
            number = start.rpartition("-")[2]
            topic = by_hex.get(topic_id)
            if topic is not None and number.isdecimal() and int(number) < len(topic.partitions):
                topic.partitions[int(number)]
            elif topic_id in deleted:
                self._disk.remove_folder(here / name)
            else:
                logger.warning("%s belongs to no topic of %s, and is left alone", here / name, CATALOG_FILE)
        self._disk.sync_folder(here)
        if self._deleted:
            with contextlib.suppress(Refused):  # a full disk: they are looked for once more the next time
                self._write(self._entries, {})


def check_name(name: str) -> None:
    """Raises Refused with INVALID_TOPIC_EXCEPTION for what cannot be the name of a topic."""
    if not LEGAL_NAME.fullmatch(name) or name in {".", ".."}:
        what = f"topic name {name!r} is not legal: 1 to 249 letters, digits, '.', '_' and '-'"
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, what)


def _folder_name(topic: str, topic_id: uuid.UUID, index: int) -> str:
    return f"{topic[:FOLDER_NAME_CHARACTERS]}-{index}.{topic_id.hex}"
