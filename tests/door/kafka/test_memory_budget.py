"""Flow control: who does not read, or does not finish what it began, costs itself; the others are served, in bounded memory."""

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

from confluent_kafka import Producer

from headwater.door.kafka.listener.server import Server
from headwater.door.kafka.memory_budget import ANSWER_BYTES_MAX, PROGRESS_BYTES, MemoryBudget
from support.rawclient import API_VERSIONS, Clients, fetch, produce, said, serving, until


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def answer(client: socket.socket) -> tuple[int, int]:
    """Size and correlation id of the next answer, whose content is thrown away."""
    size, correlation = struct.unpack(">ii", client.recv(8, socket.MSG_WAITALL))
    left = size - 4
    while left:
        left -= len(client.recv(min(left, 1 << 20)))
    return size, correlation


def test_a_client_that_never_reads_is_paused_and_gets_everything_when_it_reads(own_broker):
    producer = Producer({"bootstrap.servers": own_broker.bootstrap})
    for _ in range(40):
        producer.produce("slow", b"x" * 500_000, partition=0)  # by itself it would choose one of several
        producer.flush(60)
    before = resident_mb(own_broker.pid)
    with socket.create_connection(("127.0.0.1", own_broker.port), timeout=20) as slow:
        wanted = 500
        slow.sendall(b"".join(fetch("slow", i) for i in range(wanted)))
        for _ in range(50):  # the others do not notice
            with socket.create_connection(("127.0.0.1", own_broker.port), timeout=10) as other:
                other.sendall(API_VERSIONS)
                assert answer(other)[1] == 42
        assert resident_mb(own_broker.pid) < before + 40
        for i in range(60):
            size, correlation = answer(slow)
            assert correlation == i
            assert 400_000 < size < ANSWER_BYTES_MAX + 1000
        assert resident_mb(own_broker.pid) < before + 60


def test_a_request_after_a_waiting_fetch_is_handled_when_the_fetch_is_over(own_broker):
    Producer({"bootstrap.servers": own_broker.bootstrap}).list_topics("waiting", timeout=10)
    with socket.create_connection(("127.0.0.1", own_broker.port), timeout=10) as client:
        client.sendall(fetch("waiting", 1, wait_ms=300) + API_VERSIONS + fetch("waiting", 3, wait_ms=1))
        assert [answer(client)[1] for _ in range(3)] == [1, 42, 3]


def test_many_clients_that_never_read_hold_no_more_than_the_limit_and_others_are_served():
    limit = 16 << 20

    async def steps(server: Server, clients: Clients) -> None:
        reader, writer = await clients.connect(server)
        for i in range(12):
            writer.write(produce("t", b"x" * 900_000, i))
            assert await said(reader) == i
        highest, slow = 0, []
        for _ in range(60):
            slow.append(await clients.connect(server))
            slow[-1][1].write(fetch("t") * 8)
            writer.write(API_VERSIONS)
            assert await said(reader) == 42
            highest = max(highest, server.connections.budget.total_bytes)
        assert limit / 2 < highest <= limit
        writer.write(fetch("t", 7))
        assert await said(reader) == 7
        for _, each in slow:
            each.transport.abort()
        await until(lambda: server.connections.budget.total_bytes == 0)

    serving(steps, limit)


def test_a_large_request_waits_for_room_and_is_read_when_there_is_some():
    async def steps(server: Server, clients: Clients) -> None:
        first, second = produce("t", b"x" * 3_000_000, 1), produce("t", b"x" * 3_000_000, 2)
        (reader_1, writer_1), (reader_2, writer_2), (reader_3, writer_3) = [
            await clients.connect(server) for _ in range(3)
        ]
        writer_1.write(first[:1_000_000])
        await until(lambda: server.connections.budget.total_bytes >= len(first))
        writer_2.write(second)
        writer_3.write(API_VERSIONS)
        assert await said(reader_3) == 42
        with contextlib.suppress(TimeoutError):
            assert not await asyncio.wait_for(reader_2.read(1), 0.2)
        assert server.connections.budget.total_bytes < 4_000_000
        writer_1.write(first[1_000_000:])
        assert await said(reader_1) == 1
        assert await said(reader_2) == 2

    serving(steps, 4_000_000)


def test_a_client_that_goes_while_its_fetch_waits_is_noticed():
    async def steps(server: Server, clients: Clients) -> None:
        writers = [(await clients.connect(server))[1] for _ in range(20)]
        for writer in writers:
            writer.write(fetch("t", wait_ms=60_000))
        await until(lambda: len(server.broker.catalog.partition("t", 0).watchers) == 20)
        for writer in writers:
            writer.close()
        await until(lambda: not server.connections.open)
        assert not server.broker.catalog.partition("t", 0).watchers

    serving(steps, 1 << 20)


class Holder:
    def __init__(self) -> None:
        self.closed, self.given = "", 0

    def room_given(self) -> None:
        self.given += 1

    def close(self, reason: str) -> None:
        self.closed = reason


def test_who_holds_room_and_does_nothing_is_closed_while_another_waits_and_only_then():
    async def run() -> None:
        budget = MemoryBudget(100, stall_s=0.05)
        idle, busy, waiting = Holder(), Holder(), Holder()
        budget.hold(idle, 40)
        budget.hold(busy, 40)
        await asyncio.sleep(0.1)
        assert not idle.closed
        assert not budget.has_room(waiting, 50)
        for _ in range(100):
            budget.hold(busy, 40, PROGRESS_BYTES)
            if idle.closed:
                break
            await asyncio.sleep(0.005)
        assert "no progress" in idle.closed
        assert (busy.closed, waiting.given > 0, budget.total_bytes) == ("", True, 40)
        assert budget.has_room(waiting, 50)
        budget.forget(busy)

    asyncio.run(run())


def test_who_trickles_while_another_waits_for_room_makes_no_progress():
    async def run() -> None:
        budget = MemoryBudget(100, stall_s=0.05)
        trickling, steady, waiting = Holder(), Holder(), Holder()
        budget.hold(trickling, 40)
        budget.hold(steady, 40)
        assert not budget.has_room(waiting, 50)
        for _ in range(200):
            budget.hold(trickling, 40, 1)
            budget.hold(steady, 40, PROGRESS_BYTES // 2)
            if trickling.closed:
                break
            await asyncio.sleep(0.005)
        assert "no progress" in trickling.closed
        assert not steady.closed
        for each in (steady, waiting):
            budget.forget(each)

    asyncio.run(run())


def test_who_waits_for_room_is_served_in_turn_and_a_request_larger_than_all_room_when_it_is_alone():
    async def run() -> None:
        budget = MemoryBudget(100)
        holder, first, second = Holder(), Holder(), Holder()
        budget.hold(holder, 90)
        assert not budget.has_room(first, 200)
        assert not budget.has_room(second, 5)
        budget.hold(holder, 0)
        assert (first.given, second.given) == (1, 0)
        assert budget.has_room(first, 200)
        budget.forget(first)
        budget.forget(second)

    asyncio.run(run())
