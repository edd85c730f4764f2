"""Group commit: one sync at a time, shared by every request that waits for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headwater.log.partition import Partition

__all__ = ["Committer"]


class Committer:
    """Syncs partitions that have new records, in rounds. The event loop owns it; only ``sync`` itself runs in a thread.

    A round covers what was written before it began, so who writes during a round waits for the next one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._dirty: dict[Partition, None] = {}
        """In the order in which they were marked."""
        self._current: asyncio.Future[None] = self._loop.create_future()
        self._current.set_result(None)
        self._next: asyncio.Future[None] = self._loop.create_future()
        self._round: asyncio.Task[None] | None = None

    def mark(self, partition: Partition) -> None:
        """Says that a partition has records to sync, and begins a round unless one is under way."""
        self._dirty[partition] = None
        if self._round is None:
            self._round = self._loop.create_task(self._run())

    def committed(self) -> asyncio.Future[None]:
        """Done when everything that was marked before this call has been synced or has failed.

        Shielded: a caller that is cancelled takes nobody else's wait with it.
        """
        return asyncio.shield(self._next if self._dirty else self._current)

    async def close(self) -> None:
        while self._round is not None:
            await self._round
        self._thread.shutdown()

    async def _run(self) -> None:
        try:
            while self._dirty:
                dirty, self._dirty = list(self._dirty), {}
                self._current, self._next = self._next, self._loop.create_future()
                try:
                    await self._sync(dirty)
                finally:
                    self._current.set_result(None)
        finally:
            self._round = None

    async def _sync(self, dirty: list[Partition]) -> None:
        """Whatever happens to one partition is its own: the others are synced, and everybody who waits is answered."""
        work = [(partition, partition.begin_sync()) for partition in dirty if not partition.offline]
        outcomes = await self._loop.run_in_executor(self._thread, _sync_all, work)
        for partition, outcome in outcomes:
            if isinstance(outcome, Exception):
                partition.take_offline(outcome)
                continue
            try:
                outcome()
            except Exception as error:  # noqa: BLE001  the others are answered all the same
                partition.take_offline(error)


def _sync_all(
    work: list[tuple[Partition, Callable[[], Callable[[], None]]]],
) -> list[tuple[Partition, Callable[[], None] | Exception]]:
    outcomes: list[tuple[Partition, Callable[[], None] | Exception]] = []
    for partition, sync in work:
        try:
            outcomes.append((partition, sync()))
        except Exception as error:  # noqa: BLE001  what the disk has is not known, whatever it was
            outcomes.append((partition, error))
    return outcomes
