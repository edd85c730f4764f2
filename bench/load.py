"""What one client asks of one server: each function drives a broker at an address and returns what it measured."""

import subprocess
import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.servers import kafka_jars

CHUNK = 10_000


def new_topic(bootstrap: str, partitions: int = 1) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


def delete_topics(bootstrap: str) -> None:
    """Ends what the measures have made, so that the next round finds as little on the disk and in its cache as this one did."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [name for name in admin.list_topics(timeout=20).topics if name.startswith("bench-")]
    for answer in admin.delete_topics(names).values():
        answer.result(20)


def produce(bootstrap: str, topic: str, records: int) -> float:
    """Records a second: 100 bytes, one partition, acks=all, one librdkafka producer fed in chunks."""
    settings = {
        "linger.ms": 5,
        "batch.num.messages": CHUNK,
        "queue.buffering.max.messages": 500_000,
        "acks": "all",
    }
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    chunk = [{"value": b"x" * 100} for _ in range(CHUNK)]
    sent, start = 0, time.perf_counter()
    while sent < records:
        if len(producer) > 400_000:
            producer.poll(0.001)
            continue
        sent += producer.produce_batch(topic, chunk, partition=0)
        producer.poll(0)
    _flush(producer)
    return records / (time.perf_counter() - start)


def produce_wide(bootstrap: str, records: int, *, partitions: int = 12, producers: int = 4) -> float:
    """Records a second: 1 KB, several producers over many partitions, acks=all."""
    topic = new_topic(bootstrap, partitions)
    settings = {"linger.ms": 5, "acks": "all", "queue.buffering.max.kbytes": 65_536}
    clients = [Producer({"bootstrap.servers": bootstrap, **settings}) for _ in range(producers)]
    chunk = [{"value": b"x" * 1000} for _ in range(500)]
    sent, turn, start = 0, 0, time.perf_counter()
    while sent < records:
        client = clients[turn % producers]
        if len(client) < 20_000:
            sent += client.produce_batch(topic, chunk, partition=turn % partitions)
        client.poll(0)
        turn += 1
        if all(len(each) >= 20_000 for each in clients):
            time.sleep(0.001)
    for client in clients:
        _flush(client)
    return sent / (time.perf_counter() - start)


def latencies(bootstrap: str, records: int, settle: int = 200) -> tuple[float, float]:
    """Median and 99th percentile, in milliseconds, from produce() to the record in the consumer's hand, one at a time."""
    topic = new_topic(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    consumer = _consumer(bootstrap)
    consumer.assign([TopicPartition(topic, 0, 0)])
    taken = []
    for _ in range(records):
        start = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0)
        producer.poll(0)
        message = consumer.poll(10)
        if message is None or message.error():
            raise RuntimeError(f"no record: {message and message.error()}")
        taken.append((time.perf_counter() - start) * 1000)
    _flush(producer)
    consumer.close()
    settled = sorted(taken[settle:])
    return settled[len(settled) // 2], settled[int(len(settled) * 0.99)]


def consume(bootstrap: str, topic: str, records: int) -> float:
    """Records a second, read by one librdkafka consumer from the beginning of one partition."""
    consumer = _consumer(bootstrap)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found, start = 0, time.perf_counter()
    while found < records:
        messages = consumer.consume(CHUNK, 10)
        if not messages:
            raise RuntimeError(f"{found} of {records} records, then none for 10 s")
        found += len(messages)
    consumer.close()
    return records / (time.perf_counter() - start)


def consume_java(bootstrap: str, topic: str, records: int) -> float:
    """Records a second, as Kafka's own consumer-perf-test counts them, without the time of joining its group."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)]
    main = ["java", "-Xmx512m", "-cp", f"{kafka_jars()}/*", "org.apache.kafka.tools.ConsumerPerformance"]
    done = subprocess.run([*main, *arguments], capture_output=True, text=True, check=True, timeout=120)
    head, row = (line.split(", ") for line in done.stdout.splitlines() if ", " in line)
    found = dict(zip(head, row, strict=True))
    if int(found["data.consumed.in.nMsg"]) < records:
        raise RuntimeError(f"consumer-perf-test read {found['data.consumed.in.nMsg']} of {records} records")
    return float(found["fetch.nMsg.sec"])


def transactions(bootstrap: str, commits: int, size: int = 100) -> float:
    """Commits a second: one producer, transactions of a hundred records of 100 bytes in one partition."""
    topic = new_topic(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(30)
    chunk = [{"value": b"x" * 100} for _ in range(size)]
    start = time.perf_counter()
    for _ in range(commits):
        producer.begin_transaction()
        producer.produce_batch(topic, chunk, partition=0)
        producer.commit_transaction(30)
    return commits / (time.perf_counter() - start)


def _consumer(bootstrap: str) -> Consumer:
    settings = {"group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": bootstrap, **settings})


def _flush(producer: Producer) -> None:
    if producer.flush(120):
        raise RuntimeError("records were not acknowledged")
