"""Incremental fetch sessions: what a client must say once, and what the broker answers again."""

import asyncio
from pathlib import Path

import pytest

from headwater.door.kafka.fetch_session import FetchSessions
from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.storage.memory import MemoryDisk
from support.protocol import Client


def scenario(steps):
    """Runs against a broker with a topic of two partitions."""

    async def run() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk(), flush="os")
        topic = broker.catalog.create("t", 2)
        await steps(Client(broker), topic)
        await broker.close()

    asyncio.run(run())


def wanted(*places):
    return [
        {
            "topic": "t",
            "partitions": [
                {"partition": p, "fetch_offset": o, "partition_max_bytes": 1 << 20} for p, o in places
            ],
        }
    ]


async def fetch(client, session, epoch, topics=(), forgotten=()):
    answer = await client.call(
        "Fetch",
        11,
        max_wait_ms=0,
        min_bytes=0,
        session_id=session,
        session_epoch=epoch,
        topics=list(topics),
        forgotten_topics_data=list(forgotten),
    )
    answered = {p.partition_index: p for t in answer.responses for p in t.partitions}
    return answer, answered


def test_a_partition_is_in_an_answer_when_it_has_news_and_only_then():
    async def steps(client, _):
        answer, answered = await fetch(client, 0, 0, wanted((0, 0), (1, 0)))
        assert set(answered) == {0, 1}
        session = answer.session_id
        _, answered = await fetch(client, session, 1)
        assert answered == {}
        await client.produce("t", 1, [b"news"])
        _, answered = await fetch(client, session, 2)
        assert set(answered) == {1}
        assert answered[1].records
        _, answered = await fetch(client, session, 3, wanted((1, 1)))
        assert not answered[1].records
        _, answered = await fetch(client, session, 4, forgotten=[{"topic": "t", "partitions": [1]}])
        await client.produce("t", 1, [b"more"])
        _, answered = await fetch(client, session, 5)
        assert answered == {}

    scenario(steps)


def test_a_partition_that_was_in_an_answer_comes_after_the_others():
    """Or the first partitions, always full, would leave no room for the last."""

    async def steps(client, _):
        for partition in (0, 1):
            await client.produce("t", partition, [b"x" * 1000])
        filled, session = [], 0
        for epoch in range(4):
            answer = await client.call(
                "Fetch",
                11,
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=500,
                session_id=session,
                session_epoch=epoch,
                topics=wanted((0, 0), (1, 0)) if epoch == 0 else [],
            )
            session = answer.session_id
            filled += [p.partition_index for t in answer.responses for p in t.partitions if p.records]
        assert filled == [0, 1, 0, 1]

    scenario(steps)


def test_unknown_sessions_and_wrong_epochs_are_refused():
    async def steps(client, _):
        answer, _ = await fetch(client, 0, 0, wanted((0, 0)))
        wrong, _ = await fetch(client, answer.session_id, 7)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        unknown, _ = await fetch(client, answer.session_id ^ 1, 1)
        assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        alone, answered = await fetch(client, 0, -1, wanted((0, 0)))
        assert (alone.session_id, set(answered)) == (0, {0})

    scenario(steps)


def test_a_client_of_a_former_broker_does_not_meet_the_session_of_another_client():
    """Ids that began at 1 again let a surviving consumer adopt a stranger's session, and wait for ever."""
    body = {"session_id": 0, "session_epoch": 0, "topics": [], "forgotten_topics_data": []}
    request = type("Body", (), body)()
    ids = {FetchSessions().enter(request, 11).id for _ in range(20)}

    assert len(ids) == 20


@pytest.mark.parametrize("count", [1001])
def test_the_number_of_sessions_is_bounded(count):
    sessions = FetchSessions()
    body = type(
        "Body", (), {"session_id": 0, "session_epoch": 0, "topics": [], "forgotten_topics_data": []}
    )()
    for _ in range(count):
        sessions.enter(body, 11)

    assert len(sessions._sessions) == 1000
