"""Share groups through the handlers of a broker: what clients of KIP-932 depend on."""

import asyncio
import socket
import uuid
from pathlib import Path

import pytest

from headwater.door.kafka.listener.connection import TURN_BYTES_MAX
from headwater.errors import ErrorCode
from headwater.log.broker import Broker
from headwater.log.storage.memory import MemoryDisk
from headwater.queue.run import DeliveryState
from support import rawclient
from support.protocol import Client
from support.sharemember import ACCEPT, GAP, GROUP, REJECT, RELEASE, RENEW, ShareMember, acquired, configure
from support.sharemember import values as values_of


def scenario(steps, *, partitions: int = 1, reset: str = "earliest") -> None:
    """Runs against a broker with topics ``t`` and ``u``, and a group ``g`` that begins at the first record."""

    async def run() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk())
        broker.catalog.create("t", partitions)
        broker.catalog.create("u", 1)
        client = Client(broker)
        await configure(client, "g", auto_offset_reset=reset)
        await steps(client)
        await broker.close()

    asyncio.run(run())


async def produce(client, count: int, partition: int = 0, topic: str = "t") -> None:
    await client.produce(topic, partition, [b"%d" % i for i in range(count)])


def state(client, partition: int = 0, group: str = "g"):
    topic = client.broker.catalog.topics["t"]
    return client.broker.shares.opened(group)[topic.id, partition].state


