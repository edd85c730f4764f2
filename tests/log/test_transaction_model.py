"""Transactions against a model: random producers of two transactional ids, one near the end of its epochs, with time-outs,
repeated and simultaneous requests, clean restarts, and power cuts also in the middle of an end."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.storage.memory import MemoryDisk
from headwater.log.storage.partition import read_all
from headwater.log.transactions.coordinator import TRANSACTIONS_TOPIC
from headwater.log.transactions.transaction import EPOCH_MAX, PREPARED, Transaction, TransactionState
from headwater.record import CONTROL
from headwater.testing import SettableClock
from support.protocol import Client

NAMES = ["x", "y"]
PARTITIONS = 2
TIMEOUT_MS = 60_000
FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}


class StepLoop(asyncio.SelectorEventLoop):
    """Does a thread's work in a step of its own, so that the same steps lead to the same end."""

    def run_in_executor(self, executor, func, *args):  # noqa: ARG002
        done = self.create_future()

        def work():
            try:
                done.set_result(func(*args))
            except OSError as error:
                done.set_exception(error)

        self.call_soon(work)
        return done


@dataclass
class Producer:
    """A client as it sees itself; it does not know that it was fenced."""

    name: str
    id: int
    epoch: int
    sequences: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    @property
    def who(self) -> dict[str, int]:
        return {"producer_id": self.id, "producer_epoch": self.epoch}


@dataclass
class Owned:
    """What the model knows of a transactional id."""

    current: Producer | None = None
    added: set[int] | None = None
    """The partitions of the open transaction, None while there is none."""
    records: list[tuple[int, int, bytes]] = field(default_factory=list)
    last: bool | None = None
    """Whether the last transaction was committed, None before the first or after a new producer began."""
    slow: Producer | None = None
    """The producer whose open transaction took too long, as long as no other has begun."""


