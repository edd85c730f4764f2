"""The caretaker of the partitions: rolls old segments, drops what retention gives up, has compaction done in a thread."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from headwater.clock import Clock
from headwater.log import swap
from headwater.log.compaction import Plan, Rewritten, rewrite
from headwater.log.partition import Partition
from headwater.log.topic import Catalog

__all__ = ["Retention"]

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0


class Retention:
    """One task for all partitions. It gives the loop back after each partition; reading and rewriting run in a thread."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._thread.shutdown()

    async def look_after_all(self) -> None:
        """One round over all partitions."""
        for topic in tuple(self._catalog.topics.values()):
            for partition in topic.partitions:
                try:
                    await self.look_after(partition)
                except OSError as error:
                    logger.warning("%s: retention failed: %s", partition.folder.name, error)
                await asyncio.sleep(0)

    async def look_after(self, partition: Partition) -> None:
        """Applies a partition's own settings to it."""
        if partition.offline:
            return
        now_ms = self._clock.now_ms()
        active = partition.segments[-1]
        if active.size_bytes and active.max_timestamp < now_ms - partition.config.segment_ms:
            partition.roll()
        partition.expire(now_ms)
        plan = _plan(partition, now_ms) if partition.config.compacts else None
        if plan is not None:
            loop = asyncio.get_running_loop()
            for rewritten in await loop.run_in_executor(self._thread, rewrite, partition.disk, plan):
                if not partition.offline:
                    _put_in_place(partition, rewritten)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look_after_all()


def _plan(partition: Partition, now_ms: int) -> Plan | None:
    """What to compact, or None while too little is dirty."""
    config = partition.config
    ready = []
    for segment in partition.segments[:-1]:
        too_young = (
            segment.max_timestamp > now_ms - config.min_compaction_lag_ms and config.min_compaction_lag_ms > 0
        )
        if segment.end_offset > partition.last_stable_offset or too_young:
            break
        ready.append(segment.summary)
    dirty_bytes = sum(s.size_bytes for s in ready if s.end_offset > partition.cleaned_to)
    total_bytes = sum(s.size_bytes for s in ready)
    if not dirty_bytes or dirty_bytes < config.min_cleanable_dirty_ratio * total_bytes:
        return None
    last_batches = frozenset(
        p.batches[-1].base_offset for p in partition.producers.known.values() if p.batches
    )
    return Plan(
        folder=partition.folder,
        segments=ready,
        dirty_from=partition.cleaned_to,
        aborted=list(partition.producers.aborted),
        last_batches=last_batches,
        segment_bytes=config.segment_bytes,
        delete_retention_ms=config.delete_retention_ms,
        now_ms=now_ms,
    )


def _put_in_place(partition: Partition, rewritten: Rewritten) -> None:
    wanted = {summary.base_offset for summary in rewritten.replaced}
    replaced = [segment for segment in partition.segments if segment.base_offset in wanted]
    if [segment.summary for segment in replaced] != rewritten.replaced:
        rewritten.fresh.remove()  # retention took some of them meanwhile: the next round starts anew
        return
    fresh = rewritten.fresh
    fresh.save_index(replaced[-1].saved_producers())
    partition.touch()
    swap.carry_out(partition.disk, partition.folder, fresh.base_offset, [s.base_offset for s in replaced[1:]])
    fresh.renamed(swap.CLEANED)
    before = sum(segment.size_bytes for segment in replaced)
    partition.swap(replaced, fresh, rewritten.cleaned_to)
    logger.info("%s: compacted %d bytes to %d", partition.folder.name, before, fresh.size_bytes)
