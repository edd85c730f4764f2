"""kafka-python and aiokafka, as they are: clients that share no code with librdkafka or Java."""

import asyncio
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic


@pytest.fixture
def topic(bootstrap):
    name = f"py-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(name=name, num_partitions=2, replication_factor=1)])
    admin.close()
    return name


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_kafka_python_writes_and_reads_in_a_group(bootstrap, topic, codec):
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", compression_type=codec)
    for i in range(200):
        producer.send(topic, key=b"k%d" % i, value=b"v%d" % i)
    producer.flush(timeout=30)
    producer.close()

    reader = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=15_000,
    )
    found = {}
    for message in reader:
        found[message.key] = message.value
        if len(found) == 200:
            break
    reader.commit()
    reader.close()
    assert found == {b"k%d" % i: b"v%d" % i for i in range(200)}


def test_aiokafka_writes_transactions_and_reads_what_was_committed(bootstrap, topic):
    async def scenario() -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=uuid.uuid4().hex)
        await producer.start()
        async with producer.transaction():
            await producer.send(topic, b"committed", partition=0)
        with pytest.raises(RuntimeError, match="on purpose"):  # noqa: PT012
            async with producer.transaction():
                await producer.send(topic, b"aborted", partition=0)
                raise RuntimeError("on purpose")
        async with producer.transaction():
            await producer.send(topic, b"last", partition=0)
        await producer.stop()
        reader = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await reader.start()
        found = []
        async with asyncio.timeout(30):
            while len(found) < 2:
                found.append((await reader.getone()).value)
        await reader.commit()
        await reader.stop()
        return found

    assert asyncio.run(scenario()) == [b"committed", b"last"]
