"""Records that wait without a run of their own: scheduled ones and those of blocked keys, however many; and what is never delivered."""

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from headwater.errors import RequestError
from headwater.log.broker import Broker
from headwater.log.shares import (
    indexed_reading,
    notice,
    opened_records,
    parked_scan,
    share_store,
    snapshots,
)
from headwater.log.shares.share_record import ShareKey
from headwater.log.shares.share_store import ShareStore
from headwater.log.storage.memory import MemoryDisk
from headwater.queue import parking, recent_ids, record_index
from headwater.queue.parking import Parking
from headwater.queue.run import DeliveryState, Run
from headwater.queue.schedule import Due
from headwater.queue.share_partition import SharePartition
from headwater.queue_headers import DUE_HEADER, EXPIRES_HEADER, ID_HEADER, PRIORITY_HEADER
from headwater.record import Record
from headwater.testing import SettableClock
from log.test_queue_administration import described, settle, states
from log.test_queue_records import keyed, take, urgent
from log.test_shares import share_of
from support.protocol import Client
from support.sharemember import ACCEPT, RELEASE, ShareMember, configure, values

BY_KEY = {"headwater.order.by": "key"}
OPENED = {"headwater.queue": "true"}
HOUR_MS = 3_600_000


def on(*lives, disk: MemoryDisk | None = None, **config: str) -> None:
    """Runs a broker once for each of ``lives``, on one clock that is set; group ``g`` begins at the first record."""
    disk, clock = disk or MemoryDisk(), SettableClock()

    async def live(steps) -> None:
        broker = Broker(Path("/memory"), disk=disk, clock=clock)
        if "t" not in broker.catalog.topics:
            broker.catalog.create("t", 1)
            await configure(Client(broker), "g", auto_offset_reset="earliest", **(config or OPENED))
        await steps(Client(broker), clock)
        await broker.committed()
        await broker.close()

    for steps in lives:
        asyncio.run(live(steps))


def due(ms: int, value: bytes = b"due", key: bytes | None = None) -> Record:
    return Record(key, value, ((DUE_HEADER, b"%d" % ms),), 1_000)


async def scanned(client: Client) -> None:
    """Waits for what looks for parked records after a start."""
    async with asyncio.timeout(30):
        while not share_of(client).state.parking.is_complete:  # noqa: ASYNC110  the broker has no event for it
            await asyncio.sleep(0)


async def accept_all(member: ShareMember, **fields) -> list[str]:
    """Takes and accepts records until there are no more."""
    taken: list[str] = []
    while True:
        part = (await member.fetch(**fields)).get(0)
        if part is None or not part.acquired_records:
            return taken
        taken += [value.decode() for value in values(part)]
        ranges = [(a.first_offset, a.last_offset, ACCEPT) for a in part.acquired_records]
        assert await member.acknowledge(*ranges) == 0


# ---- snapshots of any size -----------------------------------------------------------------------------


def test_a_hundred_thousand_delays_that_are_far_apart_are_stored_changed_and_found_again():
    async def steps(client, clock):
        broker = client.broker
        topic = broker.catalog.create("state", 1)
        store = ShareStore(None, lambda: topic.partitions[0], broker.clock)
        first = 2**60
        runs = [
            Run(first + 2 * n + odd, first + 2 * n + odd, state, *how)
            for n in range(100_000)
            for odd, state, how in (
                (0, DeliveryState.DELAYED, (3, 500, "", 1e6 + n)),
                (1, DeliveryState.SETTLED, ()),
            )
        ]
        share, key = SharePartition(first, runs), ShareKey("g", broker.catalog.topics["t"].id, 0)
        store.store({key: share})
        share.change(first + 4, first + 4, Run.settled)
        store.store({key: share})
        await broker.committed()
        again = ShareStore(topic.partitions[0], lambda: None, broker.clock).take_recovered()[key]
        assert len(again.runs) == len(share.runs) == 199_998
        assert [run[:5] for run in again.runs] == [run[:5] for run in share.runs]

    on(steps)