class Transactions(RuleBasedStateMachine):
    """Every request is awaited, so the model knows all that a power cut must leave, but for the end that it interrupts."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = StepLoop()
        self.disk, self.clock = MemoryDisk(), SettableClock()
        self.open()
        self.broker.catalog.create("t", PARTITIONS, {"segment.bytes": "600"})
        self.producers: list[Producer] = []
        self.owned = {name: Owned() for name in NAMES}
        self.visible: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.aborted: list[set[tuple[int, int]]] = [set() for _ in range(PARTITIONS)]
        self.number = 0
        self.begin("y")
        stored = self.broker.transactions.by_id["y"]
        stored.epoch = self.producers[0].epoch = EPOCH_MAX - 2
        self.broker.transactions._store(stored)
        self.wait(self.broker.committed())

    # ---- the broker ------------------------------------------------------------------------------------

    def wait(self, work):
        return self.loop.run_until_complete(work)

    def open(self) -> None:
        async def made() -> Broker:
            broker = Broker(Path("/memory"), disk=self.disk, clock=self.clock)
            async with asyncio.timeout(5):
                while any(each.state in PREPARED for each in broker.transactions.by_id.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            return broker

        self.broker = self.wait(made())
        self.client = Client(self.broker)

    def teardown(self) -> None:
        self.wait(self.broker.close())
        self.loop.close()

    def call(self, name: str, version: int, **fields: object):
        return self.client.call(name, version, **fields)

    def ending(self, producer: Producer, commit: bool):
        return self.call("EndTxn", 3, transactional_id=producer.name, committed=commit, **producer.who)

    # ---- the model -------------------------------------------------------------------------------------

    def is_current(self, producer: Producer) -> bool:
        return self.owned[producer.name].current is producer

    def ended(self, name: str, commit: bool) -> None:
        owned = self.owned[name]
        first: dict[int, int] = {}
        for partition, offset, value in owned.records:
            first.setdefault(partition, offset)
            if commit:
                self.visible[partition][offset] = value
        if not commit:
            for partition, offset in first.items():
                self.aborted[partition].add((owned.current.id, offset))
        owned.added, owned.records, owned.last = None, [], commit

    # ---- what producers do -----------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def begin(self, name):
        self.began(name, [self.wait(self.beginning(name))])

    @rule(name=st.sampled_from(NAMES))
    def begin_two_at_once(self, name):
        async def both():
            return await asyncio.gather(self.beginning(name), self.beginning(name))

        self.began(name, self.wait(both()))

    def beginning(self, name):
        return self.call("InitProducerId", 4, transactional_id=name, transaction_timeout_ms=TIMEOUT_MS)

    def began(self, name, answers):
        owned = self.owned[name]
        if owned.added is not None:
            self.ended(name, commit=False)
        given = [(a.producer_id, a.producer_epoch) for a in answers if a.error_code == ErrorCode.NONE]
        assert given
        assert {a.error_code for a in answers} <= {ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS}
        former = [(p.id, p.epoch) for p in self.producers if p.name == name]
        assert len({*former, *given}) == len(former) + len(given), "an epoch was given out twice"
        assert not former or min(given) > max(former)
        assert all(0 <= epoch <= EPOCH_MAX for _, epoch in given)
        made = [Producer(name, *each) for each in sorted(given)]
        self.producers += made
        owned.current, owned.last, owned.slow = made[-1], None, None

    @precondition(lambda self: self.producers)
    @rule(data=st.data())
    def begin_again(self, data):
        """A producer asks for its next epoch itself: it gets one if it is current, or was fenced for being slow alone (KIP-588)."""
        producer = data.draw(st.sampled_from(self.producers[-4:]))
        owned = self.owned[producer.name]
        asked = {"transactional_id": producer.name, "transaction_timeout_ms": TIMEOUT_MS, **producer.who}
        answer = self.wait(self.call("InitProducerId", 4, **asked))
        if self.is_current(producer) or (owned.slow is producer and producer.epoch < EPOCH_MAX):
            recovered = owned.slow is producer
            last = owned.last
            self.began(producer.name, [answer])
            owned.last = last if recovered else None
        elif answer.error_code == ErrorCode.NONE:  # its own request before, repeated
            current = owned.current
            assert (answer.producer_id, answer.producer_epoch) == (current.id, current.epoch)
            assert producer.epoch == current.epoch - 1
        else:
            assert answer.error_code in FENCED

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), partition=st.integers(0, PARTITIONS - 1))
    def add(self, data, partition):
        producer = data.draw(st.sampled_from(self.producers[-4:]))
        answer = self.wait(
            self.call(
                "AddPartitionsToTxn",
                3,
                v3_and_below_transactional_id=producer.name,
                v3_and_below_producer_id=producer.id,
                v3_and_below_producer_epoch=producer.epoch,
                v3_and_below_topics=[{"name": "t", "partitions": [partition]}],
            )
        )
        code = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
        if not self.is_current(producer):
            assert code in FENCED
            return
        assert code == ErrorCode.NONE
        owned = self.owned[producer.name]
        owned.added = (owned.added or set()) | {partition}

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), partition=st.integers(0, PARTITIONS - 1), repeated=st.booleans())
    def produce(self, data, partition, repeated):
        producer = data.draw(st.sampled_from(self.producers[-4:]))
        owned = self.owned[producer.name]
        self.number += 1
        value, sequence = b"%d" % self.number, producer.sequences[partition]
        batch = {"base_sequence": sequence, "attributes": 0x10, **producer.who}
        answer = self.wait(self.client.produce("t", partition, [value], **batch))
        if not self.is_current(producer):
            assert answer.error_code in FENCED
            return
        if partition not in (owned.added or ()):
            assert answer.error_code == ErrorCode.INVALID_TXN_STATE
            return
        assert answer.error_code == ErrorCode.NONE
        producer.sequences[partition] += 1
        owned.records.append((partition, answer.base_offset, value))
        if repeated:
            again = self.wait(self.client.produce("t", partition, [value], **batch))
            assert (again.error_code, again.base_offset) == (ErrorCode.NONE, answer.base_offset)

    @precondition(lambda self: self.producers)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data, commit):
        producer = data.draw(st.sampled_from(self.producers[-4:]))
        owned = self.owned[producer.name]
        code = self.wait(self.ending(producer, commit)).error_code
        if not self.is_current(producer):
            assert code in FENCED
        elif owned.added is not None:
            assert code == ErrorCode.NONE
            self.ended(producer.name, commit)
        else:
            assert code == (ErrorCode.NONE if owned.last is commit else ErrorCode.INVALID_TXN_STATE)

    @precondition(lambda self: any(owned.added is not None for owned in self.owned.values()))
    @rule(data=st.data(), commit=st.booleans(), other=st.booleans())
    def end_twice_at_once(self, data, commit, other):
        """The first one decides; the second is asked to wait, or learns that it is done, and changes nothing."""
        name = data.draw(st.sampled_from([n for n in NAMES if self.owned[n].added is not None]))
        producer = self.owned[name].current

        async def both():
            return await asyncio.gather(self.ending(producer, commit), self.ending(producer, other))

        first, second = (answer.error_code for answer in self.wait(both()))
        assert first == ErrorCode.NONE
        assert second in {
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.NONE if commit is other else ErrorCode.INVALID_TXN_STATE,
        }
        self.ended(name, commit)

    # ---- what happens to them --------------------------------------------------------------------------

    @rule(seconds=st.integers(1, 100))
    def let_time_pass(self, seconds):
        """Who is open for too long is aborted and fenced."""
        self.clock.advance(seconds)
        for transaction in self.broker.transactions.by_id.values():
            due = transaction.deadline_ms is not None and transaction.deadline_ms <= self.clock.now_ms()
            self.broker.transactions._time_out(transaction)
            if due:
                self.ended(transaction.id, commit=False)
                self.owned[transaction.id].slow = self.owned[transaction.id].current
                self.owned[transaction.id].current = None
        self.wait(self.settled())

    async def settled(self):
        async with asyncio.timeout(5):
            while self.broker.transactions._endings:  # noqa: ASYNC110
                await asyncio.sleep(0)

    @rule()
    def restart(self):
        self.wait(self.broker.close())
        self.open()

    @rule(seed=st.none() | st.integers(0, 1000))
    def power_cut(self, seed):
        self.cut(seed)

    def cut(self, seed):
        after = self.disk.power_cut(seed)
        self.wait(self.broker.close())
        self.disk = after
        self.open()

    @precondition(lambda self: any(owned.added is not None for owned in self.owned.values()))
    @rule(
        data=st.data(), commit=st.booleans(), steps=st.integers(0, 12), seed=st.none() | st.integers(0, 1000)
    )
    def power_cut_in_the_middle_of_an_end(self, data, commit, steps, seed):
        """Afterwards it is open as before, or ended as it was asked to, in all partitions."""
        name = data.draw(st.sampled_from([n for n in NAMES if self.owned[n].added is not None]))

        async def begin():
            ending = asyncio.ensure_future(self.ending(self.owned[name].current, commit))
            for _ in range(steps):
                await asyncio.sleep(0)
            answered = ending.done()
            after = self.disk.power_cut(seed)
            await ending
            return answered, after

        answered, after = self.wait(begin())
        self.wait(self.broker.close())
        self.disk = after
        self.open()
        is_open = self.broker.transactions.by_id[name].state is TransactionState.ONGOING
        assert not (answered and is_open), "an end that was answered is forgotten"
        if not is_open:
            self.ended(name, commit)

    # ---- what holds always -----------------------------------------------------------------------------

    @invariant()
    def the_coordinator_knows_what_is_open(self):
        states = {
            None: {TransactionState.EMPTY},
            True: {TransactionState.COMPLETE_COMMIT},
            False: {TransactionState.COMPLETE_ABORT},
        }
        for name, owned in self.owned.items():
            stored = self.broker.transactions.by_id.get(name)
            if stored is None:
                assert owned.current is None
            elif owned.added is not None:
                assert stored.state is TransactionState.ONGOING
                assert stored.partitions == {("t", partition) for partition in owned.added}
            else:
                assert stored.state in states[owned.last]

    @invariant()
    def readers_see_what_was_committed_and_stop_at_what_is_open(self):
        for index, partition in enumerate(self.broker.catalog.topics["t"].partitions):
            open_offsets = [o for owned in self.owned.values() for p, o, _ in owned.records if p == index]
            assert partition.last_stable_offset == min([*open_offsets, partition.high_watermark])
            hidden = partition.producers.aborted
            assert {(a.producer_id, a.first_offset) for a in hidden} == self.aborted[index]
            seen = {
                record.offset: record.value
                for header, records in read_all(partition)
                for record in records
                if not header.attributes & CONTROL
                and record.offset not in open_offsets
                and not any(
                    a.producer_id == header.producer_id and a.first_offset <= record.offset <= a.last_offset
                    for a in hidden
                )
            }
            assert seen == self.visible[index]

    @invariant()
    def its_records_say_what_the_coordinator_knows(self):
        """So a start that reads them back knows the same."""
        self.wait(self.broker.committed())
        stored = {}
        for _, records in read_all(self.broker.catalog.topics[TRANSACTIONS_TOPIC].partitions[0]):
            for record in records:
                stored[record.key.decode()] = msgspec.json.decode(record.value, type=Transaction)
        assert stored == self.broker.transactions.by_id


Transactions.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestTransactions = Transactions.TestCase
