"""make bench-log: the embedded broker and Apache Kafka under the same confluent-kafka client, in one run.

Each round measures every server in turn, and the median of the rounds counts, so that a wandering machine
disturbs all of them alike.
"""

import os
import signal
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from results import Figure, save
from servers import BrokerProcess, KafkaProcess

ROUNDS = 5
RECORDS = 1_500_000
LATENCY_RECORDS = 1_500
CHUNK = 10_000
PEER = "Apache Kafka 4.3.1"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def new_topic(bootstrap: str, partitions: int = 1) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


def produce(bootstrap: str) -> float:
    """Records a second: 100 bytes, one partition, acks=all, one librdkafka producer fed in chunks."""
    topic = new_topic(bootstrap)
    settings = {
        "linger.ms": 5,
        "batch.num.messages": CHUNK,
        "queue.buffering.max.messages": 500_000,
        "acks": "all",
    }
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    chunk = [{"value": b"x" * 100} for _ in range(CHUNK)]
    sent, start = 0, time.perf_counter()
    while sent < RECORDS:
        if len(producer) > 400_000:
            producer.poll(0.001)
            continue
        sent += producer.produce_batch(topic, chunk, partition=0)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("records were not acknowledged")
    return RECORDS / (time.perf_counter() - start)


def latencies(bootstrap: str) -> tuple[float, float]:
    """Median and 99th percentile, in milliseconds, from produce() to the record in the consumer's hand, one at a time."""
    topic = new_topic(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    taken = []
    for _ in range(LATENCY_RECORDS):
        start = time.perf_counter()
        producer.produce(topic, b"x" * 100, partition=0)
        producer.poll(0)
        message = consumer.poll(10)
        if message is None or message.error():
            raise RuntimeError(f"no record: {message and message.error()}")
        taken.append((time.perf_counter() - start) * 1000)
    producer.flush(10)
    consumer.close()
    settled = sorted(taken[200:])
    return settled[len(settled) // 2], settled[int(len(settled) * 0.99)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        servers = {
            "os": BrokerProcess(Path(folder) / "os", "--flush", "os"),
            "commit": BrokerProcess(Path(folder) / "commit", "--flush", "commit"),
            "kafka": KafkaProcess(Path(folder) / "kafka", heap="1g"),
        }
        ready, memory = {}, {}
        for name, server in servers.items():
            start = time.perf_counter()
            server.start()
            ready[name] = time.perf_counter() - start
            memory[name] = resident_mb(server.pid)
        rates: dict[str, list[float]] = {name: [] for name in servers}
        cpu: dict[str, list[float]] = {name: [] for name in servers}
        p50: dict[str, list[float]] = {name: [] for name in servers}
        p99: dict[str, list[float]] = {name: [] for name in servers}
        for number in range(ROUNDS + 1):
            for name, server in servers.items():
                before = cpu_seconds(server.pid)
                rate = produce(server.bootstrap)
                used = cpu_seconds(server.pid) - before
                middle, tail = latencies(server.bootstrap)
                print(
                    f"round {number} {name:7} {rate:12,.0f} records/s {used:5.2f} cpu-s  p50 {middle:.3f} ms  p99 {tail:.3f} ms"
                )
                if number:  # the first round warms up all of them
                    rates[name].append(rate)
                    cpu[name].append(used / RECORDS * 1e6)
                    p50[name].append(middle)
                    p99[name].append(tail)
        for server in servers.values():
            server.end(signal.SIGTERM)
    middle = statistics.median

    def pair(
        measure: str, values: dict[str, list[float]], ours: str, unit: str, goal: float, *, higher: bool
    ) -> Figure:
        return Figure(measure, middle(values[ours]), middle(values["kafka"]), PEER, unit, goal, higher)

    figures = []
    for flush in ("os", "commit"):
        mark = f'flush = "{flush}"'
        figures += [
            pair(
                f"produce 100 B, one partition, acks all, {mark}", rates, flush, "records/s", 1.0, higher=True
            ),
            pair(f"broker CPU to produce a million records, {mark}", cpu, flush, "CPU-s", 2.0, higher=False),
            pair(f"end-to-end latency p50, linger 0, {mark}", p50, flush, "ms", 2.5, higher=False),
            pair(f"end-to-end latency p99, linger 0, {mark}", p99, flush, "ms", 5.0, higher=False),
        ]
    figures += [
        Figure("start to ready", ready["os"], ready["kafka"], PEER, "s", 10, higher_is_better=False),
        Figure(
            "resident memory, idle",
            memory["os"],
            memory["kafka"],
            PEER,
            "MB",
            1 / 0.15,
            higher_is_better=False,
        ),
    ]
    save("log", figures)


if __name__ == "__main__":
    main()