async def until(condition, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  the broker has no event for it
            await asyncio.sleep(0.005)


def test_a_record_is_delivered_until_it_is_accepted():
    async def steps(client):
        await produce(client, 3)
        member = ShareMember(client)
        parts = await member.fetch()
        assert acquired(parts[0]) == [(0, 2, 1)]
        assert values_of(parts[0]) == [b"0", b"1", b"2"]
        assert await member.acknowledge((0, 2, [ACCEPT, RELEASE, ACCEPT])) == 0
        parts = await member.fetch()
        assert acquired(parts[0]) == [(1, 1, 2)]
        assert await member.acknowledge((1, 1, ACCEPT)) == 0
        assert await member.fetch() == {}
        assert state(client).start == 3

    scenario(steps)


def test_two_members_never_hold_one_record():
    async def steps(client):
        one, other = ShareMember(client, "one"), ShareMember(client, "other")
        await produce(client, 2)
        assert acquired((await one.fetch())[0]) == [(0, 1, 1)]
        assert acquired((await other.fetch())[0]) == []
        assert await other.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        await produce(client, 1)
        assert acquired((await other.fetch())[0]) == [(2, 2, 1)]

    scenario(steps)


def test_the_first_epoch_opens_a_session_and_the_last_one_releases_what_it_holds():
    async def steps(client):
        await produce(client, 1)
        member, other = ShareMember(client), ShareMember(client, "other")
        assert (await member.ask(share_session_epoch=1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        await member.fetch()
        wrong = await member.ask(share_session_epoch=5)
        assert wrong.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert (await member.ask(share_session_epoch=-1)).error_code == 0
        assert acquired((await other.fetch())[0]) == [(0, 0, 2)]
        assert await member.acknowledge(share_session_epoch=0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await member.acknowledge(share_session_epoch=1) == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await other.acknowledge((0, 0, ACCEPT), share_session_epoch=-1) == 0
        assert state(client).start == 1

    scenario(steps)


def test_a_lost_connection_releases_what_its_members_hold():
    async def steps(client):
        await produce(client, 1)
        await ShareMember(client).fetch()
        client.broker.shares.disconnect(client)
        assert acquired((await ShareMember(client, "other").fetch())[0]) == [(0, 0, 2)]

    scenario(steps)


def test_a_client_that_is_gone_gives_back_what_it_held():
    async def steps(server, clients):
        shares, topic = server.broker.shares, server.broker.catalog.topics["t"]
        shares.configure("g", {"share.auto.offset.reset": "earliest"})
        reader, writer = await clients.connect(server)
        writer.write(rawclient.produce("t", b"x"))
        await rawclient.said(reader)
        wanted = [{"topic_id": topic.id, "partitions": [{"partition_index": 0}]}]
        asked = {"max_bytes": 1 << 20, "max_records": 10, "topics": wanted}
        names = {"group_id": "g", "member_id": "m", "share_session_epoch": 0}
        writer.write(rawclient.frame("ShareFetch", 2, 2, **names, **asked))
        await rawclient.said(reader)
        held = shares.opened("g")[topic.id, 0].state
        assert held.runs[0].state is DeliveryState.ACQUIRED
        writer.transport.abort()
        await until(lambda: held.runs[0].state is DeliveryState.AVAILABLE)
        assert not len(shares.sessions)

    rawclient.serving(steps, limit_bytes=1 << 20)


def test_a_request_of_a_client_that_is_gone_begins_no_session():
    """One that waited for its turn, since others had moved many bytes, when the connection was lost."""

    async def steps(server, clients):
        topic, connections = server.broker.catalog.topics["t"], server.connections
        reader, writer = await clients.connect(server)
        writer.write(rawclient.API_VERSIONS)
        await rawclient.said(reader)
        (connection,) = connections.open
        connections.turn_bytes = TURN_BYTES_MAX
        wanted = [{"topic_id": topic.id, "partitions": [{"partition_index": 0}]}]
        names = {"group_id": "g", "member_id": "m", "share_session_epoch": 0}
        writer.write(rawclient.frame("ShareFetch", 2, 2, **names, topics=wanted))
        await until(lambda: connection._rest is not None)
        connection.abort()
        await until(lambda: not connections.open)
        connections.turn_bytes = 0
        for _ in range(3):
            await asyncio.sleep(0)
        assert not len(server.broker.shares.sessions)
        assert connection._rest is None

    rawclient.serving(steps, limit_bytes=1 << 20)


def test_a_connection_notices_that_the_machine_of_its_client_is_gone():
    async def steps(server, clients):
        reader, writer = await clients.connect(server)
        writer.write(rawclient.API_VERSIONS)
        await rawclient.said(reader)
        (connection,) = server.connections.open
        peer = connection._transport.get_extra_info("socket")
        assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    rawclient.serving(steps, limit_bytes=1 << 20)


def test_a_topic_that_comes_several_times_in_one_request_is_merged():
    """librdkafka names topics in the order T1, T2, T1."""

    async def steps(client):
        for partition in (0, 1):
            await produce(client, 1, partition)
        await produce(client, 1, topic="u")
        member = ShareMember(client)
        named = [("t", 0), ("u", 0), ("t", 1)]
        topics = [{"topic_id": member.topic_id(t), "partitions": [{"partition_index": p}]} for t, p in named]
        answer = await member.ask(topics=topics)
        found = [(t.topic_id, p.partition_index, acquired(p)) for t in answer.responses for p in t.partitions]
        assert sorted(found) == sorted((member.topic_id(t), p, [(0, 0, 1)]) for t, p in named)
        ack = {"partition_index": 0, "acknowledgement_batches": [ack_of(0, 0, ACCEPT)]}
        other = {"partition_index": 1, "acknowledgement_batches": [ack_of(0, 0, ACCEPT)]}
        topics = [
            {"topic_id": member.topic_id(t), "partitions": [part]}
            for t, part in (("t", ack), ("u", ack), ("t", other))
        ]
        answer = await member.ask(topics=topics)
        codes = [p.acknowledge_error_code for t in answer.responses for p in t.partitions]
        assert codes == [0, 0, 0]
        assert state(client, 0).start == state(client, 1).start == 1

    scenario(steps, partitions=2)


def ack_of(first: int, last: int, *kinds: int) -> dict:
    return {"first_offset": first, "last_offset": last, "acknowledge_types": list(kinds)}


def test_a_session_remembers_partitions_and_forgets_those_that_it_is_asked_to():
    async def steps(client):
        member = ShareMember(client)
        assert sorted(await member.fetch(partitions=(0, 1))) == [0, 1]
        assert await member.fetch(topics=[]) == {}
        await produce(client, 1, 1)
        assert sorted(await member.fetch(topics=[])) == [1]
        forgotten = [{"topic_id": member.topic_id(), "partitions": [0]}]
        await produce(client, 1, 0)
        assert await member.fetch(topics=[], forgotten_topics_data=forgotten) == {}

    scenario(steps, partitions=2)


@pytest.mark.parametrize("field", ["max_wait_ms", "min_bytes", "max_bytes", "max_records"])
def test_a_fetch_that_renews_and_asks_for_records_is_invalid(field):
    async def steps(client):
        await produce(client, 1)
        member = ShareMember(client)
        await member.fetch()
        parts = [{"partition_index": 0, "acknowledgement_batches": [ack_of(0, 0, RENEW)]}]
        topics = [{"topic_id": member.topic_id(), "partitions": parts}]
        nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        asked = {**nothing, field: 1}
        answer = await member.ask(is_renew_ack=True, topics=topics, **asked)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        parts[0]["acknowledgement_batches"] = []
        answer = await member.ask(is_renew_ack=True, topics=topics, **nothing)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        parts[0]["acknowledgement_batches"] = [ack_of(0, 0, RENEW)]
        answer = await member.ask(is_renew_ack=True, topics=topics, **nothing)
        assert answer.error_code == 0
        assert answer.responses[0].partitions[0].acknowledge_error_code == 0
        assert not answer.responses[0].partitions[0].acquired_records

    scenario(steps)


def test_a_renewal_is_refused_while_it_is_off_or_not_announced():
    async def steps(client):
        await produce(client, 1)
        member = ShareMember(client)
        await member.fetch()
        assert await member.acknowledge((0, 0, RENEW)) == ErrorCode.INVALID_REQUEST
        assert await member.acknowledge((0, 0, RENEW), is_renew_ack=True) == 0
        await configure(client, "g", renew_acknowledge_enable="false")
        code = await member.acknowledge((0, 0, RENEW), is_renew_ack=True)
        assert code == ErrorCode.INVALID_RECORD_STATE
        assert await member.acknowledge((0, 0, ACCEPT)) == 0

    scenario(steps)


def test_an_answer_names_no_other_leader():
    async def steps(client):
        await produce(client, 1)
        member = ShareMember(client)
        leader = (await member.fetch())[0].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (-1, -1)

    scenario(steps)


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ([(1, 0, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 1, ACCEPT), (1, 2, ACCEPT)], ErrorCode.INVALID_RECORD_STATE),
        ([(2, 2, ACCEPT), (0, 0, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 2, [ACCEPT, ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, 9)], ErrorCode.INVALID_REQUEST),
        ([(0, 3, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 0, ACCEPT), (2, 2, ACCEPT), (3, 3, ACCEPT)], ErrorCode.INVALID_REQUEST),
        ([(0, 2, [ACCEPT, GAP, REJECT])], ErrorCode.NONE),
    ],
)
def test_acknowledgements_of_a_partition_are_applied_whole_or_not_at_all(acks, code):
    async def steps(client):
        await produce(client, 3)
        member = ShareMember(client)
        await member.fetch()
        assert await member.acknowledge(*acks) == code
        assert state(client).start == (0 if code else 3)

    scenario(steps)


def test_a_member_id_has_at_most_36_characters_and_no_group_is_nameless():
    async def steps(client):
        for name, code in (("", 42), ("m" * 37, 42), ("m" * 36, 0)):
            topics = [{"topic_id": ShareMember(client).topic_id(), "partitions": []}]
            assert (await ShareMember(client, name).ask(topics=topics)).error_code == code
        assert (await ShareMember(client, group="").ask(topics=[])).error_code == ErrorCode.INVALID_GROUP_ID

    scenario(steps)


def test_the_first_fetch_of_a_session_has_nothing_to_acknowledge():
    async def steps(client):
        await produce(client, 1)
        parts = [{"partition_index": 0, "acknowledgement_batches": [ack_of(0, 0, ACCEPT)]}]
        member = ShareMember(client)
        answer = await member.ask(topics=[{"topic_id": member.topic_id(), "partitions": parts}])
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    scenario(steps)


def test_a_fetch_waits_for_a_record_and_gets_it_at_once():
    async def steps(client):
        member = ShareMember(client)
        await member.fetch()
        waiting = asyncio.create_task(member.fetch(max_wait_ms=20_000))
        await asyncio.sleep(0)
        await produce(client, 1)
        async with asyncio.timeout(5):
            assert acquired((await waiting)[0]) == [(0, 0, 1)]

    scenario(steps)


def test_a_fetch_that_waits_gets_what_another_member_releases():
    async def steps(client):
        await produce(client, 1)
        holder, member = ShareMember(client, "holder"), ShareMember(client)
        await holder.fetch()
        await member.fetch()
        waiting = asyncio.create_task(member.fetch(max_wait_ms=20_000))
        await asyncio.sleep(0)
        await holder.acknowledge((0, 0, RELEASE))
        async with asyncio.timeout(5):
            assert acquired((await waiting)[0]) == [(0, 0, 2)]

    scenario(steps)


def test_a_fetch_that_waits_hears_that_its_topic_is_deleted():
    async def steps(client):
        member = ShareMember(client)
        topic = client.broker.catalog.topics["t"]
        await member.fetch()
        waiting = asyncio.create_task(member.fetch(max_wait_ms=20_000))
        await asyncio.sleep(0)
        await client.broker.delete_topic(topic)
        async with asyncio.timeout(5):
            assert (await waiting)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    scenario(steps)


def test_a_wait_for_records_ends_after_its_time():
    async def steps(client):
        member = ShareMember(client)
        await member.fetch()
        async with asyncio.timeout(5):
            assert await member.fetch(max_wait_ms=50) == {}
        share = client.broker.shares.opened("g")[member.topic_id(), 0]
        assert not share.watchers
        assert not share.log.watchers

    scenario(steps)


def test_a_lock_that_is_over_gives_the_record_to_another_member():
    async def steps(client):
        await configure(client, "g", record_lock_duration_ms="1000")
        await produce(client, 1)
        hanging, member = ShareMember(client, "hanging"), ShareMember(client)
        answer = await hanging.ask(topics=[topic_of(hanging)])
        assert answer.acquisition_lock_timeout_ms == 1000
        async with asyncio.timeout(10):
            assert acquired((await member.fetch(max_wait_ms=9_000))[0]) == [(0, 0, 2)]
        assert await hanging.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE

    scenario(steps)


def topic_of(member, partition: int = 0) -> dict:
    return {"topic_id": member.topic_id(), "partitions": [{"partition_index": partition}]}


def test_whole_batches_may_exceed_the_records_asked_for_except_with_a_record_limit():
    async def steps(client):
        for _ in range(3):
            await produce(client, 4)
        member = ShareMember(client)
        assert acquired((await member.fetch(max_records=5))[0]) == [(0, 7, 1)]
        assert acquired((await member.fetch(max_records=3, share_acquire_mode=1))[0]) == [(8, 10, 1)]
        parts = await member.fetch(max_records=3, share_acquire_mode=1)
        assert acquired(parts[0]) == [(11, 11, 1)]
        assert await member.fetch(max_records=0) == {}

    scenario(steps)


def test_no_new_records_are_delivered_beyond_the_locks_that_a_group_may_hold():
    async def steps(client):
        await configure(client, "g", partition_max_record_locks="100")
        for _ in range(15):
            await produce(client, 10)
        member, other = ShareMember(client), ShareMember(client, "other")
        assert acquired((await member.fetch())[0]) == [(0, 99, 1)]
        assert acquired((await other.fetch())[0]) == []
        assert await member.acknowledge((50, 59, ACCEPT)) == 0
        assert acquired((await other.fetch())[0]) == [(100, 109, 1)]
        assert await member.acknowledge((0, 4, RELEASE)) == 0
        assert acquired((await other.fetch())[0]) == [(0, 4, 2)]

    scenario(steps)


def test_a_suspicious_record_is_delivered_with_fewer_others_and_at_last_alone():
    async def steps(client):
        await produce(client, 100)
        member = ShareMember(client)
        sizes = []
        for _ in range(4):
            found = acquired((await member.fetch())[0])
            first, last = found[0][0], found[-1][1]
            sizes.append((first, last - first + 1, found[0][2]))
            await member.acknowledge((first, last, RELEASE))
        assert sizes == [(0, 100, 1), (0, 100, 2), (0, 100, 3), (0, 50, 4)]
        assert acquired((await member.fetch())[0]) == [(0, 0, 5)]
        await member.acknowledge((0, 0, RELEASE))
        assert state(client).start == 1
        assert acquired((await member.fetch())[0]) == [(1, 1, 5)]

    scenario(steps)


def test_a_lowered_limit_allows_one_more_delivery():
    async def steps(client):
        await produce(client, 1)
        member = ShareMember(client)
        for deliveries in (1, 2, 3):
            assert acquired((await member.fetch())[0]) == [(0, 0, deliveries)]
            await member.acknowledge((0, 0, RELEASE))
        await configure(client, "g", delivery_count_limit="2")
        assert acquired((await member.fetch())[0]) == [(0, 0, 4)]
        await member.acknowledge((0, 0, RELEASE))
        assert await member.fetch() == {}
        assert state(client).start == 1

    scenario(steps)


def test_readers_of_committed_records_stop_at_the_open_transaction_and_pass_over_aborted_ones():
    async def steps(client):
        await configure(client, "g", isolation_level="read_committed")
        await produce(client, 1)
        for name, commit in (("aborting", False), ("committing", True)):
            answer = await client.call(
                "InitProducerId", 3, transactional_id=name, transaction_timeout_ms=60_000
            )
            producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
            topics = [{"name": "t", "partitions": [0]}]
            asked = {"v3_and_below_transactional_id": name, "v3_and_below_topics": topics}
            asked |= {f"v3_and_below_{key}": value for key, value in producer.items()}
            await client.call("AddPartitionsToTxn", 3, **asked)
            batch = {**producer, "base_sequence": 0, "attributes": 0x10}
            await client.produce("t", 0, [name.encode()] * 2, **batch)
            member = ShareMember(client, name)
            parts = await member.fetch()
            before = acquired(parts[0])
            await client.call("EndTxn", 3, transactional_id=name, committed=commit, **producer)
            if not commit:
                assert before == [(0, 0, 1)]
                await member.acknowledge((0, 0, ACCEPT))
            else:
                assert before == []
        log = client.broker.catalog.partition("t", 0)
        await until(lambda: log.last_stable_offset == log.high_watermark == 7)
        parts = await member.fetch()
        assert acquired(parts[0]) == [(4, 5, 1)]
        assert values_of(parts[0]) == [b"committing"] * 2
        await member.acknowledge((4, 5, ACCEPT))
        await member.fetch()
        assert state(client).start == 7

    scenario(steps)


def test_markers_are_not_delivered_to_readers_of_everything_either():
    async def steps(client):
        answer = await client.call("InitProducerId", 3, transactional_id="x", transaction_timeout_ms=60_000)
        producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        topics = [{"name": "t", "partitions": [0]}]
        asked = {"v3_and_below_transactional_id": "x", "v3_and_below_topics": topics}
        await client.call(
            "AddPartitionsToTxn", 3, **asked, **{f"v3_and_below_{k}": v for k, v in producer.items()}
        )
        await client.produce("t", 0, [b"a"], **producer, base_sequence=0, attributes=0x10)
        await client.call("EndTxn", 3, transactional_id="x", committed=False, **producer)
        await until(lambda: client.broker.catalog.partition("t", 0).high_watermark == 2)
        await produce(client, 1)
        assert acquired((await ShareMember(client).fetch())[0]) == [(0, 0, 1), (2, 2, 1)]

    scenario(steps)


@pytest.mark.parametrize(("reset", "first"), [("latest", []), ("earliest", [(0, 1, 1)])])
def test_a_new_group_begins_where_its_setting_says(reset, first):
    async def steps(client):
        await produce(client, 2)
        member = ShareMember(client)
        assert acquired((await member.fetch())[0]) == first

    scenario(steps, reset=reset)


def test_a_new_group_can_begin_with_records_of_an_age():
    async def steps(client):
        await produce(client, 2)  # in 1970
        now = client.broker.clock.now_ms()
        batch = [{"name": "t", "partition_data": [{"index": 0, "records": recent(now)}]}]
        await client.call("Produce", 7, acks=-1, timeout_ms=1000, topic_data=batch)
        assert acquired((await ShareMember(client).fetch())[0]) == [(2, 2, 1)]

    scenario(steps, reset="by_duration:PT1H")


def recent(now_ms: int) -> bytes:
    from headwater.record import Record, encode_batch

    return encode_batch([Record(None, b"recent", (), now_ms - 60_000)])


def test_records_that_were_deleted_are_forgotten():
    async def steps(client):
        await produce(client, 5)
        member = ShareMember(client)
        await member.fetch()
        client.broker.catalog.partition("t", 0).delete_records(3)
        assert await member.acknowledge((0, 4, ACCEPT)) == 0
        assert state(client).start == 5
        await produce(client, 3)
        client.broker.catalog.partition("t", 0).delete_records(7)
        assert acquired((await member.fetch())[0]) == [(7, 7, 1)]

    scenario(steps)


def test_unknown_topics_and_partitions_are_named_with_their_errors():
    async def steps(client):
        member = ShareMember(client)
        parts = await member.fetch(partitions=(0, 7))
        assert parts[0].error_code == 0
        assert parts[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        gone = {"topic_id": client.broker.catalog.topics["u"].id, "partitions": [{"partition_index": 0}]}
        await client.broker.delete_topic(client.broker.catalog.topics["u"])
        async with asyncio.timeout(5):
            answer = await ShareMember(client, "other").ask(topics=[gone], max_wait_ms=60_000)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        answer = await member.ask(topics=[gone])
        codes = {
            p.error_code for t in answer.responses for p in t.partitions if t.topic_id == gone["topic_id"]
        }
        assert codes == {ErrorCode.UNKNOWN_TOPIC_ID}

    scenario(steps)


def test_a_name_belongs_to_one_kind_of_group():
    async def steps(client):
        topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        await client.call(
            "OffsetCommit", 7, group_id="classic", generation_id_or_member_epoch=-1, topics=topics
        )
        beat = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        answer = await client.call("ShareGroupHeartbeat", 1, group_id="classic", **beat)
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await client.call("ShareGroupHeartbeat", 1, group_id="shared", **beat)
        asked = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
        protocols = [{"name": "range", "metadata": b""}]
        answer = await client.call("JoinGroup", 5, group_id="shared", **asked, protocols=protocols)
        assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        answer = await client.call(
            "OffsetCommit", 7, group_id="shared", generation_id_or_member_epoch=-1, topics=topics
        )
        assert answer.topics[0].partitions[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND

    scenario(steps)


def test_an_acknowledgement_of_what_was_never_delivered_leaves_no_trace():
    async def steps(client):
        member = ShareMember(client)
        await member.fetch(topic="u")
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        assert len(client.broker.shares.opened("g")) == 1
        gone = [{"topic_id": uuid.UUID(int=5), "partitions": [{"partition_index": 0}]}]
        gone[0]["partitions"][0]["acknowledgement_batches"] = [ack_of(0, 0, ACCEPT)]
        answer = await member.ask(topics=gone)
        codes = [p.acknowledge_error_code for t in answer.responses for p in t.partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_ID]

    scenario(steps)


def test_a_renewal_is_not_written():
    async def steps(client):
        await produce(client, 1)
        member = ShareMember(client)
        await member.fetch()
        states = client.broker.catalog.topics["__share_group_state"].partitions[0]
        before = states.end_offset
        assert await member.acknowledge((0, 0, RENEW), is_renew_ack=True) == 0
        assert states.end_offset == before

    scenario(steps)


def test_groups_are_listed_by_type_moved_and_deleted_while_they_have_no_members():
    async def steps(client):
        await produce(client, 4)
        beat = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
        await client.call("ShareGroupHeartbeat", 1, group_id="g", **beat)
        member = ShareMember(client)
        await member.fetch()
        await member.acknowledge((0, 1, ACCEPT))
        listed = await client.call("ListGroups", 5, states_filter=[], types_filter=["share"])
        assert [(g.group_id, g.group_type, g.group_state) for g in listed.groups] == [
            ("g", "share", "Stable")
        ]
        assert not (await client.call("ListGroups", 4, states_filter=[])).groups
        places = [{"topic_name": "t", "partitions": [{"partition_index": 0, "start_offset": 1}]}]
        refused = await client.call("AlterShareGroupOffsets", 0, group_id="g", topics=places)
        assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
        deleted = await client.call("DeleteGroups", 2, groups_names=["g"])
        assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
        await client.call("ShareGroupHeartbeat", 1, group_id="g", **{**beat, "member_epoch": -1})
        moved = await client.call("AlterShareGroupOffsets", 0, group_id="g", topics=places)
        assert moved.responses[0].partitions[0].error_code == 0
        described = await offsets(client)
        assert [(p.start_offset, p.lag) for p in described] == [(1, 3)]
        deleted = await client.call("DeleteGroups", 2, groups_names=["g", "other"])
        assert [r.error_code for r in deleted.results] == [0, ErrorCode.GROUP_ID_NOT_FOUND]
        answer = await client.call("ShareGroupDescribe", 1, group_ids=["g"])
        assert answer.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND

    scenario(steps)


async def offsets(client):
    """What is said of the offsets of group ``g`` in topic ``t``."""
    asked = [{"group_id": "g", "topics": [{"topic_name": "t", "partitions": [0]}]}]
    answer = await client.call("DescribeShareGroupOffsets", 1, groups=asked)
    return answer.groups[0].topics[0].partitions


def test_the_lag_of_a_group_is_what_is_not_settled():
    async def steps(client):
        await produce(client, 10)
        member = ShareMember(client)
        await member.fetch()
        await member.acknowledge((2, 4, ACCEPT), (6, 6, REJECT))
        assert [(p.start_offset, p.lag) for p in await offsets(client)] == [(0, 6)]

    scenario(steps)


@pytest.mark.parametrize(
    ("kind", "key", "code"),
    [
        (0, "g", ErrorCode.NONE),
        (2, "g:kLgzP5dNSkGMZSUFYbDJFg:0", ErrorCode.NONE),
        (2, "g:with:colons:kLgzP5dNSkGMZSUFYbDJFg:12", ErrorCode.NONE),
        (2, "g", ErrorCode.INVALID_REQUEST),
        (2, "g:kLgzP5dNSkGMZSUFYbDJFg:first", ErrorCode.INVALID_REQUEST),
    ],
)
def test_the_coordinator_of_a_group_and_of_a_share_partition_is_this_broker(kind, key, code):
    async def steps(client):
        answer = await client.call("FindCoordinator", 6, key_type=kind, coordinator_keys=[key])
        (found,) = answer.coordinators
        assert (found.key, found.error_code, found.node_id) == (key, code, -1 if code else 0)

    scenario(steps)


def test_the_feature_of_share_groups_is_on():
    async def steps(client):
        answer = await client.call("ApiVersions", 4)
        assert [(f.name, f.max_version_level) for f in answer.finalized_features] == [("share.version", 1)]
        served = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        assert [served[key] for key in (74, 76, 77, 78, 79)] == [(0, 1), (1, 1), (1, 1), (1, 2), (1, 2)]

    scenario(steps)


def test_members_and_their_partitions_are_described():
    async def steps(client):
        beat = {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"], "rack_id": "r"}
        answer = await client.call("ShareGroupHeartbeat", 1, group_id="g", **beat)
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m", 1, 5000)
        assert [list(p.partitions) for p in answer.assignment.topic_partitions] == [[0, 1]]
        answer = await client.call("ShareGroupDescribe", 1, group_ids=["g"])
        (group,) = answer.groups
        (member,) = group.members
        assert (group.group_state, group.assignor_name, group.group_epoch) == ("Stable", "simple", 1)
        assert (member.member_id, member.rack_id, member.client_id) == ("m", "r", "test")
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic_name, list(assigned.partitions)) == ("t", [0, 1])

    scenario(steps, partitions=2)


def test_a_group_that_is_deleted_does_not_come_back():
    disk = MemoryDisk()

    async def steps(broker):
        client = Client(broker)
        await configure(client, "g", auto_offset_reset="earliest")
        await produce(client, 2)
        member = ShareMember(client)
        assert acquired((await member.fetch())[0]) == [(0, 1, 1)]
        await member.acknowledge((0, 0, ACCEPT))
        assert (await client.call("DeleteGroups", 2, groups_names=["g"])).results[0].error_code == 0
        assert (await member.fetch(max_wait_ms=1))[0].error_code == 0  # it begins again

    async def again(broker):
        assert broker.shares.opened("g")[broker.catalog.topics["t"].id, 0].state.start == 0
        await broker.delete_topic(broker.catalog.topics["t"])
        assert not broker.shares.opened("g")

    async def last(broker):
        assert broker.shares.names() == []

    for each in (steps, again, last):
        asyncio.run(with_broker(disk, each))


def test_the_state_of_a_topic_in_memory_ends_with_its_records():
    disk = MemoryDisk()

    async def steps(broker):
        broker.catalog.create("volatile", 1, {"headwater.durable": "false"})
        client = Client(broker)
        await configure(client, "g", auto_offset_reset="earliest")
        await produce(client, 3, topic="volatile")
        member = ShareMember(client)
        assert acquired((await member.fetch(topic="volatile"))[0]) == [(0, 2, 1)]
        await member.acknowledge((0, 2, ACCEPT), topic="volatile")

    async def again(broker):
        client = Client(broker)
        assert not broker.shares.opened("g")
        await produce(client, 1, topic="volatile")
        parts = await ShareMember(client).fetch(topic="volatile")
        assert acquired(parts[0]) == [(0, 0, 1)]

    for each in (steps, again):
        asyncio.run(with_broker(disk, each))


async def with_broker(disk, steps) -> None:
    broker = Broker(Path("/memory"), disk=disk)
    if steps.__name__ == "steps":
        broker.catalog.create("t", 1)
    await steps(broker)
    await broker.close()


def test_topics_that_are_not_queues_cost_nothing():
    async def steps(client):
        await produce(client, 100)
        assert "__share_group_state" not in client.broker.catalog.topics
        assert client.broker.shares.names() == []

    async def run() -> None:
        broker = Broker(Path("/memory"), disk=MemoryDisk())
        broker.catalog.create("t", 1)
        await steps(Client(broker))
        await broker.close()

    asyncio.run(run())


def test_the_settings_of_a_group_are_checked_shown_and_kept():
    async def steps(client):
        assert await configure(client, "q", record_lock_duration_ms="1000", delivery_count_limit="3") == 0
        for wrong in (
            {"delivery_count_limit": "1"},
            {"nothing": "1"},
            {"auto_offset_reset": "by_duration:1h"},
        ):
            assert await configure(client, "q", **wrong) == ErrorCode.INVALID_CONFIG
        resource = {"resource_type": GROUP, "resource_name": "q", "configuration_keys": None}
        answer = await client.call("DescribeConfigs", 4, resources=[resource])
        shown = {c.name: (c.value, c.config_source) for c in answer.results[0].configs}
        assert shown["share.record.lock.duration.ms"] == ("1000", 8)
        assert shown["share.delivery.count.limit"] == ("3", 8)
        assert shown["share.session.timeout.ms"] == ("45000", 5)
        listed = await client.call("ListConfigResources", 1, resource_types=[GROUP])
        assert sorted(r.resource_name for r in listed.config_resources) == ["g", "q"]
        unknown = await client.call("ListConfigResources", 1, resource_types=[99])
        assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION

    scenario(steps)
