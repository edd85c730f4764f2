"""Membership: the members of all share groups, and the timers that remove those that are silent."""

import asyncio
import logging
from collections.abc import Iterable

from headwater.clock import Clock
from headwater.errors import ErrorCode, RequestError
from headwater.log.storage.catalog import Catalog
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_group import Heartbeat, HeartbeatAnswer, ShareGroup, Topology

__all__ = ["Membership"]

logger = logging.getLogger(__name__)


class Membership:
    """All share groups that have members, or had some in this run. The event loop owns it."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.groups: dict[str, ShareGroup] = {}

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def heartbeat(self, group_id: str, request: Heartbeat, config: ShareConfig) -> HeartbeatAnswer:
        """The answer to a member; settles the group's timer."""
        group = self.groups.get(group_id)
        if group is None:
            if request.epoch != 0:
                what = f"{request.member_id} is not a member of {group_id}"
                raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, what)
            group = ShareGroup(group_id)
        now = self._clock.monotonic()
        answer = group.heartbeat(request, now, config, self._topology)
        self.groups[group_id] = group
        self._settle(group)
        return answer

    def _topology(self, names: Iterable[str]) -> Topology:
        topics = {name: self._catalog.topics.get(name) for name in names}
        return {
            name: (topic.id, len(topic.partitions))
            for name, topic in topics.items()
            if topic is not None and not topic.internal
        }

    def _settle(self, group: ShareGroup) -> None:
        timer = self._timers.pop(group.id, None)
        if timer is not None:
            timer.cancel()
        deadline = group.deadline()
        if deadline is not None:
            delay = max(deadline - self._clock.monotonic(), 0)
            self._timers[group.id] = self._loop.call_later(delay, self._expire_members, group)

    def _expire_members(self, group: ShareGroup) -> None:
        for member in group.expire(self._clock.monotonic()):
            logger.info("share group %s: member %s has sent no heartbeat and is removed", group.id, member)
        self._settle(group)
