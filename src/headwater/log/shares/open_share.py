"""OpenShare: a partition in a share group that is in use, and those who wait for its records."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.errors import RequestError
from headwater.log.shares.indexed_reading import IndexedReader
from headwater.log.shares.notice import Notice
from headwater.log.shares.share_record import ShareKey
from headwater.log.storage.partition import Partition
from headwater.queue.recent_ids import RecentIds
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_partition import SharePartition

__all__ = ["OpenShare"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenShare:
    """One partition in one group, with the records of the log, its timer, and those who wait for records."""

    key: ShareKey
    state: SharePartition
    log: Partition
    reader: IndexedReader | None = None
    """Opens the records, if the group's settings say so."""
    watchers: set[Callable[[], None]] = field(default_factory=set)
    """Called when records have become available."""
    hold: Callable[[int], int] | None = None
    """What it tells retention."""
    timer: asyncio.TimerHandle | None = None
    timer_deadline: float = 0.0
    is_closed: bool = False
    """Whether the group has forgotten the partition, or begun elsewhere."""
    is_scanning: bool = False
    """Whether a step of the scan for parked records comes in the next turn of the event loop."""
    _named_exhausted: int = 0
    _notices: dict[str, Notice] = field(default_factory=dict)
    is_searching: bool = False
    """Whether a search for records continues in the next turn of the event loop: others wait for it."""

    def drop_deleted(self) -> None:
        """Forgets what was deleted from the log; what was not settled is counted, and named in the log."""
        start, log_start = self.state.start, self.log.log_start_offset
        lost = self.state.drop_before(log_start)
        if lost:
            self.state.counts = self.state.counts.plus(expired=lost)
            what = "%s: %d records at offsets %d to %d were deleted before share group %s had settled them"
            logger.warning(what, self.log.name, lost, start, log_start - 1, self.key.group)

    def needed_from(self, config: ShareConfig, now_ms: int) -> int:
        """The offset before which the group needs no records: a queue keeps them until they are settled."""
        if not config.opens_records:
            return self.log.high_watermark
        start = self.state.needed_from
        if config.keep_ms < 0:
            return start
        record = self.log.find_time(now_ms - config.keep_ms)
        return self.log.high_watermark if record is None else max(start, record.offset)

    def reader_for(self, config: ShareConfig) -> IndexedReader | None:
        """What opens the records, if the settings of the group say so, or said so when some were parked."""
        if not config.opens_records and not self.state.parking.has_any:
            if self.reader is not None:
                self.reader = None
                self.state.watch(None)
            return None
        window_ms = config.duplicates_ms or None
        if self.reader is None or self.reader.suits != (config.orders_by_key, window_ms):
            ids = RecentIds(window_ms) if window_ms else None
            self.reader = IndexedReader(self.state, self.log, config.orders_by_key, ids)
        return self.reader

    def scan_later(self, config: Callable[[], ShareConfig], when_over: Callable[[], None]) -> None:
        """Looks for parked records in the next turns of the event loop, if that is to be done."""
        reader = self.reader
        if reader is not None and not self.is_scanning and (reader.scan is not None or reader.needs_scan):
            self.is_scanning = True
            asyncio.get_running_loop().call_soon(self._scan_step, config, when_over)

    def _scan_step(self, config: Callable[[], ShareConfig], when_over: Callable[[], None]) -> None:
        self.is_scanning = False
        if self.is_closed or self.reader is None:
            return
        try:
            is_over = not self.reader.scan_step(config())
        except RequestError as error:  # the next look at the partition begins again
            logger.warning("%s: share group %s: a scan has failed: %s", self.log.name, self.key.group, error)
            return
        if is_over:
            when_over()
            self.wake()
        else:
            self.scan_later(config, when_over)

    def name_exhausted(self) -> None:
        """Names records in the log that were settled because they were delivered too often."""
        count = self.state.counts.exhausted - self._named_exhausted
        if count > 0 and self.state.exhausted:
            places = [f"{run.first} to {run.last}" for run in self.state.exhausted]
            what = "were delivered as often as is allowed and are settled: offsets"
            self._notice(what).add(count, places)
        self.state.exhausted = []
        self._named_exhausted = self.state.counts.exhausted

    def name_wrong(self) -> None:
        """Names records in the log whose headers cannot be read."""
        if self.reader is not None and self.reader.wrong:
            wrong, self.reader.wrong = self.reader.wrong, []
            self._notice("or more are delivered without headers that cannot be read:").add(len(wrong), wrong)

    def close_notices(self) -> None:
        for notice in self._notices.values():
            notice.close()

    def _notice(self, what: str) -> Notice:
        text = f"{self.log.name}: share group {self.key.group}: %d records {what} %s"
        return self._notices.setdefault(what, Notice(text))

    def search_later(self) -> None:
        """Lets one of those who wait continue a search in the next turn of the event loop."""
        self.is_searching = True
        asyncio.get_running_loop().call_soon(self._search)

    def _search(self) -> None:
        self.is_searching = False
        self.wake()

    def wake(self) -> None:
        for callback in tuple(self.watchers):
            try:
                callback()
            except Exception:  # one waiting member must not stop the others
                logger.exception("share group %s: a waiting member has failed", self.key.group)
