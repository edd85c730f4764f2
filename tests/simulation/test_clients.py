"""The simulated clients give our code what the real ones do."""

import asyncio
import random

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headwater.client.bulk.choose import transactions
from headwater.client.client import READING, Client, consumer, producer
from headwater.errors import FencedError, MachineError
from simulation.actors import Actor
from simulation.ground import ADDRESS, Ground, play


def lived(function) -> None:
    """One life in which ``function(life)`` is the whole script."""

    class Life(Ground):
        async def go(self, steps) -> None:  # noqa: ARG002
            await self.open()
            await function(self)

    play(Life, 1, [])


async def ended(life: Ground, *actors: Actor) -> list:
    async with asyncio.timeout(24 * 3600):
        for actor in actors:
            await actor.done
            life.failed(actor)
    return [actor.result for actor in actors]


def write(count: int, name: str = "writer", **options) -> dict:
    made = transactions(ADDRESS, name, **options)
    made.claim()
    made.begin()
    made.send("t", [b"k%d" % n for n in range(count)], [b"%d" % n for n in range(count)])
    reached = made.flush()
    made.commit()
    made.close()
    return reached


def test_a_client_makes_topics_and_reads_what_a_transaction_has_committed():
    def work() -> list:
        client = Client(ADDRESS)
        client.ensure_topics(["t"], 2, {"cleanup.policy": "compact"})
        assert client.partitions() == {"t": 2}
        reached = write(20)
        aborted = transactions(ADDRESS, "other")
        aborted.claim()
        aborted.begin()
        aborted.send("t", [b"x"], [b"x"])
        aborted.flush()
        aborted.abort()
        found = list(client.read(["t"]))
        assert sum(reached.values()) == len(found) == 20
        assert len(list(client.read(["t"], uncommitted=True))) == 21
        assert sum(high for _, high in client.bounds("t").values()) > 20
        client.close()
        return sorted(int(each.value()) for each in found)

    async def script(life: Ground) -> None:
        assert await ended(life, life.hub.start("work", work)) == [list(range(20))]

    lived(script)


def test_who_claims_a_name_shuts_out_its_holder():
    def work() -> None:
        Client(ADDRESS).ensure_topics(["t"], 1)
        first, second = transactions(ADDRESS, "name"), transactions(ADDRESS, "name")
        first.claim()
        first.begin()
        first.send("t", [b"a"], [b"a"])
        first.flush()
        second.claim()
        with pytest.raises(FencedError):
            first.commit()
        assert list(Client(ADDRESS).read(["t"])) == []

    async def script(life: Ground) -> None:
        await ended(life, life.hub.start("work", work))

    lived(script)


def test_a_log_that_is_away_is_reported_as_the_library_reports_it():
    def work() -> None:
        Client(ADDRESS).ensure_topics(["t"], 1)
        time_of_crash.set_result(None)
        with pytest.raises(MachineError):
            Client(ADDRESS).partitions()
        with pytest.raises(KafkaException) as raised:
            consumer(ADDRESS).get_watermark_offsets(TopicPartition("t", 0), timeout=1)
        assert raised.value.args[0].name() in {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT"}
        with pytest.raises(MachineError):
            write(1, wait_s=5)
        sender = producer(ADDRESS, **{"message.timeout.ms": 2000})
        faults = []
        sender.produce("t", b"v", b"k", on_delivery=lambda error, _: faults.append(error.code()))
        assert sender.flush(10) == 0
        assert faults == [KafkaError._MSG_TIMED_OUT]

    async def script(life: Ground) -> None:
        nonlocal time_of_crash
        time_of_crash = life.loop.create_future()
        actor = life.hub.start("work", work)
        await asyncio.wait({time_of_crash, actor.done}, return_when=asyncio.FIRST_COMPLETED)
        await life.crash()
        await ended(life, actor)

    time_of_crash: asyncio.Future
    lived(script)


def test_the_end_of_a_partition_is_reported_also_after_a_marker():
    def work() -> None:
        Client(ADDRESS).ensure_topics(["t"], 1)
        write(3)
        reader = consumer(ADDRESS, **READING)
        reader.assign([TopicPartition("t", 0, 1)])
        first = reader.poll(10)
        assert (first.offset(), first.value()) == (1, b"1")
        rest = reader.consume(10, 0)
        assert [each.error() and each.error().name() for each in rest] == [None, "_PARTITION_EOF"]
        assert rest[-1].offset() == 4
        assert reader.poll(1) is None
        reader.seek(TopicPartition("t", 0, 2))
        assert reader.poll(1).offset() == 2

    async def script(life: Ground) -> None:
        await ended(life, life.hub.start("work", work))

    lived(script)


def test_two_members_share_partitions_and_one_takes_over():
    held: dict[str, set[int]] = {"one": set(), "two": set()}

    def member(name: str) -> None:
        def gained(reader, places) -> None:
            reader.incremental_assign(places)
            held[name] |= {place.partition for place in places}

        def lost(reader, places) -> None:
            reader.incremental_unassign(places)
            held[name] -= {place.partition for place in places}

        reader = consumer(ADDRESS, group="g", **{"session.timeout.ms": 6000})
        reader.subscribe(["t"], on_assign=gained, on_revoke=lost, on_lost=lost)
        while True:
            reader.poll(0.25)

    async def script(life: Ground) -> None:
        await life.create("t", 4)
        one = life.hub.start("one", member, "one")
        await life.until(lambda: len(held["one"]) == 4, 60, "all are with the first")
        two = life.hub.start("two", member, "two")
        await life.until(lambda: len(held["one"]) == len(held["two"]) == 2, 60, "two each")
        assert not held["one"] & held["two"]
        one.kill()
        await life.until(lambda: len(held["two"]) == 4, 60, "the second has all")
        two.sleep(3600)
        three = life.hub.start("three", member, "one")
        held["one"].clear()
        await life.until(lambda: len(held["one"]) == 4, 60, "another has all while it sleeps")
        await asyncio.sleep(3600)
        await life.until(lambda: len(held["one"]) == len(held["two"]) == 2, 600, "two each again")
        life.failed(two)
        life.failed(three)

    lived(script)


@pytest.mark.parametrize("seed", range(20))
def test_after_a_kill_nothing_is_sent_and_a_broker_that_dies_is_ridden_through(seed: int):
    chance = random.Random(seed)
    written: list[int] = []

    def work() -> None:
        Client(ADDRESS).ensure_topics(["t"], 1)
        made = transactions(ADDRESS, "name")
        made.claim()
        number = len(written)
        while True:
            try:
                made.begin()
                made.send("t", [b"k"], [b"%d" % number])
                made.commit()
                written.append(number)
                number += 1
            except MachineError:
                made.abort()
                made.claim()

    async def script(life: Ground) -> None:
        life.chance = chance
        actor = life.hub.start("work", work)
        for _ in range(3):
            await life.hub.switches(chance.randint(1, 60))
            await chance.choice((life.killed, life.power_cut, life.restarted))(chance.choice((0, 5)))
        await life.hub.switches(chance.randint(1, 40))
        actor.kill()
        known = len(written)
        await asyncio.sleep(900)
        life.failed(actor)
        found = [int(row.value) for row in await life.rows("t", 0)]
        assert found[:known] == list(range(known))
        assert len(found) <= known + 1

    lived(script)
