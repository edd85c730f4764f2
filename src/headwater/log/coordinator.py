"""The transaction coordinator: stores what ``transaction.py`` decides, and tells the partitions.

Its own state is an internal topic: a record for each change of a transaction, under its transactional id. A transaction
whose decision stands there is carried out after a restart; one that was open is aborted when its time is over.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import NamedTuple

import msgspec

from headwater.clock import Clock
from headwater.decoders import from_json
from headwater.errors import ErrorCode, Refused
from headwater.log.group_record import Committed
from headwater.log.offsets import OFFSETS_TOPIC, Offsets
from headwater.log.partition import Partition, read_all
from headwater.log.producer import Marker
from headwater.log.topic import Catalog
from headwater.log.transaction import EPOCH_MAX, PREPARED, Transaction, TransactionState
from headwater.record import Record, encode_batch

__all__ = ["TRANSACTIONS_TOPIC", "Identity", "Transactions"]

logger = logging.getLogger(__name__)

TRANSACTIONS_TOPIC = "__transaction_state"
TIMEOUT_MS_MAX = 900_000
MARKER_RETRY_S = 1.0
ABORT_RETRY_S = 15.0
"""When an abort that the disk refused is tried again: a full disk stays full for a while, and each attempt is logged."""
EXPIRATION_MS = 604_800_000
"""A transactional id that is not used for so long is forgotten (Kafka's default)."""


class Identity(NamedTuple):
    """Under which id and epoch a producer writes."""

    producer_id: int
    epoch: int


class Transactions:
    """Every transactional id of the broker. The event loop owns it; a waiting call lets others run, never into the same transaction."""

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
        self.by_id: dict[str, Transaction] = {}
        self._by_producer: dict[int, Transaction] = {}
        self._load()

    # ---- what clients ask ------------------------------------------------------------------------------

    async def init(self, transactional_id: str, timeout_ms: int, current: Identity) -> Identity:
        """The producer's new identity; its former incarnation is fenced, and what that had open is aborted."""
        if not transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "a transactional id is not empty")
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise Refused(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"time-out is 1 to {TIMEOUT_MS_MAX} ms, got {timeout_ms}",
            )
        transaction = self.by_id.get(transactional_id)
        if transaction is None:
            transaction = Transaction(transactional_id, self._new_producer_id(), 0, timeout_ms)
        elif transaction.state in PREPARED:
            raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif (
            current.producer_id >= 0
            and (current.producer_id, current.epoch)
            == (
                transaction.producer_id,
                transaction.former_epoch,
            )
            and transaction.epoch <= EPOCH_MAX
        ):
            return Identity(transaction.producer_id, transaction.epoch)
        else:
            if current.producer_id >= 0 and current != (transaction.producer_id, transaction.epoch):
                raise Refused(ErrorCode.PRODUCER_FENCED, f"{transactional_id} has a newer producer")
            if transaction.deadline_ms is not None:
                await asyncio.shield(self._begin(self._abort(transaction)))
                if transaction.state is not TransactionState.COMPLETE_ABORT:
                    raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS, f"{transactional_id} is used meanwhile")
            with self._changing(transaction):
                transaction.next_epoch(self._new_producer_id, asked_by_owner=current.producer_id >= 0)
                transaction.timeout_ms = timeout_ms
        if transactional_id not in self.by_id:
            self._store(transaction)
        identity = Identity(
            transaction.producer_id, transaction.epoch
        )  # another call may move on while this one waits
        await self._stored()
        return identity

    async def add(
        self, transactional_id: str, identity: Identity, partitions: set[tuple[str, int]], groups: set[str]
    ) -> None:
        """Takes partitions, and the offsets of groups, into the producer's transaction."""
        transaction = self._owned(transactional_id, identity)
        wanted = partitions | ({(OFFSETS_TOPIC, 0)} if groups else set())
        if not transaction.has(wanted, groups):
            with self._changing(transaction):
                transaction.add(wanted, groups, self._clock.now_ms())
            self._schedule(transaction)
        await self._stored()

    async def end(self, transactional_id: str, identity: Identity, *, commit: bool) -> None:
        """Commits or aborts: returns when every partition has the marker. Once decided it is carried out, also if the client goes away."""
        transaction = self._owned(transactional_id, identity)
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
        transaction = self._owned(transactional_id, identity)
        if group not in transaction.groups:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"group {group} was not added to the transaction of {transactional_id}",
            )
        self._offsets.commit_pending(group, offsets, *identity)

    def check_produce(self, identity: Identity, topic: str, partition: int) -> None:
        """Whether a transactional batch may be appended: its producer must own an open transaction that includes the partition."""
        transaction = self._by_producer.get(identity.producer_id)
        if transaction is None or transaction.producer_id != identity.producer_id:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"producer {identity.producer_id} has no transactional id",
            )
        if identity.epoch != transaction.epoch:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {identity.epoch} was followed by {transaction.epoch}",
            )
        if transaction.deadline_ms is None or (topic, partition) not in transaction.partitions:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"{topic}-{partition} is not part of an open transaction of {transaction.id}",
            )

    def expire(self) -> None:
        """Forgets the ids that have not been used in EXPIRATION_MS."""
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

    # ---- inside ----------------------------------------------------------------------------------------

    def _owned(self, transactional_id: str, identity: Identity) -> Transaction:
        transaction = self.by_id.get(transactional_id)
        if transaction is None:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"there is no transactional id {transactional_id!r}"
            )
        transaction.check(*identity)
        return transaction

    def _abort(self, transaction: Transaction) -> Coroutine[None, None, None]:
        """Fences the producer and decides against its open transaction; what is returned carries that out."""
        with self._changing(transaction):
            transaction.fence()
            transaction.prepare(commit=False)
        return self._carry_out(transaction)

    async def _carry_out(self, transaction: Transaction) -> None:
        """Writes the markers of a decided transaction, once the decision is safe.

        One that cannot be written, or whose sync failed, keeps it undone: it is tried again, also after a restart.
        """
        self._schedule(transaction)
        await self._stored()
        marker = Marker(transaction.producer_id, transaction.epoch, transaction.commits)
        left = transaction.partitions
        while left:
            written = {each for each in sorted(left) if self._write_marker(marker, *each)}
            await self._committed()
            left = {each for each in left if each not in written or self._is_offline(*each)}
            if left:
                logger.warning("transaction %s still lacks markers in %s", transaction.id, sorted(left))
                await asyncio.sleep(MARKER_RETRY_S)
        await self._complete(transaction)

    async def _complete(self, transaction: Transaction) -> None:
        """Takes note that all markers are safe; a full disk is waited for."""
        while True:
            try:
                with self._changing(transaction):
                    transaction.complete()
            except Refused:
                if self._partition.offline:
                    raise
                await asyncio.sleep(MARKER_RETRY_S)
            else:
                return

    def _is_offline(self, name: str, index: int) -> bool:
        topic = self._catalog.topics.get(name)
        return topic is not None and index < len(topic.partitions) and topic.partitions[index].offline

    def _write_marker(self, marker: Marker, name: str, index: int) -> bool:
        """False if the partition could not take the marker; a topic that was deleted meanwhile needs none."""
        topic = self._catalog.topics.get(name)
        if topic is None or index >= len(topic.partitions):
            return True
        try:
            topic.partitions[index].append_marker(marker, self._clock.now_ms())
        except Refused:
            return False
        if name == OFFSETS_TOPIC:
            self._offsets.end(marker.producer_id, commit=marker.commit)
        return True

    @contextlib.contextmanager
    def _changing(self, transaction: Transaction) -> Iterator[None]:
        """Stores a change; one that the disk refuses has not happened."""
        before = transaction.copy()
        try:
            yield
            self._store(transaction)
        except Refused:
            transaction.restore(before)
            raise

    async def _stored(self) -> None:
        """Waits until what was stored is safe; raises Refused if it may be lost."""
        await self._committed()
        if self._partition.offline:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{TRANSACTIONS_TOPIC} is offline")

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
        except Refused as refused:
            logger.warning("transaction of %s cannot be aborted now: %s", transaction.id, refused)
            self._timers[transaction.id] = self._loop.call_later(ABORT_RETRY_S, self._time_out, transaction)
        else:
            self._begin(ending)

    def _begin(self, ending: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs an ending to its end, whoever waits for it."""
        task = self._loop.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._endings.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a transaction's end waits for the next start: %s", task.exception())

    def _load(self) -> None:
        for _, records in read_all(self._partition):
            for record in records:
                self._load_record(record)
        for transaction in self.by_id.values():
            if transaction.state in PREPARED:
                self._begin(self._carry_out(transaction))
            else:
                # One that seems to begin later was begun by a clock that was wrong; it must not stay open until then.
                transaction.started_ms = min(transaction.started_ms, self._clock.now_ms())
                self._schedule(transaction)

    def _load_record(self, record: Record) -> None:
        """Clients cannot write here; what one has written before that was so is passed over."""
        try:
            transactional_id = (record.key or b"").decode()
            found = record.value and from_json(record.value, Transaction)
        except (UnicodeDecodeError, msgspec.DecodeError):
            logger.warning("%s: the record at offset %d cannot be read", TRANSACTIONS_TOPIC, record.offset)
            return
        self._drop(transactional_id)
        if found:
            if found.updated_ms < 0:
                found.updated_ms = record.timestamp
            self._keep(found)
