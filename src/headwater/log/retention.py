"""The caretaker of the partitions: rolls old segments, drops what retention gives up, has compaction done in a thread."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import Refused
from headwater.log import swap
from headwater.log.compaction import Plan, Rewritten, rewrite
from headwater.log.config import FOREVER
from headwater.log.disk import Disk
from headwater.log.partition import Partition
from headwater.log.room import has_room
from headwater.log.segment import Segment
from headwater.log.topic import Catalog

__all__ = ["INTERVAL_S", "Retention"]

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0
EXPIRE_INTERVAL_S = 600.0

T = TypeVar("T")


class Retention:
    """One task for all partitions. It gives the loop back after each partition; reading and rewriting run in a thread."""

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
        """Forgets what is not used any more, beside the partitions."""
        self._expired = clock.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compacting: Partition | None = None
        """Whose segments are being rewritten; a stop in the middle leaves new files that nobody wants."""
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
                except Exception:  # one partition keeps no other from being looked after
                    logger.exception("%s: retention failed", partition.name)
                await asyncio.sleep(0)
        if self._clock.monotonic() - self._expired >= EXPIRE_INTERVAL_S:
            self._expired = self._clock.monotonic()
            try:
                self._expire()
            except Refused as refused:
                logger.warning("unused groups and transactional ids stay for now: %s", refused)

    async def look_after(self, partition: Partition) -> None:
        """Applies a partition's own settings to it."""
        if partition.offline:
            return
        now_ms = self._clock.now_ms()
        await self._expire_segments(partition, now_ms)
        if _is_to_roll(partition, now_ms):
            partition.roll()
            await self._expire_segments(partition, now_ms)
        plan = _plan(partition, now_ms) if partition.config.compacts else None
        if plan is not None:
            partition.prepare_swap()
            self._compacting = partition
            await self._compact(partition, plan)
            self._compacting = None

    async def _expire_segments(self, partition: Partition, now_ms: int) -> None:
        more = True
        while more:
            more = partition.expire(now_ms)
            await asyncio.sleep(0)

    async def _compact(self, partition: Partition, plan: Plan) -> None:
        """One segment after the other: a full disk needs room for one, and a marker goes after the records of its transaction."""
        disk, folder, before = partition.disk, partition.folder, partition.cleaned_to
        pass_ = rewrite(disk, plan)
        while (rewritten := await self._in_thread(next, pass_, None)) is not None:
            try:
                if not await _to_its_end(self._put_in_place(partition, rewritten)):
                    return
            except OSError:
                if not partition.offline:
                    await self._in_thread(rewritten.fresh.remove)
                raise
        if partition.cleaned_to > before:  # else the next start cleans it all again
            done = str(partition.cleaned_to).encode()
            await self._in_thread(has_room, lambda: disk.replace(folder / "cleaned", done))

    async def _put_in_place(self, partition: Partition, rewritten: Rewritten) -> bool:
        """The event loop only renames; what waits for the disk is done in the thread before and after.

        False if the segments are not those any more that were compacted.
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
            partition.take_offline(
                error
            )  # which names the files have is not known: a start finishes what was intended
            raise

    async def _withdraw(self, partition: Partition) -> None:
        """An intention must not outlive its files: the next pass writes others under the same names."""
        try:
            await self._in_thread(swap.conclude, partition.disk, partition.folder, [])
        except OSError as error:
            partition.take_offline(error)

    async def _exchange(self, partition: Partition, rewritten: Rewritten) -> bool:
        disk, folder, fresh = partition.disk, partition.folder, rewritten.fresh
        first = partition.closed.holding(fresh.base_offset)
        found = [
            partition.closed[at] for at in range(first, len(partition.closed))[: len(rewritten.replaced)]
        ]
        if found != rewritten.replaced:  # retention took some of them meanwhile: the next round starts anew
            await self._in_thread(swap.conclude, disk, folder, [])
            fresh.remove()
            return False
        swap.exchange(disk, folder, fresh.base_offset)
        fresh.renamed(swap.CLEANED)
        partition.swap(rewritten.replaced, fresh, rewritten.cleaned_to, rewritten.dropped_markers)
        await self._in_thread(
            swap.conclude, disk, folder, [each.base_offset for each in rewritten.replaced[1:]]
        )
        before = sum(summary.size_bytes for summary in rewritten.replaced)
        logger.info("%s: compacted %d bytes to %d", partition.name, before, fresh.size_bytes)
        return True

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look_after_all()


async def _to_its_end(work: Coroutine[None, None, T]) -> T:
    """Waits for work that must not be left half done, also when the one who waits is cancelled."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _is_to_roll(partition: Partition, now_ms: int) -> bool:
    """Whether the segment that is written to is old enough to be closed, or retention would take all of it."""
    if not partition.active.size_bytes:
        return False
    age_ms = now_ms - partition.active_since_ms(now_ms)
    return age_ms >= partition.config.segment_ms_max or not partition.outlives_retention(now_ms)


def _plan(partition: Partition, now_ms: int) -> Plan | None:
    """What to compact, or None while too little is dirty."""
    config = partition.config
    count = min(partition.closed.ended(partition.last_stable_offset), partition.synced_segments())
    if config.min_compaction_lag_ms > 0:
        count = min(count, partition.closed.reaching(now_ms - config.min_compaction_lag_ms + 1))
    first_dirty = partition.closed.ended(partition.cleaned_to)
    dirty_bytes = sum(partition.closed.sizes[first_dirty:count])
    total_bytes = sum(partition.closed.sizes[:count])
    if not dirty_bytes:
        return None
    if dirty_bytes < config.min_cleanable_dirty_ratio * total_bytes and not _is_overdue(partition, now_ms):
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


def _is_overdue(partition: Partition, now_ms: int) -> bool:
    """Whether a record waits for compaction for longer than the topic allows."""
    lag_ms = partition.config.max_compaction_lag_ms
    return lag_ms != FOREVER and now_ms - partition.dirty_since_ms() > lag_ms


def _prepare(disk: Disk, folder: Path, rewritten: Rewritten) -> None:
    producers = Segment(disk, folder, rewritten.replaced[-1].base_offset).saved_producers()
    if producers is not None:  # without them, a start that needs them reads the segment
        rewritten.fresh.save_index(producers)
    swap.intend(
        disk,
        folder,
        rewritten.fresh.base_offset,
        [summary.base_offset for summary in rewritten.replaced[1:]],
    )
