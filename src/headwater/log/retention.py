"""The caretaker of the partitions: rolls old segments, drops what retention gives up, has compaction done in a thread."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from headwater.clock import Clock
from headwater.log import swap
from headwater.log.compaction import Plan, Rewritten, rewrite
from headwater.log.disk import Disk
from headwater.log.partition import Partition
from headwater.log.segment import Segment
from headwater.log.topic import Catalog

__all__ = ["Retention"]

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0

T = TypeVar("T")


class Retention:
    """One task for all partitions. It gives the loop back after each partition; reading and rewriting run in a thread."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compacting: Partition | None = None
        """Whose segments are being rewritten; a stop in the middle leaves new files that nobody wants."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._thread.shutdown()
        if self._compacting is not None and not self._compacting.offline:
            swap.finish(self._compacting.disk, self._compacting.folder)

    async def look_after_all(self) -> None:
        """One round over all partitions."""
        for topic in tuple(self._catalog.topics.values()):
            for partition in topic.partitions.used():
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
        active = partition.active
        if active.size_bytes and active.max_timestamp < now_ms - partition.config.segment_ms:
            partition.roll()
        more = True
        while more:
            more = partition.expire(now_ms)
            await asyncio.sleep(0)
        plan = _plan(partition, now_ms) if partition.config.compacts else None
        if plan is not None:
            partition.prepare_swap()
            self._compacting = partition
            for rewritten in await self._in_thread(rewrite, partition.disk, plan):
                await _to_its_end(self._put_in_place(partition, rewritten))
            self._compacting = None

    async def _put_in_place(self, partition: Partition, rewritten: Rewritten) -> None:
        """The event loop only renames; what waits for the disk is done in the thread before and after."""
        disk, folder, fresh = partition.disk, partition.folder, rewritten.fresh
        await self._in_thread(_prepare, disk, folder, rewritten)
        if partition.offline:
            return
        first = partition.closed.holding(fresh.base_offset)
        found = [
            partition.closed[at] for at in range(first, len(partition.closed))[: len(rewritten.replaced)]
        ]
        if found != rewritten.replaced:  # retention took some of them meanwhile: the next round starts anew
            await self._in_thread(swap.conclude, disk, folder, [])
            fresh.remove()
            return
        swap.exchange(disk, folder, fresh.base_offset)
        fresh.renamed(swap.CLEANED)
        partition.swap(rewritten.replaced, fresh, rewritten.cleaned_to)
        await self._in_thread(
            swap.conclude, disk, folder, [each.base_offset for each in rewritten.replaced[1:]]
        )
        before = sum(summary.size_bytes for summary in rewritten.replaced)
        logger.info("%s: compacted %d bytes to %d", folder.name, before, fresh.size_bytes)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.look_after_all()


async def _to_its_end(work: Coroutine[None, None, None]) -> None:
    """Waits for work that must not be left half done, also when the one who waits is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _plan(partition: Partition, now_ms: int) -> Plan | None:
    """What to compact, or None while too little is dirty."""
    config = partition.config
    count = partition.closed.ended(partition.last_stable_offset)
    if config.min_compaction_lag_ms > 0:
        count = min(count, partition.closed.reaching(now_ms - config.min_compaction_lag_ms + 1))
    first_dirty = partition.closed.ended(partition.cleaned_to)
    dirty_bytes = sum(partition.closed.sizes[first_dirty:count])
    total_bytes = sum(partition.closed.sizes[:count])
    if not dirty_bytes or dirty_bytes < config.min_cleanable_dirty_ratio * total_bytes:
        return None
    last_batches = frozenset(
        p.batches[-1].base_offset for p in partition.producers.known.values() if p.batches
    )
    return Plan(
        folder=partition.folder,
        segments=[partition.closed[at] for at in range(count)],
        dirty_from=partition.cleaned_to,
        aborted=list(partition.producers.aborted),
        last_batches=last_batches,
        segment_bytes=config.segment_bytes,
        delete_retention_ms=config.delete_retention_ms,
        now_ms=now_ms,
    )


def _prepare(disk: Disk, folder: Path, rewritten: Rewritten) -> None:
    last = Segment(disk, folder, rewritten.replaced[-1].base_offset)
    rewritten.fresh.save_index(last.saved_producers())
    swap.intend(
        disk,
        folder,
        rewritten.fresh.base_offset,
        [summary.base_offset for summary in rewritten.replaced[1:]],
    )
