"""OpenShare: a partition in a share group that is in use, and those who wait for its records."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from headwater.log.shares.share_record import ShareKey
from headwater.log.storage.partition import Partition
from headwater.queue.share_partition import SharePartition

__all__ = ["OpenShare"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenShare:
    """One partition in one group, with the records of the log, its timer, and those who wait for records."""

    key: ShareKey
    state: SharePartition
    log: Partition
    watchers: set[Callable[[], None]] = field(default_factory=set)
    """Called when records have become available."""
    timer: asyncio.TimerHandle | None = None
    timer_deadline: float = 0.0
    is_closed: bool = False
    """Whether the group has forgotten the partition, or begun elsewhere."""
    is_searching: bool = False
    """Whether a search for records continues in the next turn of the event loop: others wait for it."""

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
