"""Retention: one task that rolls old segments, drops expired ones and has topics compacted in a thread."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import RequestError
from headwater.log.storage import swap
from headwater.log.storage.catalog import Catalog
from headwater.log.storage.compaction import CompactedSegment, CompactionPlan, rewrite
from headwater.log.storage.disk import Disk
from headwater.log.storage.disk_space import try_write
from headwater.log.storage.partition import Partition
from headwater.log.storage.segment import Segment
from headwater.log.storage.topic_config import FOREVER

__all__ = ["INTERVAL_S", "Retention"]

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0
EXPIRE_INTERVAL_S = 600.0

T = TypeVar("T")


class Retention:
    """Looks after all partitions, one after the other, and yields to the event loop in between."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        expire: Callable[[], None] = lambda: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._interval_s = interval_s
        self._expire = expire
        """Forgets unused groups and transactional ids."""
        self._expired = clock.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compacting: Partition | None = None
        """The partition whose segments are being rewritten.

        A stop in between leaves new files to be removed.
        """
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self._thread.shutdown()
        if self._compacting is not None and not self._compacting.offline:
            with contextlib.suppress(OSError):  # the next start does it
                swap.finish(self._compacting.disk, self._compacting.folder)

    async def look_after_all(self) -> None:
        """One round over all partitions."""
        for topic in tuple(self._catalog.topics.values()):
            for partition in topic.partitions.used():
                try:
                    await self.look_after(partition)
                except Exception:  # the other partitions are looked after all the same
                    logger.exception("%s: retention failed", partition.name)
                await asyncio.sleep(0)
        if self._clock.monotonic() - self._expired >= EXPIRE_INTERVAL_S:
            self._expired = self._clock.monotonic()
            try:
                self._expire()
            except RequestError as refused:
                logger.warning("unused groups and transactional ids are kept for now: %s", refused)

    async def look_after(self, partition: Partition) -> None:
        """Applies the settings of a partition's topic to it."""
        if partition.offline:
            return
        now_ms = self._clock.now_ms()
        await self._expire_segments(partition, now_ms)
        if _is_to_roll(partition, now_ms):
            partition.roll()
            await self._expire_segments(partition, now_ms)
        plan = _plan(partition, now_ms) if partition.config.compacts else None
        if plan is not None:
            partition.segments.prepare_replace()
            self._compacting = partition
            await self._compact(partition, plan)
            self._compacting = None

    async def _expire_segments(self, partition: Partition, now_ms: int) -> None:
        more = True
        while more:
            more = partition.expire(now_ms)
            await asyncio.sleep(0)

    async def _compact(self, partition: Partition, plan: CompactionPlan) -> None:
        """Puts one segment after the other in place.

        So a full disk needs space for only one, and a marker is dropped after the records of its transaction.
        """
        disk, folder, before = partition.disk, partition.folder, partition.cleaned_to
        pass_ = rewrite(disk, plan)
        while (rewritten := await self._in_thread(next, pass_, None)) is not None:
            try:
                if not await _to_its_end(self._put_in_place(partition, rewritten)):
                    return
            except OSError:
                if not partition.offline:
                    await self._in_thread(rewritten.new.remove)
                raise
        if partition.cleaned_to > before:  # without it the next start would compact everything again
            done = str(partition.cleaned_to).encode()
            await self._in_thread(try_write, lambda: disk.replace(folder / "cleaned", done))

    async def _put_in_place(self, partition: Partition, rewritten: CompactedSegment) -> bool:
        """Prepares and concludes an exchange in the thread; the event loop itself only renames files.

        Returns False if the segments have changed since they were read.
        """
        try:
            await self._in_thread(_prepare, partition.disk, partition.folder, rewritten)
        except OSError:
            await self._withdraw(partition)
            raise
        if partition.offline:
            return False
        try:
            return await self._exchange(partition, rewritten)
        except OSError as error:
            # It is unknown which names the files have; the next start finishes what was intended.
            partition.take_offline(error)
            raise

    async def _withdraw(self, partition: Partition) -> None:
        """Removes an intention together with its files: the next pass writes others under the same names."""
        try:
            await self._in_thread(swap.conclude, partition.disk, partition.folder, [])
        except OSError as error:
            partition.take_offline(error)

    async def _exchange(self, partition: Partition, rewritten: CompactedSegment) -> bool:
        disk, folder, new = partition.disk, partition.folder, rewritten.new
        closed = partition.segments.closed
        first = closed.holding(new.base_offset)
        current = [closed[at] for at in range(first, len(closed))[: len(rewritten.replaced)]]
        if current != rewritten.replaced:  # retention has dropped some of them: the next round starts again
            await self._in_thread(swap.conclude, disk, folder, [])
            new.remove()
            return False
        swap.exchange(disk, folder, new.base_offset)
        new.renamed(swap.CLEANED)
        partition.swap(rewritten.replaced, new, rewritten.cleaned_to, rewritten.dropped_markers)
        merged = [summary.base_offset for summary in rewritten.replaced[1:]]
        await self._in_thread(swap.conclude, disk, folder, merged)
        before = sum(summary.size_bytes for summary in rewritten.replaced)
        logger.info("%s: compacted %d bytes to %d", partition.name, before, new.size_bytes)
        return True

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look_after_all()


