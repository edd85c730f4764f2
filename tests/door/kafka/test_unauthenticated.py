"""Before a client has said who it is, where the broker has users: what it may hold, and for how long."""

import asyncio
import struct

import pytest

from headwater.door.kafka.listener import unauthenticated
from support.rawclient import API_VERSIONS, Clients, frame, produce, said, serving, until

USERS = {"shop": "secret"}
HANDSHAKE = frame("SaslHandshake", 1, 1, mechanism="PLAIN")
TOKEN = frame("SaslAuthenticate", 0, 2, auth_bytes=b"\0shop\0secret")
LIMIT_BYTES = 4_000_000


async def user(server, clients: Clients):
    """A client that has said who it is."""
    reader, writer = await clients.connect(server)
    writer.write(HANDSHAKE + TOKEN)
    assert [await said(reader), await said(reader)] == [1, 2]
    return reader, writer


async def ended(reader: asyncio.StreamReader, seconds: float = 10) -> bool:
    """Whether the server has closed a connection."""
    try:
        while await asyncio.wait_for(reader.read(1 << 16), seconds):
            pass
    except ConnectionError:
        return True
    return True


def test_a_large_request_of_a_stranger_is_refused_before_it_is_read():
    async def steps(server, clients: Clients) -> None:
        for size in (100 << 20, 65_537):
            reader, writer = await clients.connect(server)
            writer.write(struct.pack(">ihhi", size, 18, 0, 1))
            assert await ended(reader)
        reader, writer = await clients.connect(server)
        writer.write(API_VERSIONS)
        assert await said(reader) == 42

    serving(steps, LIMIT_BYTES, USERS)


def test_requests_of_users_are_served_while_strangers_trickle():
    """Three of them, each with a request that it never ends, took all the room that large requests of users need."""

    async def steps(server, clients: Clients) -> None:
        reader, writer = await user(server, clients)
        strangers = [await clients.connect(server) for _ in range(8)]
        for _, each in strangers:
            each.write(struct.pack(">ihhi", 60_000, 18, 0, 1) + bytes(50_000))
        for n in range(5):
            for _, each in strangers:
                each.write(b"\0")
            writer.write(produce("t", b"x" * 3_900_000, n))
            assert await said(reader) == n
        assert server.connections.budget.total_bytes < 100_000

    serving(steps, LIMIT_BYTES, USERS)


def test_a_connection_that_does_not_authenticate_in_time_is_closed(monkeypatch):
    monkeypatch.setattr(unauthenticated, "AUTHENTICATION_S", 0.3)

    async def steps(server, clients: Clients) -> None:
        known, writer = await user(server, clients)
        silent, _ = await clients.connect(server)
        busy, trickle = await clients.connect(server)

        async def keep_busy() -> None:
            while True:
                trickle.write(API_VERSIONS)
                await asyncio.sleep(0.02)

        task = asyncio.create_task(keep_busy())
        assert await ended(silent)
        assert await ended(busy)
        task.cancel()
        await until(lambda: len(server.connections.open) == 1)
        writer.write(API_VERSIONS)
        assert await said(known) == 42

    serving(steps, LIMIT_BYTES, USERS)


def test_an_unauthenticated_connection_that_does_not_read_its_answers_is_closed():
    async def steps(server, clients: Clients) -> None:
        reader, writer = await clients.connect(server)
        for _ in range(40):
            writer.write(API_VERSIONS * 1_000)
        await until(lambda: not server.connections.open)
        assert await ended(reader)

    serving(steps, LIMIT_BYTES, USERS)


def test_of_too_many_strangers_the_oldest_goes_and_users_come_in(monkeypatch):
    monkeypatch.setattr(unauthenticated, "STRANGERS_MAX", 10)

    async def steps(server, clients: Clients) -> None:
        known, writer = await user(server, clients)
        strangers = [(await clients.connect(server))[0] for _ in range(30)]
        for _ in range(3):
            await user(server, clients)
        for reader in strangers[:20]:
            assert await ended(reader)
        assert len(server.connections.open) <= 10 + 4
        writer.write(API_VERSIONS)
        assert await said(known) == 42

    serving(steps, LIMIT_BYTES, USERS)


@pytest.mark.parametrize("users", [{}, USERS], ids=["without users", "as a user"])
def test_who_is_known_may_send_large_requests_and_take_its_time(monkeypatch, users):
    monkeypatch.setattr(unauthenticated, "AUTHENTICATION_S", 0.2)

    async def steps(server, clients: Clients) -> None:
        reader, writer = await (user(server, clients) if users else clients.connect(server))
        request = produce("t", b"x" * 2_000_000, 5)
        writer.write(request[:100_000])
        await asyncio.sleep(0.5)  # longer than a stranger would have
        writer.write(request[100_000:])
        assert await said(reader) == 5

    serving(steps, LIMIT_BYTES, users)
