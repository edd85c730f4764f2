"""The transaction coordinator: stores what ``transaction.py`` decides, and writes the markers.

Its own state is an internal topic: one record for each change of a transaction, under its transactional id.
After a restart a transaction whose decision is stored is carried out; one that was open is aborted when its
time-out has passed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import NamedTuple

import msgspec

from headwater.clock import Clock
from headwater.decoders import from_json
from headwater.errors import ErrorCode, RequestError
from headwater.log.groups.group_record import Committed
from headwater.log.groups.offsets import OFFSETS_TOPIC, Offsets
from headwater.log.storage.catalog import Catalog
from headwater.log.storage.partition import Partition, read_all
from headwater.log.storage.producers import Marker
from headwater.log.transactions.transaction import EPOCH_MAX, PREPARED, Transaction, TransactionState
from headwater.record import Record, encode_batch

__all__ = ["TRANSACTIONS_TOPIC", "Coordinator", "Identity"]

logger = logging.getLogger(__name__)

TRANSACTIONS_TOPIC = "__transaction_state"
TIMEOUT_MS_MAX = 900_000
MARKER_RETRY_S = 1.0
ABORT_RETRY_S = 15.0
"""When an abort that the disk refused is retried.

A full disk stays full for a while, and each attempt is logged.
"""
EXPIRATION_MS = 604_800_000
"""A transactional id that is unused for this time is forgotten (Kafka's default)."""


class Identity(NamedTuple):
    """The id and epoch under which a producer writes."""

    producer_id: int
    epoch: int


class Coordinator:
    """Every transactional id of the broker.

    The event loop owns it; calls that wait never interleave in one transaction.
    """

    def __init__(
        self,
        partition: Partition,
        catalog: Catalog,
        offsets: Offsets,
        clock: Clock,
        *,
        committed: Callable[[], asyncio.Future[None]],
        new_producer_id: Callable[[], int],
    ) -> None:
        self._partition = partition
        self._catalog = catalog
        self._offsets = offsets
        self._clock = clock
        self._committed = committed
        self._new_producer_id = new_producer_id
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self.ended: dict[str, Callable[[int, bool], None]] = {OFFSETS_TOPIC: offsets.end}
        """Of topics that hold the broker's state, what is called after their markers."""
        self.by_id: dict[str, Transaction] = {}
        self._by_producer: dict[int, Transaction] = {}
        self._load()

    # ---- requests of clients ---------------------------------------------------------------------------

    async def init(self, transactional_id: str, timeout_ms: int, current: Identity) -> Identity:
        """The producer's new identity.

        Its former incarnation is fenced, and the open transaction of that is aborted.
        """
        if not transactional_id:
            raise RequestError(ErrorCode.INVALID_REQUEST, "a transactional id is empty")
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise RequestError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"time-out {timeout_ms} ms is not 1 to {TIMEOUT_MS_MAX} ms",
            )
        transaction = self.by_id.get(transactional_id)
        if transaction is None:
            transaction = Transaction(transactional_id, self._new_producer_id(), 0, timeout_ms)
        elif transaction.state in PREPARED:
            raise RequestError(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif (
            current.producer_id >= 0
            and current == (transaction.producer_id, transaction.former_epoch)
            and transaction.epoch <= EPOCH_MAX
        ):
            return Identity(transaction.producer_id, transaction.epoch)
        else:
            if current.producer_id >= 0 and current != (transaction.producer_id, transaction.epoch):
                raise RequestError(ErrorCode.PRODUCER_FENCED, f"{transactional_id} has a newer producer")
            if transaction.deadline_ms is not None:
                await asyncio.shield(self._begin(self._abort(transaction)))
                if transaction.state is not TransactionState.COMPLETE_ABORT:
                    raise RequestError(
                        ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is in use by another client"
                    )
            with self._changing(transaction):
                transaction.next_epoch(self._new_producer_id, asked_by_owner=current.producer_id >= 0)
                transaction.timeout_ms = timeout_ms
        if transactional_id not in self.by_id:
            self._store(transaction)
        # Taken before the wait, in which another call may change the transaction.
        identity = Identity(transaction.producer_id, transaction.epoch)
        await self._stored()
        return identity

    async def add(
        self, transactional_id: str, identity: Identity, partitions: set[tuple[str, int]], groups: set[str]
    ) -> None:
        """Adds partitions, and the offsets of groups, to the producer's transaction."""
        transaction = self._find(transactional_id, identity)
        wanted = partitions | ({(OFFSETS_TOPIC, 0)} if groups else set())
        if not transaction.has(wanted, groups):
            with self._changing(transaction):
                transaction.add(wanted, groups, self._clock.now_ms())
            self._schedule(transaction)
        await self._stored()

    async def end(self, transactional_id: str, identity: Identity, *, commit: bool) -> None:
        """Commits or aborts; returns when every partition has the marker.

        A decision is carried out even if the client leaves.
        """
        transaction = self._find(transactional_id, identity)
        if transaction.decides(commit=commit):
            with self._changing(transaction):
                transaction.prepare(commit=commit)
            await asyncio.shield(self._begin(self._carry_out(transaction)))

    def commit_offsets(
        self,
        transactional_id: str,
        identity: Identity,
        group: str,
        offsets: Mapping[tuple[str, int], Committed],
    ) -> None:
        """Appends a group's offsets as part of the producer's transaction."""
        transaction = self._find(transactional_id, identity)
        if group not in transaction.groups:
            raise RequestError(
                ErrorCode.INVALID_TXN_STATE,
                f"group {group} was not added to the transaction of {transactional_id}",
            )
        self._offsets.commit_pending(group, offsets, *identity)

    def check_added(self, transactional_id: str, identity: Identity, partition: tuple[str, int]) -> None:
        """Raises RequestError unless the producer has an open transaction that includes the partition."""
        transaction = self._find(transactional_id, identity)
        if transaction.deadline_ms is None or partition not in transaction.partitions:
            what = f"{partition[0]}-{partition[1]} is not part of an open transaction of {transactional_id}"
            raise RequestError(ErrorCode.INVALID_TXN_STATE, what)

    def check_produce(self, identity: Identity, topic: str, partition: int) -> None:
        """Raises RequestError unless the producer owns an open transaction that includes the partition."""
        transaction = self._by_producer.get(identity.producer_id)
        if transaction is None or transaction.producer_id != identity.producer_id:
            raise RequestError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"producer {identity.producer_id} has no transactional id",
            )
        if identity.epoch != transaction.epoch:
            raise RequestError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {identity.epoch} was superseded by {transaction.epoch}",
            )
        if transaction.deadline_ms is None or (topic, partition) not in transaction.partitions:
            raise RequestError(
                ErrorCode.INVALID_TXN_STATE,
                f"{topic}-{partition} is not part of an open transaction of {transaction.id}",
            )

    def expire(self) -> None:
        """Forgets the ids that were unused for EXPIRATION_MS."""
        now = self._clock.now_ms()
        for transaction in list(self.by_id.values()):
            idle = transaction.deadline_ms is None and transaction.state not in PREPARED
            if idle and now - transaction.updated_ms >= EXPIRATION_MS:
                self._append(Record(transaction.id.encode(), None, (), now))
                self._drop(transaction.id)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for ending in self._endings:
            ending.cancel()

    # ---- endings ---------------------------------------------------------------------------------------

    def _find(self, transactional_id: str, identity: Identity) -> Transaction:
        transaction = self.by_id.get(transactional_id)
        if transaction is None:
            raise RequestError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {transactional_id!r} does not exist"
            )
        transaction.check(*identity)
        return transaction

    def _abort(self, transaction: Transaction) -> Coroutine[None, None, None]:
        """Fences the producer and decides to abort its transaction.

        The returned coroutine carries that out.
        """
        with self._changing(transaction):
            transaction.fence()
            transaction.prepare(commit=False)
        return self._carry_out(transaction)

    async def _carry_out(self, transaction: Transaction) -> None:
        """Writes the markers of a decided transaction, once the decision is safe.

        A marker that cannot be written, or whose sync fails, is retried, also after a restart.
        """
        self._schedule(transaction)
        await self._stored()
        marker = Marker(transaction.producer_id, transaction.epoch, transaction.commits)
        partitions = transaction.partitions
        while partitions:
            written = {place for place in sorted(partitions) if self._write_marker(marker, *place)}
            await self._committed()
            partitions = {place for place in partitions if place not in written or self._is_offline(*place)}
            if partitions:
                logger.warning("transaction %s lacks markers in %s", transaction.id, sorted(partitions))
                await asyncio.sleep(MARKER_RETRY_S)
        await self._complete(transaction)

    async def _complete(self, transaction: Transaction) -> None:
        """Stores that all markers are safe; waits while the disk is full."""
        while True:
            try:
                with self._changing(transaction):
                    transaction.complete()
            except RequestError:
                if self._partition.offline:
                    raise
                await asyncio.sleep(MARKER_RETRY_S)
            else:
                return

    def _is_offline(self, name: str, index: int) -> bool:
        topic = self._catalog.topics.get(name)
        return topic is not None and index < len(topic.partitions) and topic.partitions[index].offline

    def _write_marker(self, marker: Marker, name: str, index: int) -> bool:
        """False if the partition could not take the marker.

        A topic that was deleted since then needs none.
        """
        topic = self._catalog.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            return True
        try:
            topic.partitions[index].append_marker(marker, self._clock.now_ms())
        except RequestError:
            return False
        if name in self.ended:
            self.ended[name](marker.producer_id, marker.commit)
        return True

    @contextlib.contextmanager
    def _changing(self, transaction: Transaction) -> Iterator[None]:
        """Stores a change of a transaction, or undoes it if the disk refuses it."""
        before = transaction.copy()
        try:
            yield
            self._store(transaction)
        except RequestError:
            transaction.restore(before)
            raise

    async def _stored(self) -> None:
        """Waits until everything stored is safe; raises RequestError if it may be lost."""
        await self._committed()
        if self._partition.offline:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{TRANSACTIONS_TOPIC} is offline")

    def _store(self, transaction: Transaction) -> None:
        now = transaction.updated_ms = self._clock.now_ms()
        self._append(Record(transaction.id.encode(), msgspec.json.encode(transaction), (), now))
        self._keep(transaction)

    def _append(self, record: Record) -> None:
        now = self._clock.now_ms()
        self._partition.append(memoryview(bytearray(encode_batch([record]))), now_ms=now)

    def _drop(self, transactional_id: str) -> None:
        former = self.by_id.pop(transactional_id, None)
        if former is not None:
            self._by_producer.pop(former.producer_id, None)

    def _keep(self, transaction: Transaction) -> None:
        former = self.by_id.get(transaction.id)
        if former is not None and former.producer_id != transaction.producer_id:
            self._by_producer.pop(former.producer_id, None)
        self.by_id[transaction.id] = self._by_producer[transaction.producer_id] = transaction

    def _schedule(self, transaction: Transaction) -> None:
        timer = self._timers.pop(transaction.id, None)
        if timer is not None:
            timer.cancel()
        if transaction.deadline_ms is not None:
            delay = max(transaction.deadline_ms - self._clock.now_ms(), 0) / 1000
            self._timers[transaction.id] = self._loop.call_later(delay, self._time_out, transaction)

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.deadline_ms is None:
            return
        if self._clock.now_ms() < transaction.deadline_ms:
            self._schedule(transaction)
            return
        logger.warning(
            "transaction of %s was open for %d ms and is aborted", transaction.id, transaction.timeout_ms
        )
        try:
            ending = self._abort(transaction)
        except RequestError as refused:
            logger.warning("transaction of %s cannot be aborted now: %s", transaction.id, refused)
            self._timers[transaction.id] = self._loop.call_later(ABORT_RETRY_S, self._time_out, transaction)
        else:
            self._begin(ending)

    def _begin(self, ending: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs an ending to its end, even if its caller is cancelled."""
        task = self._loop.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the end of a transaction must wait for the next start: %s", task.exception())

    def _load(self) -> None:
        for _, records in read_all(self._partition):
            for record in records:
                self._load_record(record)
        for transaction in self.by_id.values():
            if transaction.state in PREPARED:
                self._begin(self._carry_out(transaction))
            else:
                # A clock that was wrong may have begun it in the future; it must not stay open until then.
                transaction.started_ms = min(transaction.started_ms, self._clock.now_ms())
                self._schedule(transaction)

    def _load_record(self, record: Record) -> None:
        """Takes over a stored transaction.

        Skips records of clients from the time when they could write here.
        """
        try:
            transactional_id = (record.key or b"").decode()
            stored = record.value and from_json(record.value, Transaction)
        except (UnicodeDecodeError, msgspec.DecodeError):
            logger.warning("%s: the record at offset %d cannot be read", TRANSACTIONS_TOPIC, record.offset)
            return
        self._drop(transactional_id)
        if stored:
            if stored.updated_ms < 0:
                stored.updated_ms = record.timestamp
            self._keep(stored)