async def _to_its_end(work: Coroutine[None, None, T]) -> T:
    """Waits for work that must not be left half done, even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _is_to_roll(partition: Partition, now_ms: int) -> bool:
    """Whether the active segment is old enough to be closed, or retention would drop all of it."""
    if not partition.segments.active.size_bytes:
        return False
    age_ms = now_ms - partition.expiry.active_since_ms(now_ms)
    return age_ms >= partition.config.segment_ms_max or not partition.expiry.keeps_any(
        partition.config, now_ms
    )


def _plan(partition: Partition, now_ms: int) -> CompactionPlan | None:
    """What to compact; None while too few bytes are dirty."""
    config = partition.config
    closed = partition.segments.closed
    count = min(closed.ended(partition.last_stable_offset), partition.segments.synced_count())
    if config.min_compaction_lag_ms > 0:
        count = min(count, closed.reaching(now_ms - config.min_compaction_lag_ms + 1))
    first_dirty = closed.ended(partition.cleaned_to)
    dirty_bytes = sum(closed.sizes[first_dirty:count])
    total_bytes = sum(closed.sizes[:count])
    if not dirty_bytes:
        return None
    if dirty_bytes < config.min_cleanable_dirty_ratio * total_bytes and not _is_overdue(partition, now_ms):
        return None
    last_batches = frozenset(
        p.batches[-1].base_offset for p in partition.producers.by_id.values() if p.batches
    )
    return CompactionPlan(
        folder=partition.folder,
        segments=[closed[at] for at in range(count)],
        dirty_from=partition.cleaned_to,
        aborted=list(partition.producers.aborted),
        last_batches=last_batches,
        segment_bytes=config.segment_bytes,
        delete_retention_ms=config.delete_retention_ms,
        now_ms=now_ms,
    )


def _is_overdue(partition: Partition, now_ms: int) -> bool:
    """Whether a record has waited for compaction for longer than the topic allows."""
    lag_ms = partition.config.max_compaction_lag_ms
    return lag_ms != FOREVER and now_ms - partition.dirty_since_ms() > lag_ms


def _prepare(disk: Disk, folder: Path, rewritten: CompactedSegment) -> None:
    producers = Segment(disk, folder, rewritten.replaced[-1].base_offset).saved_producers()
    if producers is not None:  # without an index, a start that needs it scans the segment
        rewritten.new.save_index(producers)
    swap.intend(
        disk,
        folder,
        rewritten.new.base_offset,
        [summary.base_offset for summary in rewritten.replaced[1:]],
    )
