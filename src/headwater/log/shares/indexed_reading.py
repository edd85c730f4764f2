"""Records of the log for one member, where the keys and headers of records count (``queue/record_index.py``).

Batches are opened some way ahead of what is delivered. A member gets the records that it has locked, and no
others: batches with what is left of those in the log. Records that are due later, and those of blocked keys,
are parked (``queue/parking.py``); a scan in the background finds them again after a start.
"""

from dataclasses import dataclass, field

from headwater.errors import RequestError
from headwater.log.shares.opened_records import Opened, OpenedRecords, joined
from headwater.log.shares.parked_scan import ParkedScan
from headwater.log.shares.reading import Delivery, readable_to, spans
from headwater.log.storage.partition import Partition
from headwater.queue.acquisition import Acquisition, Wish
from headwater.queue.parking import hash_of
from headwater.queue.recent_ids import RecentIds
from headwater.queue.record_headers import RecordHeaders, read_headers
from headwater.queue.record_index import IndexedRecord, RecordIndex
from headwater.queue.run import DeliveryState, Run
from headwater.queue.schedule import Due
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_partition import SharePartition
from headwater.record import BatchHeader, RecordSlice, whole_batches

__all__ = ["IndexedReader"]

READ_BYTES = 1 << 18
STEP_BYTES_MAX = 1 << 20
"""How much is opened in one step of the event loop, if something can be delivered already."""
SEARCH_BYTES_MAX = 1 << 22
"""The same if nothing can be delivered yet."""
DUE_RECORDS_MAX = 500
"""How many scheduled records are given runs in one step."""
KEY_RECORDS_MIN = 50
"""With fewer records of a key in the index, those that are deferred follow."""
WRONG_NAMED_MAX = 20