def test_a_snapshot_of_which_parts_were_lost_leaves_the_last_one_also_to_compaction(monkeypatch):
    monkeypatch.setattr(snapshots, "RUNS_PER_RECORD", 2)
    monkeypatch.setattr(share_store, "BATCH_BYTES_MAX", 1)  # each record in a batch of its own
    disk = MemoryDisk()

    async def steps(client, clock):
        broker = client.broker
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        state = broker.catalog.create("state", 1, config).partitions[0]
        store = ShareStore(None, lambda: state, broker.clock)
        key = ShareKey("g", broker.catalog.topics["t"].id, 0)

        def share(deliveries: int) -> SharePartition:
            kinds = (DeliveryState.AVAILABLE, DeliveryState.SETTLED)
            return SharePartition(0, [Run(n, n, kinds[n % 2], deliveries, 1) for n in range(9)])

        store.store({key: share(1)}, whole=True)
        await broker.committed()
        end = state.end_offset
        for deliveries in (2, 3):
            disk.full_after_bytes = 250
            with pytest.raises(RequestError):
                store.store({key: share(deliveries)}, whole=True)
            disk.full_after_bytes = None
            assert state.end_offset > end
            state.roll()
            await broker.committed()
            await broker.retention.look_after(state)
            assert state.cleaned_to == state.end_offset
            found = ShareStore(state, lambda: None, broker.clock).take_recovered()[key]
            assert {run.deliveries for run in found.runs} == {1}
        store.store({key: share(4)}, whole=True)
        await broker.committed()
        found = ShareStore(state, lambda: None, broker.clock).take_recovered()[key]
        assert {run.deliveries for run in found.runs} == {4}

    on(steps, disk=disk)


# ---- scheduled records ---------------------------------------------------------------------------------


def test_any_number_of_scheduled_records_keeps_no_other_from_being_delivered():
    """More than may be delayed, beside records for now, and over a restart."""

    async def schedule(client, clock):
        for _ in range(12):
            later = [due(clock.now_ms() + HOUR_MS) for _ in range(1_000)]
            await client.produce("t", 0, [*later, Record(None, b"now", (), 1_000)])
        member = ShareMember(client)
        assert await accept_all(member) == ["now"] * 12
        part = await described(client, states_max=10)
        assert (part.scheduled, part.lag, part.waiting, part.start_offset) == (12_000, 12_000, 0, 0)
        assert len(share_of(client).state.runs) <= 2

    async def wait(client, clock):
        part = await described(client, states_max=10)
        assert (part.scheduled, part.lag) == (12_000, 12_000)
        await scanned(client)
        assert await accept_all(ShareMember(client)) == []
        assert states(await described(client, states_max=10))[:3] == [
            (0, 999, "scheduled", 0),
            (1_000, 1_000, "settled", 0),
            (1_001, 2_000, "scheduled", 0),
        ]
        clock.advance(HOUR_MS / 1000)
        assert await accept_all(ShareMember(client)) == ["due"] * 12_000
        assert share_of(client).state.start == 12_012

    on(schedule, wait, **{"headwater.queue": "true", "headwater.delayed.max": "100"})


def test_scheduled_records_go_out_by_time_and_those_of_one_time_in_their_order():
    async def steps(client, clock):
        at = clock.now_ms() + HOUR_MS
        await client.produce("t", 0, [due(at + 2, b"c"), due(at, b"a0"), due(at + 1, b"b"), due(at, b"a1")])
        member = ShareMember(client)
        assert await take(member) == []
        seen = []
        for _ in range(3):
            clock.advance(HOUR_MS / 1000 if not seen else 0.001)
            seen.append(await accept_all(member))
        assert seen == [["a0", "a1"], ["b"], ["c"]]

    on(steps)


def test_a_scheduled_record_that_is_cancelled_stays_so_over_a_restart():
    async def schedule(client, clock):
        await client.produce("t", 0, [due(clock.now_ms() + HOUR_MS, b"%d" % n) for n in range(5)])
        await take(ShareMember(client))
        assert await settle(client, (1, 1), (3, 3)) == (2, [])

    async def wait(client, clock):
        await scanned(client)
        assert [state[:3] for state in states(await described(client))] == [
            (0, 0, "scheduled"),
            (1, 1, "settled"),
            (2, 2, "scheduled"),
            (3, 3, "settled"),
            (4, 4, "scheduled"),
        ]
        clock.advance(HOUR_MS / 1000)
        assert await accept_all(ShareMember(client)) == ["0", "2", "4"]

    on(schedule, wait)


