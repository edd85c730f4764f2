"""OpenShare: a partition in a share group that is in use, and those who wait for its records."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.log.shares.indexed_reading import IndexedReader
from headwater.log.shares.share_record import ShareKey
from headwater.log.storage.partition import Partition
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
    timer: asyncio.TimerHandle | None = None
    timer_deadline: float = 0.0
    is_closed: bool = False
    """Whether the group has forgotten the partition, or begun elsewhere."""
    is_searching: bool = False
    """Whether a search for records continues in the next turn of the event loop: others wait for it."""

    def reader_for(self, config: ShareConfig, started_ms: int) -> IndexedReader | None:
        """What opens the records, if the settings of the group say so."""
        if not config.opens_records:
            if self.reader is not None:
                self.reader = None
                self.state.watch(None)
        elif self.reader is None or self.reader.orders_by_key != config.orders_by_key:
            self.reader = IndexedReader(self.state, self.log, started_ms, config.orders_by_key)
        return self.reader

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
