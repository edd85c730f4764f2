"""Mended defects, put back one at a time: the simulator must find each of them.

A mutation is a patch of the code as it is now that makes it do what it did before. ``found.json`` has, for each, the seed of the life that
found it and what that life ended with; ``python tests/simulation/hunt.py`` looks for them again. Those of captures and sinks begin with that word, and
are looked for in lives with them.
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from unittest import mock

import msgspec
from confluent_kafka import TopicPartition

from headwater.capture import state as ledger
from headwater.capture.loop.completion import Completion
from headwater.capture.loop.feed import Feed
from headwater.capture.loop.log_writer import LogWriter
from headwater.capture.loop.row_deletes import RowDeletes
from headwater.client.client import consumer
from headwater.door.kafka import fetch, produce
from headwater.log.broker import Broker
from headwater.log.groups.offsets import Offsets
from headwater.log.storage import catalog as topic
from headwater.log.storage import compaction, manifest, partition, recovery, retention, segment, swap
from headwater.log.storage.closed_segments import ClosedSegments
from headwater.log.storage.commit import Committer, run_all
from headwater.log.storage.expiry import Expiry
from headwater.log.storage.partition import Partition
from headwater.log.storage.producers import Producers
from headwater.log.storage.segments import Segments
from headwater.log.transactions.coordinator import Coordinator
from headwater.record import CONTROL, BatchHeader, open_batch
from headwater.sink.loop import loop, staleness
from headwater.sink.loop.batch_writer import BatchWriter
from headwater.sink.loop.membership import Membership

__all__ = ["MUTATIONS", "kind_of", "mutated"]


def _rewrite_group_without_end(disk, plan, cleaning, group):
    first, last = group[0], group[-1]
    fresh = segment.Segment(disk, plan.folder, first.base_offset, suffix=compaction.CLEANED)
    fresh.file.truncate(0)
    dropped = set()
    for summary in group:
        for batch in compaction._batches(disk, plan.folder, summary):
            kept = cleaning.keep(batch)
            header = BatchHeader.read(batch if kept is None else kept)
            if kept is not None:
                fresh.append(kept, header, header.base_offset)
            elif header.attributes & CONTROL:
                dropped.add(header.base_offset)
    fresh.file.sync()
    fresh.restore(fresh.summary._replace(end_offset=last.end_offset))
    return compaction.CompactedSegment(fresh, group, last.end_offset, frozenset(dropped))


def _notify(self) -> None:
    for callback in tuple(self.watchers):
        callback()


async def _run(self) -> None:
    while self._dirty:
        dirty, self._dirty = list(self._dirty), {}
        self._current, self._next = self._next, self._loop.create_future()
        begun = [(each, each.begin_sync()) for each in dirty if not each.offline]
        failures = await self._loop.run_in_executor(self._thread, run_all, [part for _, part in begun])
        for (each, sync_round), failure in zip(begun, failures, strict=True):
            each.take_offline(failure) if failure else each.finish_sync(sync_round)
        self._current.set_result(None)
    self._round = None


def _is_enough(fetching) -> bool:
    body, found = fetching.request.body, 0
    for wanted in fetching.wanted:
        if wanted.partition is None or not wanted.partition.is_readable(wanted.part.fetch_offset):
            return True
        found += wanted.partition.available_bytes(
            wanted.part.fetch_offset, committed=bool(body.isolation_level)
        )
    return found >= min(body.min_bytes, body.max_bytes, fetching.request.answer_bytes_max)


@contextlib.contextmanager
def _reading(self) -> Iterator[None]:
    yield


def _opened_strictly(batch):
    records = open_batch(batch)
    for record in records:
        for name, _ in record.headers:
            name.encode()
    return records


async def _look_after_all(self) -> None:
    for each in tuple(self._catalog.topics.values()):
        for part in each.partitions.used():
            with contextlib.suppress(OSError):
                await self.look_after(part)


def _find_time(self, timestamp: int, *, committed: bool = False):
    record = self.segments.find_time(timestamp, 0)
    if record is None or not self.log_start_offset <= record.offset < self.high_watermark:
        return None
    return record


def _add(self, header, base_offset: int) -> None:
    self_add(self, header._replace(record_count=max(header.record_count, 1)), base_offset)


self_add = Producers.add


def _open_and_leave_the_manifest(self, producers, *, gaps_are_cuts: bool) -> None:
    listed = manifest.open_listed(self.disk, self.folder, producers)
    if listed is not None:
        self.closed, self.active = listed
        self._listed = True
        return
    self._blank = not self.disk.names(self.folder)
    if not self._blank:
        swap.finish(self.disk, self.folder)
        self.closed, self.active = recovery.recover(
            self.disk, self.folder, producers, gaps_are_cuts=gaps_are_cuts
        )


def _open_listed(disk, folder, producers):
    segments = ClosedSegments.decode(disk.read(folder / manifest.MANIFEST))
    if segments is None:
        return None
    first, last = segment.Segment(disk, folder, segments.bases[0]), segments.pop()
    following = segment.Segment(disk, folder, last.end_offset)
    if not disk.exists(first.path) or (last.size_bytes and disk.exists(following.path)):
        return None
    active = segment.Segment(disk, folder, last.base_offset)
    snapshot = active.load()
    if snapshot is None:
        return None
    producers.restore(snapshot)
    return segments, active


def _index(self):
    if self._index is None:
        found = segment.IndexFile.decode(self.disk.read(self.index_path))
        self._index = found.index if found else segment.Index()
    return self._index


def _exactly(self, length: int, position: int) -> bytes:
    return self.file.read(length, position)


def _opens_or_stops(self, disk, folder, config, *, sync_on_commit, gaps_are_cuts=True) -> None:
    init(self, disk, folder, config, sync_on_commit=sync_on_commit, gaps_are_cuts=gaps_are_cuts)
    if self.offline:
        raise OSError(f"{folder.name} cannot be read")


init = Partition.__init__


def _empty_catalog(self, *, is_new: bool):
    for name in self._disk.names(self._folder / "topics"):
        self._disk.remove_folder(self._folder / "topics" / name)
    return topic._Catalog(topic.FORMAT, {})


def _false(*_: object, **__: object) -> bool:
    return False


def _nothing(*_: object, **__: object) -> None:
    return None


def _began_now(self, now_ms: int) -> int:
    active = self._segments.active
    if active.began_ms == -1:
        active.began_ms = now_ms
    return active.began_ms


def _end_apart(self, state) -> None:
    self._publisher.commit()
    self._publisher.begin()
    end(self, state)


end = LogWriter.commit


def _commit_confirmed(self) -> None:
    if self._writer.batch.position is not None:
        self._source.confirm(self._writer.batch.position)
    commit(self)


commit = Feed._commit


def _end_without_control(self, state) -> None:
    end(self, msgspec.structs.replace(state, control=0))


def _as_they_are(self, parts):
    yield from parts


def _uncommitted(log, **settings):
    return consumer(log, **{**settings, "isolation.level": "read_uncommitted"})


def _raw_bounds(reader, topic):
    return reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=ledger.READ_S)


def _without_all(self, batch, error, records):
    return msgspec.structs.replace(without(self, batch, error, records), changes=())


without = BatchWriter._without


def _never(*_: object) -> str:
    return ""


MUTATIONS: dict[str, list[tuple[object, str, object]]] = {
    "1 an abort marker is compacted, and readers still learn of its transaction": [
        (Producers, "forget_ends", _nothing)
    ],
    "1 after a crash, readers learn of a transaction whose marker is compacted": [
        (Partition, "_forget_lost_markers", _nothing)
    ],
    "1 an empty batch that is kept for its producer opens a transaction": [(Producers, "add", _add)],
    "2 compaction leaves no mark at the end of a segment": [
        (compaction, "_rewrite_group", _rewrite_group_without_end),
        (recovery, "_any_proved", _false),
    ],
    "2 a manifest outlives the start that could not use it": [
        (Segments, "open", _open_and_leave_the_manifest),
        (manifest, "open_listed", _open_listed),
    ],
    "5 a deleted topic leaves its offsets": [(Offsets, "delete_topics", _false)],
    "6 segment.ms counts from the newest record": [
        (Expiry, "active_since_ms", lambda self, _: self._segments.active.max_timestamp)
    ],
    "6 segment.ms counts from the last start": [(Expiry, "active_since_ms", _began_now)],
    "8 a failed read under a waiting fetch ends the commits": [
        (Partition, "_notify", _notify),
        (Partition, "_reading", _reading),
        (Committer, "_run", _run),
        (fetch, "_is_enough", _is_enough),
    ],
    "9 compaction takes segments that are not synced": [
        (Segments, "synced_count", lambda self: len(self.closed)),
        (segment.Segment, "index", property(_index)),
    ],
    "10 an odd batch ends the caretaker": [
        (compaction, "_open_batch", _opened_strictly),
        (retention.Retention, "look_after_all", _look_after_all),
    ],
    "14 a time before the log start is at no offset": [(Partition, "find_time", _find_time)],
    "15 clients write to the broker's own topics": [(produce, "INTERNAL", frozenset())],
    "17 a start without its catalog cleans up": [(topic.Catalog, "_without_catalog", _empty_catalog)],
    "17 a start without its ids gives them out again": [(Broker, "_has_topics", _false)],
    "18 a topic made again finds the files of the one before": [
        (topic, "_folder_name", lambda name, _, index: f"{name}-{index}")
    ],
    "23 a compacted topic takes records without a key": [(partition, "check_keys", _nothing)],
    "25 offsets of groups are kept for ever": [(Offsets, "expire", _nothing)],
    "25 transactional ids are kept for ever": [(Coordinator, "expire", _nothing)],
    "a short read of a start is the end of the log": [(segment.Segment, "_exactly", _exactly)],
    "a partition that cannot be read stops the start": [(Partition, "__init__", _opens_or_stops)],
    "a failed read is not answered": [(Partition, "_reading", _reading)],
    "captures: the position is committed after the records": [(LogWriter, "commit", _end_apart)],
    "captures: the database may forget before the log has it": [(Feed, "_commit", _commit_confirmed)],
    "captures: large values that an update leaves out stay out": [(Completion, "complete", _as_they_are)],
    "captures: the state is read with what was given up": [(ledger, "consumer", _uncommitted)],
    "captures: a command is obeyed again": [(LogWriter, "commit", _end_without_control)],
    "captures: rows stay that a truncate has taken": [(RowDeletes, "insert", _as_they_are)],
    "captures: a compacted topic is sent a truncate": [(LogWriter, "is_compacted", _false)],
    "captures: a log that is away while the state is read ends it": [(ledger, "_bounds", _raw_bounds)],
    "captures: one that was overtaken asks for a new snapshot": [(Feed, "_was_overtaken", _false)],
    "sinks: rows of a topic that was made again stay": [(loop, "outdated", _never)],
    "sinks: deletions that the log has forgotten are not looked for": [
        (staleness, "_tombstones_ms", _nothing)
    ],
    "sinks: a record that no store takes is dropped": [(BatchWriter, "_bury", _nothing)],
    "sinks: markers at the end of a partition are not passed": [(Membership, "ended", _false)],
    "sinks: a store that was restored is not asked": [(loop, "SEEN_S", 1e12)],
    "sinks: one bad record takes its batch with it": [(BatchWriter, "_without", _without_all)],
}


def kind_of(name: str) -> str:
    """The kind of lives that find it."""
    word, colon, _ = name.partition(": ")
    return word if colon else "log"


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """The code with one defect put back."""
    with ExitStack() as stack:
        for where, attribute, old in MUTATIONS[name]:
            stack.enter_context(mock.patch.object(where, attribute, old))
        yield