def test_a_million_scheduled_records_take_sixteen_bytes_each():
    tracemalloc.start()
    waiting = Parking()
    for offset in range(1_000_000):
        waiting.schedule(Due(10**12 + offset * 7919 % 1_000_003, offset))
    size_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size_bytes < 20_000_000
    assert parking.PARKED_MAX * 16 < 100_000_000
    taken = waiting.take_due(2 * 10**12, 1_000_000)
    assert len(taken) == 1_000_000
    assert taken[:3] == sorted(range(1_000_000), key=lambda o: o * 7919 % 1_000_003)[:3]


def test_scheduled_and_delayed_records_outlive_the_retention_of_their_topic():
    async def schedule(client, clock):
        topic = client.broker.catalog.topics["t"]
        client.broker.catalog.configure(topic, {"retention.ms": "60000"})
        stamp = clock.now_ms()
        records = [
            Record(None, b"due", ((DUE_HEADER, b"%d" % (stamp + 10 * HOUR_MS)),), stamp),
            Record(None, b"delayed", (), stamp),
            Record(None, b"x", (), stamp),
        ]
        await client.produce("t", 0, records)
        topic.partitions[0].roll()
        member = ShareMember(client)
        assert await take(member) == ["delayed", "x"]
        await member.acknowledge((1, 1, RELEASE, 5 * HOUR_MS, False), (2, 2, ACCEPT))

    async def wait(client, clock):
        partition = client.broker.catalog.topics["t"].partitions[0]
        await client.produce("t", 0, [Record(None, b"later", (), clock.now_ms())])
        clock.advance(11 * HOUR_MS / 1000)
        await scanned(client)
        share_of(client).state.expire(clock.monotonic(), client.broker.shares.config("g"))
        await client.broker.retention.look_after(partition)
        assert partition.log_start_offset == 0
        assert sorted(await accept_all(ShareMember(client))) == ["delayed", "due", "later"]
        await client.produce("t", 0, [Record(None, b"last", (), clock.now_ms())])
        partition.roll()
        clock.advance(120)
        await client.broker.retention.look_after(partition)
        assert partition.log_start_offset > 0

    on(schedule, wait)


# ---- blocked keys --------------------------------------------------------------------------------------


def hot(count: int) -> list[Record]:
    return [Record(b"hot", b"h", (), 1_000)] * count