@dataclass(slots=True)
class IndexedReader:
    """The opened records of one share partition."""

    share: SharePartition
    log: Partition
    orders_by_key: bool
    ids: RecentIds | None = None
    """The ids of records that came lately, if repeated ones are to be settled."""
    index: RecordIndex = field(init=False)
    opened: OpenedRecords = field(init=False)
    scan: ParkedScan | None = field(init=False, default=None)
    """Finds what is parked, until it is over."""
    wrong: list[str] = field(default_factory=list)
    """What is wrong with the headers of records, until it is named."""
    _ids_of: int = field(init=False)
    """How often the index had been reset when the ids were looked for."""
    _idle_keys: set[int] = field(default_factory=set)
    """Hashes of keys whose deferred records may follow."""

    def __post_init__(self) -> None:
        self.index = RecordIndex(self.share.start)
        self.opened = OpenedRecords(self.log)
        self.share.watch(self.index)
        self._ids_of = -1 if self.ids is not None else 0

    @property
    def suits(self) -> tuple[bool, int | None]:
        """The settings of a group that it was made for."""
        return self.orders_by_key, self.ids.window_ms if self.ids is not None else None

    def may_deliver(self, config: ShareConfig, now: float) -> bool:
        """Whether it is worth a look."""
        if not self.share.locks_left(config):
            return False
        if self._has_more(config) or self.needs_scan:
            return True
        if self._is_catching_up:
            return False
        return self.index.ready > 0 or self.share.parking.is_due(now) or bool(self._keys_to_fill())

    def scan_step(self, config: ShareConfig) -> bool:
        """Looks for what is parked; returns whether there is more to do."""
        self._begin_scan()
        if self.scan is not None:
            self.scan.step(config)
            self._end_scan()
        return self.scan is not None

    @property
    def needs_scan(self) -> bool:
        """Whether a scan is to begin: after a start, or because a change was undone."""
        if self.ids is not None and self._ids_of != self.index.resets:
            return True
        parking = self.share.parking
        return not parking.is_complete and (self.scan is None or self.scan.generation != parking.generation)

    def _begin_scan(self) -> None:
        if self.needs_scan:
            self.ids = RecentIds(self.ids.window_ms) if self.ids is not None else None
            self._ids_of = self.index.resets
            self.scan = ParkedScan(self.share, self.log, self.ids)
            self._end_scan()

    def _end_scan(self) -> None:
        if self.scan is not None and self.scan.is_over:
            self.scan.complete()
            self.scan = None
            self._idle_keys.update(self.share.parking.first_deferred)

    def deliver(
        self, wish: Wish, config: ShareConfig, *, bytes_max: int, is_first: bool, now: float
    ) -> Delivery:
        """Locks what a member may have now. The first record of an answer may exceed ``bytes_max``."""
        self.log.check_online()
        self.share.drop_before(self.log.log_start_offset)
        self._begin_scan()
        is_cut = self._open_ahead(config, now)
        if self._is_catching_up:
            return Delivery(b"", [], is_cut=is_cut)
        self.index.scanned = self.share.next_unsettled(self.index.scanned)
        is_cut |= self._take_due(now)
        self._fill_keys()
        acquisition = Acquisition(wish._replace(strict=True), config, now)
        now_ms, expired = self.share.parking.now_ms(now), 0
        chosen, rest, size_bytes = list[Opened](), list[int](), 0
        for offset in self.index.take(min(wish.records_max, self.share.locks_left(config))):
            record = self.index.get(offset)
            if record is not None and 0 < record.expires_ms <= now_ms:
                self.share.drop(offset, expired=1)
                expired += 1
                continue
            opened = self.opened.at(offset)
            fits = size_bytes + opened.size_bytes <= bytes_max or (is_first and not chosen)
            if fits and self.share.lock(acquisition, offset):
                chosen.append(opened)
                size_bytes += opened.size_bytes
            else:
                rest.append(offset)
        self.index.put_back(offset for offset in rest if self.share.is_available(offset))
        self.share.note_acquired(acquisition)
        is_cut = not chosen and (is_cut or expired > 0)
        return Delivery(b"".join(joined(chosen)), acquisition.sorted(), is_cut=is_cut)

    # ---- opening ---------------------------------------------------------------------------------------

    def _has_more(self, config: ShareConfig) -> bool:
        if self.share.next_unsettled(self.index.scanned) >= readable_to(self.log, config):
            return False
        if self._is_catching_up:
            return True
        if self._awaits_scan or self.share.parking.is_full:
            return False
        return self.index.wants_more and self.share.delayed < config.delayed_max

    @property
    def _awaits_scan(self) -> bool:
        """Whether the ids or keys of earlier records are to be known before new ones are opened."""
        if self.ids is None and not self.share.parking.first_deferred:
            return False
        return self.scan is not None or self.needs_scan

    @property
    def _is_catching_up(self) -> bool:
        """Whether records may be with members, or delayed, whose keys the index does not know yet."""
        return self.share.next_unsettled(self.index.scanned) < self.share.end

    def _open_ahead(self, config: ShareConfig, now: float) -> bool:
        """Opens records until enough may be delivered; returns whether it has stopped before that."""
        opened_bytes = 0
        while self._has_more(config):
            is_enough = self.index.ready > 0 and not self._is_catching_up
            if opened_bytes > (STEP_BYTES_MAX if is_enough else SEARCH_BYTES_MAX):
                return True
            offset = self.index.scanned = self.share.next_unsettled(self.index.scanned)
            data = self.log.read(offset, READ_BYTES, committed=config.reads_committed)
            batches = [(BatchHeader.read(batch), batch) for batch in whole_batches(data)]
            at, limit = offset, self.share.end if self._awaits_scan else readable_to(self.log, config)
            for number, span in enumerate(spans(self.log, offset, batches, config)):
                if max(at, span.first) >= limit:
                    break
                self.share.skip(at, span.first - 1)
                if span.deliver:
                    self._open_batch(*batches[number], now, limit)
                else:
                    self.share.skip(max(span.first, at), span.last)
                at = self.index.scanned = max(at, min(span.last + 1, limit))
            opened_bytes += max(len(data), 1)
        return False

    def _open_batch(self, header: BatchHeader, batch: memoryview, now: float, limit: int) -> None:
        at = max(header.base_offset, self.index.scanned)
        for record in self.opened.open(header, batch):
            if record.offset >= limit:
                return
            if record.offset < at:
                continue
            self.share.skip(at, record.offset - 1)
            at = record.offset + 1
            headers = read_headers(record.headers)
            run = self._place(record, headers, now)
            if run is not None:
                self._add(record, headers, run)
        self.share.skip(at, header.last_offset)

    def _place(self, record: RecordSlice, headers: RecordHeaders, now: float) -> Run | None:
        """The run of a record that was opened; None if it is settled or parked."""
        share, parking, offset = self.share, self.share.parking, record.offset
        now_ms = parking.now_ms(now)
        run = share.reach(offset)
        if run is not None and (run.state is not DeliveryState.AVAILABLE or run.deliveries or run.batch_size):
            return run
        if run is None:
            self._note_wrong(offset, headers)
            if self._is_repeated(record, headers):
                self._drop_repeated(record, headers)
                return None
        if headers.due_ms and parking.may_schedule(Due(headers.due_ms, offset)):
            self._schedule(offset, headers)
            return None
        if headers.due_ms > now_ms:  # the clock was set back
            return share.delay(offset, (headers.due_ms - parking.started_ms) / 1000)
        is_parked = run is None and self._defer(record)
        if not is_parked and 0 < headers.expires_ms <= now_ms:
            share.drop(offset, expired=1)
        elif not is_parked:
            return share.appear(offset) if run is None else run
        return None

    def _schedule(self, offset: int, headers: RecordHeaders) -> None:
        """Parks a record until it is due, unless it expires before."""
        is_never = 0 < headers.expires_ms <= headers.due_ms
        self.share.drop(offset, expired=int(is_never))
        if not is_never and not self._is_scanned_later(offset):
            self.share.parking.schedule(Due(headers.due_ms, offset))

    def _is_repeated(self, record: RecordSlice, headers: RecordHeaders) -> bool:
        ids = self.ids
        return ids is not None and headers.id is not None and ids.is_repeated(headers.id, record.timestamp)

    def _drop_repeated(self, record: RecordSlice, headers: RecordHeaders) -> None:
        """Settles it; a scan must not take it for one that is parked."""
        parking, offset = self.share.parking, record.offset
        self.share.drop(offset, duplicate=1)
        is_deferred = (
            record.key is not None
            and bool(parking.first_deferred)
            and parking.defers(hash_of(record.key), offset)
        )
        if is_deferred or (headers.due_ms and parking.may_schedule(Due(headers.due_ms, offset))):
            parking.exclude(offset, offset)

    def _is_scanned_later(self, offset: int) -> bool:
        return self.scan is not None and self.scan.covers(offset)

    def _defer(self, record: RecordSlice) -> bool:
        """Parks a record of a key that is blocked, if earlier ones are parked or the index holds enough."""
        if not self.orders_by_key or record.key is None:
            return False
        parking, is_crowded = self.share.parking, self.index.is_crowded(record.key)
        if not is_crowded and not parking.first_deferred:
            return False
        key_hash = hash_of(record.key)
        if not is_crowded and not parking.defers(key_hash, record.offset):
            return False
        if not parking.first_deferred:
            self.index.tell_keys()
        self.share.drop(record.offset)
        parking.defer(key_hash, record.offset)
        return True

    def _note_wrong(self, offset: int, headers: RecordHeaders) -> None:
        if headers.wrong:
            self.share.counts = self.share.counts.plus(invalid=1)
            if len(self.wrong) < WRONG_NAMED_MAX:
                self.wrong.append(f"at offset {offset} {headers.wrong}")

    def _add(self, record: RecordSlice, headers: RecordHeaders, run: Run) -> None:
        key = record.key if self.orders_by_key else None
        self.index.add(IndexedRecord(record.offset, key, headers.priority, headers.expires_ms), run)

    # ---- what was parked -------------------------------------------------------------------------------

    def _take_due(self, now: float) -> bool:
        """Gives runs to scheduled records that are due; returns whether there are more."""
        parking = self.share.parking
        if not parking.is_due(now) or self.index.is_full:
            return False
        self._give_runs(parking.take_due(parking.now_ms(now), DUE_RECORDS_MAX), may_defer=True)
        return parking.is_due(now)

    def _fill_keys(self) -> None:
        """Gives runs to deferred records of keys that are not blocked any more, or soon."""
        parking = self.share.parking
        self.index.tells_keys = bool(parking.first_deferred)
        for key_hash in self._keys_to_fill():
            if self.orders_by_key or not self.index.is_full:
                count = 1 if self.index.is_full else KEY_RECORDS_MIN
                self._give_runs(parking.take_deferred(key_hash, count), may_defer=False)
                self._idle_keys.discard(key_hash)

    def _keys_to_fill(self) -> list[int]:
        parking = self.share.parking
        if not parking.first_deferred or not parking.is_complete:
            return []
        if not self.orders_by_key:
            return list(parking.first_deferred)
        enough = 1 if self.index.is_full else KEY_RECORDS_MIN
        thinned, self.index.thinned_keys = self.index.thinned_keys, set()
        if thinned is None:
            return list(parking.first_deferred)
        self._idle_keys.update(hash_of(key) for key in thinned if self.index.queued(key) < enough)
        self._idle_keys.intersection_update(parking.first_deferred)
        return list(self._idle_keys)

    def _give_runs(self, offsets: list[int], *, may_defer: bool) -> None:
        """Records are parked no longer. If one cannot be read, the index is made again, from the runs."""
        try:
            records = [self.opened.at(offset).record for offset in sorted(offsets)]
        except RequestError:
            for offset in offsets:
                self.share.appear(offset)
            self.index.reset(self.share.start)
            raise
        for record in records:
            if not (may_defer and self._defers_parked(record)):
                self._add(record, read_headers(record.headers), self.share.appear(record.offset))

    def _defers_parked(self, record: RecordSlice) -> bool:
        """Whether a record that was scheduled waits for others of its key, which are deferred."""
        parking = self.share.parking
        if record.key is None or not parking.first_deferred:
            return False
        key_hash = hash_of(record.key)
        if not parking.defers(key_hash, record.offset):
            return False
        parking.defer(key_hash, record.offset)
        return True
