"""Group commit: one sync round at a time, shared by every request that waits for it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from headwater.log.storage.partition import Partition
from headwater.log.storage.segments import SyncRound

__all__ = ["Committer"]


class Committer:
    """Syncs partitions that have new records, in rounds.

    The event loop owns it; only the rounds run in a thread. A round covers what was written before it began,
    so a request that writes during a round waits for the next one.
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
        """Adds a partition that has something to sync, and begins a round unless one is running."""
        self._dirty[partition] = None
        if self._round is None:
            self._round = self._loop.create_task(self._run())

    def committed(self) -> asyncio.Future[None]:
        """Done when everything that was marked before this call has been synced or has failed.

        Shielded: a caller that is cancelled does not cancel the wait of the others.
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
        """Runs one round.

        A failure takes only its own partition offline; every caller that waits is answered.
        """
        started = [(partition, partition.begin_sync()) for partition in dirty if not partition.offline]
        sync_rounds = [sync_round for _, sync_round in started]
        failures = await self._loop.run_in_executor(self._thread, run_all, sync_rounds)
        for (partition, sync_round), failure in zip(started, failures, strict=True):
            try:
                if failure is not None:
                    raise failure
                partition.finish_sync(sync_round)
            except Exception as error:  # noqa: BLE001  the other partitions are finished all the same
                partition.take_offline(error)


def run_all(sync_rounds: list[SyncRound]) -> list[Exception | None]:
    """Runs sync rounds one after the other, in the thread; returns the failure of each, or None."""
    return [_failure(sync_round) for sync_round in sync_rounds]


def _failure(sync_round: SyncRound) -> Exception | None:
    try:
        sync_round.run()
    except Exception as error:  # noqa: BLE001  whatever it was, it is unknown what the disk holds
        return error
    return None