def test_other_keys_are_delivered_after_any_number_of_records_of_a_blocked_one():
    """Fifty thousand are more than the index holds; after a restart too."""
    total = record_index.INDEXED_RECORDS_MAX + 5_000

    async def block(client, clock):
        for _ in range(11):
            await client.produce("t", 0, hot(total // 11))
        await client.produce("t", 0, keyed("a0 b1"))
        member = ShareMember(client)
        assert await take(member) == ["h"]
        await member.acknowledge((0, 0, RELEASE, HOUR_MS, False))
        assert await accept_all(member) == ["a0", "b1"]
        state = share_of(client).state
        assert len(share_of(client).reader.index) <= record_index.KEY_RECORDS_MAX
        assert len(state.parking) >= total - record_index.KEY_RECORDS_MAX
        assert (await described(client, states_max=0)).lag == total

    async def wait(client, clock):
        await client.produce("t", 0, keyed("c2"))
        assert (await described(client, states_max=0)).lag == total + 1
        await scanned(client)
        member = ShareMember(client)
        assert await accept_all(member) == ["c2"]
        clock.advance(HOUR_MS / 1000 + 1)
        share_of(client).state.expire(clock.monotonic(), client.broker.shares.config("g"))
        for offset in range(2_500):
            part = (await member.fetch())[0]
            assert [(a.first_offset, a.last_offset) for a in part.acquired_records] == [(offset, offset)]
            assert await member.acknowledge((offset, offset, ACCEPT)) == 0

    on(block, wait, **BY_KEY)


@pytest.mark.parametrize("order_by", ["key", ""])
def test_deferred_records_come_in_order_whatever_the_settings_become(monkeypatch, order_by):
    for name, value in (("KEY_RECORDS_MAX", 3), ("LOOK_AHEAD_RECORDS", 50)):
        monkeypatch.setattr(record_index, name, value)
    monkeypatch.setattr(indexed_reading, "KEY_RECORDS_MIN", 2)

    async def steps(client, clock):
        await client.produce("t", 0, keyed(" ".join(f"k{n}" for n in range(30))))
        member = ShareMember(client)
        assert await take(member) == ["k0"]
        assert len(share_of(client).state.parking) == 27
        await configure(client, "g", **{"headwater.order.by": order_by, "headwater.queue": "false"})
        await member.acknowledge((0, 0, ACCEPT))
        taken = await accept_all(member)
        assert sorted(set(taken), key=lambda name: int(name[1:])) == [f"k{n}" for n in range(1, 30)]
        if order_by:
            assert taken == [f"k{n}" for n in range(1, 30)]
        assert share_of(client).state.start == 30

    on(steps, **BY_KEY)


# ---- headers that are wrong, deliveries that are used up -----------------------------------------------


def test_a_header_that_cannot_be_read_counts_as_not_there_is_counted_and_named_once_in_a_while(caplog):
    wrong = [
        (PRIORITY_HEADER, b"11"),
        (PRIORITY_HEADER, b""),
        (DUE_HEADER, b"-5"),
        (DUE_HEADER, b"tomorrow"),
        (DUE_HEADER, None),
        (EXPIRES_HEADER, b"1e9"),
        (ID_HEADER, b""),
    ]

    async def produce(client, clock):
        for header in wrong:
            await client.produce("t", 0, [Record(None, b"v", (header,), 1_000)])
        assert await take(ShareMember(client)) == ["v"] * len(wrong)
        assert (await described(client)).invalid == len(wrong)

    async def again(client, clock):
        assert await take(ShareMember(client)) == ["v"] * len(wrong)
        assert (await described(client)).invalid == len(wrong)

    on(produce, again)
    lines = [record.getMessage() for record in caplog.records if record.name == notice.__name__]
    assert len(lines) == 1
    assert "t-0: share group g: 7 records" in lines[0]
    assert "at offset 0 headwater-priority is '11', expected 0 to 9" in lines[0]


def test_records_whose_deliveries_are_used_up_are_counted_and_named(caplog):
    async def use_up(client, clock):
        await client.produce("t", 0, keyed("a0 a1 a2"))
        member = ShareMember(client)
        while (part := (await member.fetch()).get(0)) is not None and part.acquired_records:
            for a in part.acquired_records:
                assert await member.acknowledge((a.first_offset, a.last_offset, RELEASE)) == 0
        assert (await described(client)).exhausted == 3
        await client.produce("t", 0, keyed("b3"))
        await ShareMember(client).fetch()

    async def again(client, clock):
        assert (await described(client)).exhausted == 3
        await ShareMember(client).fetch()

    async def last(client, clock):
        """Its last delivery was with a member when the broker ended."""
        assert (await described(client)).exhausted == 4

    on(use_up, again, last, delivery_count_limit="2", **{"headwater.queue": "false"})
    lines = [record.getMessage() for record in caplog.records if record.name == notice.__name__]
    assert "t-0: share group g: 3 records were delivered as often as is allowed" in lines[0]
    assert lines[0].endswith("offsets 0 to 2")
    assert lines[-1].endswith("offsets 3 to 3")


# ---- what is never delivered ---------------------------------------------------------------------------


def expiring(ms: int, value: str, key: bytes | None = None) -> Record:
    return Record(key, value.encode(), ((EXPIRES_HEADER, b"%d" % ms),), 1_000)


def test_a_record_that_is_out_of_date_is_settled_undelivered_and_counted():
    async def steps(client, clock):
        now = clock.now_ms()
        await client.produce(
            "t",
            0,
            [
                expiring(now - 1, "over", b"a"),
                *keyed("a0"),
                expiring(now + 1_000, "soon", b"a"),
                expiring(now + HOUR_MS, "late", b"b"),
                Record(
                    b"c", b"never", ((DUE_HEADER, b"%d" % (now + 9)), (EXPIRES_HEADER, b"%d" % (now + 5))), 1
                ),
            ],
        )
        member = ShareMember(client)
        assert await take(member) == ["a0", "late"]
        clock.advance(1.001)
        await member.acknowledge((1, 1, ACCEPT), (3, 3, RELEASE))
        assert await take(member) == ["late"]
        assert (await described(client)).expired == 3
        await member.acknowledge((3, 3, RELEASE))
        clock.advance(HOUR_MS / 1000)
        assert await take(member) == []
        assert (await described(client)).expired == 4
        assert share_of(client).state.start == 5

    async def again(client, clock):
        assert await take(ShareMember(client)) == []
        assert (await described(client)).expired == 4

    on(steps, again, **BY_KEY)


def named(clock, name: str, value: str) -> Record:
    return Record(None, value.encode(), ((ID_HEADER, name.encode()),), clock.now_ms())


def test_a_record_with_an_id_that_came_a_short_time_ago_is_settled_and_counted():
    async def begin(client, clock):
        await client.produce(
            "t", 0, [named(clock, "x", "x0"), named(clock, "y", "y1"), named(clock, "x", "x2")]
        )
        assert await accept_all(ShareMember(client)) == ["x0", "y1"]
        clock.advance(9)

    async def again(client, clock):
        await client.produce("t", 0, [named(clock, "x", "x3"), named(clock, "z", "z4")])
        async with asyncio.timeout(30):
            taken: list[str] = []
            while not taken:
                taken = await accept_all(ShareMember(client))
                await asyncio.sleep(0)
        assert taken == ["z4"]
        assert (await described(client)).duplicate == 2
        clock.advance(10.001)
        await client.produce("t", 0, [named(clock, "x", "x5"), named(clock, "z", "z6")])
        assert await accept_all(ShareMember(client)) == ["x5", "z6"]
        assert (await described(client)).duplicate == 2

    on(begin, again, **OPENED, **{"headwater.duplicates.ms": "10000"})


def test_so_many_ids_are_kept_and_no_more(monkeypatch):
    monkeypatch.setattr(recent_ids, "IDS_MAX", 100)
    ids = recent_ids.RecentIds(1_000_000)
    for number in range(1_000):
        assert not ids.is_repeated(b"%d" % number, number)
    assert len(ids._times_ms) == 100
    assert ids.is_repeated(b"950", 1_000)
    assert not ids.is_repeated(b"5", 1_000)


def test_a_high_priority_comes_promptly_after_a_long_backlog():
    async def steps(client, clock):
        await client.produce("t", 0, urgent(8, "first"))
        for _ in range(20):
            answer = await client.produce("t", 0, [Record(None, b"usual" + bytes(500), (), 1_000)] * 1_000)
            assert answer.error_code == 0
        await client.produce("t", 0, urgent(9, "high"))
        member = ShareMember(client)
        order = [value for _ in range(20) for value in await take(member, 1)]
        assert "high" in order

    on(steps)


# ---- memory --------------------------------------------------------------------------------------------


def test_batches_stay_unopened_in_a_plain_share_group(monkeypatch):
    opened: list[object] = []
    open_ = indexed_reading.OpenedRecords.open
    monkeypatch.setattr(
        indexed_reading.OpenedRecords, "open", lambda *args: opened.append(args) or open_(*args)
    )
    monkeypatch.setattr(parked_scan, "open_slices", lambda *args: opened.append(args))

    async def steps(client, clock):
        await client.produce("t", 0, urgent(9, "a b"))
        assert len(await accept_all(ShareMember(client))) == 2
        assert not opened
        assert share_of(client).reader is None
        await configure(client, "g", **OPENED)
        await client.produce("t", 0, urgent(9, "c"))
        assert await accept_all(ShareMember(client)) == ["c"]
        assert opened

    on(steps, **{"headwater.queue": "false"})


@pytest.mark.parametrize("config", [{"headwater.queue": "false"}, OPENED, BY_KEY])
def test_a_long_queue_takes_no_more_memory_than_a_short_one(config):
    async def grown_bytes(client, count: int) -> int:
        for _ in range(count // 5_000):
            await client.produce("t", 0, [Record(b"%d" % n, b"v", (), 1_000) for n in range(5_000)])
        member = ShareMember(client)
        tracemalloc.start()
        for _ in range(5):
            part = (await member.fetch(max_records=100, share_acquire_mode=1))[0]
            ranges = [(a.first_offset, a.last_offset, ACCEPT) for a in part.acquired_records]
            assert await member.acknowledge(*ranges) == 0
        client.broker.shares.disconnect(client)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return grown

    sizes = []
    for count in (25_000, 400_000):

        async def steps(client, clock, count=count):
            sizes.append(await grown_bytes(client, count))

        on(steps, **config)
    assert sizes[1] < 1.2 * sizes[0] + 1_000_000
    assert sizes[1] < 3 * opened_records.OPEN_BYTES_MAX
