"""ShareStore: what share groups must not forget, as records of an internal topic.

The topic has the guarantees of every other one, and is there only if a share group is used. Deliveries are
stored as well as acknowledgements, so a record is never delivered more often than its group allows, also if
the broker is killed in between.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from headwater.clock import Clock
from headwater.errors import RequestError
from headwater.log.shares import snapshots
from headwater.log.shares.pledges import Pledges
from headwater.log.shares.share_record import (
    PART,
    PLEDGE,
    SETTINGS,
    SNAPSHOT,
    ShareHead,
    ShareKey,
    ShareRecord,
    decode_key,
    decode_settings,
    decode_value,
    key_of,
    part_key,
    pledge_key,
    settings_key,
    settings_value,
    slot_key,
    value_of,
)
from headwater.log.shares.snapshots import PartNumbers, SnapshotParts, snapshot_records
from headwater.log.storage.partition import Partition, read_all
from headwater.queue.ranges import Ranges
from headwater.queue.run import Run
from headwater.queue.runs import Runs
from headwater.queue.share_facts import ShareFacts
from headwater.queue.share_partition import SharePartition
from headwater.record import CONTROL, TRANSACTIONAL, Record, encode_batch, is_commit

__all__ = ["SHARES_TOPIC", "Recovered", "ShareStore", "Stored"]

logger = logging.getLogger(__name__)

SHARES_TOPIC = "__share_group_state"
UPDATES_MAX = 64
"""After that many updates of a share partition comes a snapshot."""
RUNS_PER_UPDATE = 50
"""With more runs than so many for each update, a snapshot comes later: it costs no more than the updates."""
BATCH_BYTES_MAX = 1 << 19
"""Half of what a message may be."""


@dataclass(slots=True)
class Stored:
    """What the log has of one share partition."""

    epoch: int
    start: int
    runs: Runs | None
    """Until it is taken over at the start of the broker."""
    updates: int = 0
    snapshot_runs: int = 0
    """How many runs the last snapshot has."""
    facts: ShareFacts = field(default_factory=ShareFacts)
    first_deferred: dict[int, int] = field(default_factory=dict)
    cancelled: Ranges = field(default_factory=Ranges)
    """Like the runs, until they are taken over."""
    is_doubtful: bool = False
    """Whether it is unknown what the log has, so that a snapshot is next."""

    def note_parked(self, record: ShareRecord) -> None:
        """What a snapshot or an update says of parked records."""
        for key_hash, first in record.keys:
            self.first_deferred.pop(key_hash, None)
            if first >= 0:
                self.first_deferred[key_hash] = first
        if record.cancelled:
            self.cancelled = Ranges.of([*self.cancelled, *record.cancelled])


class Recovered(NamedTuple):
    """What a start finds of one share partition."""

    start: int
    runs: list[Run]
    facts: ShareFacts
    first_deferred: dict[int, int]
    cancelled: Ranges


class ShareStore:
    """Reads everything at a start, then only writes. The event loop owns it."""

    def __init__(self, existing: Partition | None, create: Callable[[], Partition], clock: Clock) -> None:
        self._partition = existing
        self._create = create
        self._clock = clock
        self.started_ms = clock.now_ms() - math.ceil(clock.monotonic() * 1000)
        """The wall time at which the clock of locks and delays was 0, or up to 2 ms before."""
        self._stored: dict[ShareKey, Stored] = {}
        self._slots: dict[ShareKey, int] = {}
        """How many slots of each share partition were ever used."""
        self.settings: dict[str, dict[str, str]] = {}
        """Of each group that has any."""
        self.pledges = Pledges()
        self._parts = SnapshotParts()
        self._numbers: dict[ShareKey, PartNumbers] = {}
        self._heads: dict[bytes, PartNumbers] = {}
        """Of the snapshots that are to be written, by their keys."""
        self._over: list[bytes] = []
        """Keys of pledges that have ended, and are deleted with the next records."""
        if existing is not None:
            self._load(existing)

    @property
    def is_offline(self) -> bool:
        return self._partition is not None and self._partition.offline

    def take_recovered(self) -> dict[ShareKey, Recovered]:
        """What is stored of all share partitions, once, at a start."""
        recovered = {}
        for key, stored in self._stored.items():
            recovered[key] = Recovered(
                stored.start, list(stored.runs or ()), stored.facts, stored.first_deferred, stored.cancelled
            )
            stored.runs, stored.first_deferred, stored.cancelled = None, {}, Ranges()
        return recovered

    def store(self, partitions: Mapping[ShareKey, SharePartition], *, whole: bool = False) -> None:
        """Appends what has changed; it is durable with the next sync. ``whole`` stores all of it."""
        records: list[Record] = []
        for key, partition in partitions.items():
            records += self._encode(key, partition, whole=whole)
        try:
            self._append(records)
        except RequestError:
            for key in partitions:
                self._stored[key].is_doubtful = True
            raise

    def configure(self, group: str, config: dict[str, str]) -> None:
        """Stores the settings of a group."""
        value = settings_value(config) if config else None
        self._append([Record(settings_key(group), value, (), self._clock.now_ms())])
        self.settings.pop(group, None)
        if config:
            self.settings[group] = config

    def forget(self, keys: Iterable[ShareKey]) -> None:
        """Deletes share partitions; if it cannot be stored, they are known as before, for another attempt."""
        now = self._clock.now_ms()
        records: list[Record] = []
        forgotten = list(keys)
        for key in forgotten:
            if key in self._stored:
                records.append(Record(key_of(key), None, (), now))
            numbers = self._numbers[key].all() if key in self._numbers else ()
            records += [Record(part_key(key, number), None, (), now) for number in numbers]
            slots = range(self._slots.get(key, 0))
            records += [Record(slot_key(key, slot), None, (), now) for slot in slots]
        self._append([*records, *self._without_pledges(forgotten)])
        for key in forgotten:
            self._stored.pop(key, None)
            self._slots.pop(key, None)
            self._numbers.pop(key, None)

    def replace(self, key: ShareKey, partition: SharePartition) -> None:
        """Stores a share partition that begins elsewhere: what transactions would settle is forgotten."""
        self._append(self._without_pledges([key]))
        self.store({key: partition}, whole=True)

    def _without_pledges(self, keys: list[ShareKey]) -> list[Record]:
        """The records that delete what is pledged of share partitions."""
        now, places = self._clock.now_ms(), self.pledges.places(keys)
        for place in places:
            self.pledges.drop(place)
        return [Record(pledge_key(*place), None, (), now) for place in places]

    def pledge(self, key: ShareKey, runs: list[Run], producer_id: int, epoch: int) -> None:
        """Appends what a transaction settles if it commits, as part of it."""
        value = value_of(ShareHead(0, runs[0].first), runs, self.started_ms)
        record = Record(pledge_key(key, runs[0].first), value, (), self._clock.now_ms())
        self._append_batch([record], producer_id=producer_id, producer_epoch=epoch, attributes=TRANSACTIONAL)
        self.pledges.add(producer_id, key, runs)

    def end_pledges(self, producer_id: int) -> list[ShareKey]:
        """After the marker of a transaction: its pledges are over. Returns the share partitions."""
        places = self.pledges.end(producer_id)
        self._over += [pledge_key(*place) for place in places]
        return list(dict.fromkeys(key for key, _ in places))

    def _encode(self, key: ShareKey, partition: SharePartition, *, whole: bool) -> list[Record]:
        """A snapshot or an update; nothing if nothing has changed that matters after a restart."""
        stored = self._stored.setdefault(key, Stored(0, partition.start, None))
        changes, facts, now = partition.take_changes(), partition.facts, self._clock.now_ms()
        parking = partition.parking
        keys, cancelled = parking.take_changed_keys(), parking.take_changed_ranges()
        is_new = facts != stored.facts
        stored.facts = facts
        updates_max = max(UPDATES_MAX, stored.snapshot_runs // RUNS_PER_UPDATE)
        if (
            whole
            or not stored.epoch
            or stored.is_doubtful
            or stored.updates >= updates_max
            or len(changes) > snapshots.RUNS_PER_RECORD
        ):
            stored.epoch += 1
            stored.updates, stored.is_doubtful = 0, False
            parking.forget_cancelled()
            keys = list(parking.first_deferred.items())
            head = ShareHead(stored.epoch, partition.start, facts, keys, parking.cancelled)
            stored.snapshot_runs = len(partition.runs)
            numbers = self._heads[key_of(key)] = self._numbers.setdefault(key, PartNumbers())
            return snapshot_records(
                key, head, partition.runs, numbers, started_ms=self.started_ms, now_ms=now
            )
        if not (changes or is_new or keys or cancelled):
            return []
        slot = stored.updates
        stored.updates += 1
        self._slots[key] = max(self._slots.get(key, 0), stored.updates)
        head = ShareHead(stored.epoch, partition.start, facts if is_new else None, keys, cancelled)
        return [Record(slot_key(key, slot), value_of(head, changes, self.started_ms), (), now)]

    def _append(self, records: list[Record]) -> None:
        if not records:
            return
        now, over = self._clock.now_ms(), self._over
        records, self._over = [*records, *(Record(key, None, (), now) for key in over)], []
        try:
            self._append_all(records)
        except RequestError:
            self._over = over
            raise

    def _append_all(self, records: list[Record]) -> None:
        if self._partition is None:
            self._partition = self._create()
        batch: list[Record] = []
        size = 0
        for record in records:
            record_bytes = len(record.value or b"") + len(record.key or b"")
            if batch and size + record_bytes > BATCH_BYTES_MAX:
                self._append_batch(batch)
                batch, size = [], 0
            batch.append(record)
            size += record_bytes
        if batch:
            self._append_batch(batch)

    def _note_stored(self, records: Iterable[Record]) -> None:
        """Snapshots that the log has: the parts of the next ones have the other numbers."""
        for record in records:
            numbers = self._heads.pop(record.key or b"", None)
            if numbers is not None:
                numbers.is_odd = not numbers.is_odd

    def _append_batch(self, records: list[Record], **transaction: int) -> None:
        assert self._partition is not None  # noqa: S101  made by the caller
        data = memoryview(bytearray(encode_batch(records, **transaction)))
        self._partition.append(data, now_ms=self._clock.now_ms(), sequenced=False)
        self._note_stored(records)

    # ---- reading ---------------------------------------------------------------------------------------

    def _load(self, partition: Partition) -> None:
        for header, records in read_all(partition):
            if header.attributes & CONTROL:
                self._load_end(header.producer_id, commit=is_commit(records))
                continue
            for record in records:
                try:
                    self._load_record(record, header.producer_id)
                except (msgspec.MsgspecError, ValueError) as error:
                    logger.warning(
                        "%s: the record at offset %d cannot be read: %s", SHARES_TOPIC, record.offset, error
                    )

    def _load_end(self, producer_id: int, *, commit: bool) -> None:
        """The marker of a transaction. What it does not commit was acquired, and is released by the start."""
        for (key, _), runs in self.pledges.end(producer_id).items():
            stored = self._stored.get(key)
            if commit and stored is not None and stored.runs is not None:
                for run in runs:
                    stored.runs.write(run)
                stored.start = stored.runs.start

    def _load_record(self, record: Record, producer_id: int) -> None:
        kind, key, slot = decode_key(record.key or b"")
        if kind == SETTINGS:
            config = None if record.value is None else decode_settings(record.value)
            self.settings.pop(key.group, None)
            if config is not None:
                self.settings[key.group] = config
        elif kind == SNAPSHOT:
            self._load_snapshot(key, record.value)
        elif kind == PLEDGE:
            self.pledges.drop((key, slot))
            if record.value is not None:
                pledged = decode_value(record.value).decoded_runs(self.started_ms)
                self.pledges.add(producer_id, key, pledged)
        elif kind == PART:
            self._load_part(key, slot, record.value)
        elif record.value is not None:
            self._slots[key] = max(self._slots.get(key, 0), slot + 1)
            self._load_update(key, slot, decode_value(record.value))

    def _load_snapshot(self, key: ShareKey, value: bytes | None) -> None:
        if value is None:
            self._stored.pop(key, None)
            return
        snapshot = decode_value(value)
        runs = Runs(snapshot.start, self._parts.runs(key, snapshot, self.started_ms))
        stored = self._stored[key] = Stored(snapshot.epoch, snapshot.start, runs, facts=snapshot.share_facts)
        stored.snapshot_runs = len(runs)
        stored.note_parked(snapshot)
        self._numbers.setdefault(key, PartNumbers()).is_odd = snapshot.is_odd

    def _load_part(self, key: ShareKey, number: int, value: bytes | None) -> None:
        self._numbers.setdefault(key, PartNumbers()).note(number)
        self._parts.add(key, number, None if value is None else decode_value(value))

    def _load_update(self, key: ShareKey, slot: int, update: ShareRecord) -> None:
        stored = self._stored.get(key)
        if stored is None or stored.runs is None or update.epoch != stored.epoch:
            return
        stored.updates = slot + 1
        for run in update.decoded_runs(self.started_ms):
            stored.runs.write(run)
        stored.runs.drop_before(update.start)
        stored.start = stored.runs.start
        if update.facts is not None:
            stored.facts = update.share_facts
        stored.note_parked(update)
