"""make soak-log: ten minutes at full load, then thirty at a third of it with clients coming and going; memory, files and threads stay flat.

Full load is what two producers and two groups of consumers, each a process with confluent-kafka, do as fast as they can. Retention
keeps the topics small, so that segments come and go all the time. The broker is looked at every few seconds. Flat means: the median of
the last third of a phase is at most a tenth above that of its middle third, with a little slack for small numbers; the first
third is warming up. A leak grows in every third; what is merely high shows in both.

FULL_MINUTES and THIRD_MINUTES set the lengths.
"""

import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
import uuid
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from results import Figure, save
from support.servers import BrokerProcess

FULL_MINUTES = float(os.environ.get("FULL_MINUTES", "10"))
THIRD_MINUTES = float(os.environ.get("THIRD_MINUTES", "30"))
SAMPLE_S = 3.0
TOPICS = ("soak-a", "soak-b")
PARTITIONS = 4
CHUNK = 2_000
RECORD_BYTES = 100
SLACK = {"resident memory": 5.0, "open files": 5.0, "threads": 1.0}
UNITS = {"resident memory": "MB", "open files": "files", "threads": "threads"}


class Sample(NamedTuple):
    """The broker at one moment."""

    memory_mb: float
    files: int
    threads: int


def sample(pid: int) -> Sample:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Sample(int(status["VmRSS"].split()[0]) / 1024, files, int(status["Threads"]))


# ---- load ----------------------------------------------------------------------------------------------


def send(bootstrap: str, topic: str, records_per_s: float, sent, ended: Event) -> None:
    """Produces as fast as allowed until it is stopped; counts what was acknowledged."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", "partitioner": "random"}
    )
    chunk = [{"value": b"x" * RECORD_BYTES} for _ in range(CHUNK)]
    begin, produced = time.monotonic(), 0
    while not ended.is_set():
        if len(producer) > 50_000 or produced > records_per_s * (time.monotonic() - begin):
            producer.poll(0.005)
            continue
        produced += producer.produce_batch(topic, chunk, partition=(produced // CHUNK) % PARTITIONS)
        producer.poll(0)
        sent.value = produced - len(producer)
    producer.flush(30)


def receive(bootstrap: str, topic: str, received, ended: Event) -> None:
    """Consumes as a member of a group, committing as it goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = {"group.id": f"soak-{topic}", "auto.offset.reset": "latest", "auto.commit.interval.ms": 1000}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe([topic])
    while not ended.is_set():
        received.value += len(consumer.consume(5_000, 0.2))
    consumer.close()


def come_and_go(bootstrap: str, visits, ended: Event) -> None:
    """One client after the other: an idempotent producer, a group of its own, a topic made and deleted now and then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while not ended.is_set():
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        producer.produce(TOPICS[0], b"visit")
        producer.flush(10)
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"visitor-{visits.value % 50}",
                "log_level": 0,  # what it had committed has often expired when it comes again
                "auto.offset.reset": "latest",
            }
        )
        consumer.subscribe([TOPICS[1]])
        consumer.consume(100, 0.5)
        consumer.close()
        if visits.value % 10 == 0:
            name = f"passing-{uuid.uuid4().hex[:8]}"
            try:
                admin.create_topics([NewTopic(name, 3, 1)])[name].result(10)
                producer.produce(name, b"once")
                producer.flush(10)
                admin.delete_topics([name])[name].result(10)
            except KafkaException as error:
                print(f"visitor: {error}", flush=True)
        visits.value += 1


class Load:
    """The processes of one phase."""

    def __init__(self, bootstrap: str, records_per_s: float, *, churn: bool) -> None:
        self.ended = multiprocessing.Event()
        self.sent = [multiprocessing.Value("q", 0) for _ in TOPICS]
        self.received = [multiprocessing.Value("q", 0) for _ in TOPICS]
        self.visits = multiprocessing.Value("q", 0)
        share = records_per_s / len(TOPICS)
        jobs = [
            (send, (bootstrap, topic, share, count)) for topic, count in zip(TOPICS, self.sent, strict=True)
        ]
        jobs += [
            (receive, (bootstrap, topic, count)) for topic, count in zip(TOPICS, self.received, strict=True)
        ]
        jobs += [(come_and_go, (bootstrap, self.visits))] if churn else []
        self._processes = [
            multiprocessing.Process(target=job, args=(*arguments, self.ended), daemon=True)
            for job, arguments in jobs
        ]
        for process in self._processes:
            process.start()

    def totals(self) -> tuple[int, int, int]:
        counts = [sum(each.value for each in values) for values in (self.sent, self.received)]
        return counts[0], counts[1], self.visits.value

    def end(self) -> None:
        self.ended.set()
        for process in self._processes:
            process.join(60)
            if process.is_alive():
                process.kill()


def phase(
    name: str, broker: BrokerProcess, minutes: float, records_per_s: float, *, churn: bool
) -> tuple[list[Sample], float]:
    """Runs one load; the samples, and the records a second that it made."""
    load = Load(broker.bootstrap, records_per_s, churn=churn)
    samples: list[Sample] = []
    begin, said = time.monotonic(), 0.0
    try:
        while (elapsed := time.monotonic() - begin) < minutes * 60:
            time.sleep(SAMPLE_S)
            samples.append(sample(broker.pid))
            if elapsed - said >= 60:
                said = elapsed
                sent, received, visits = load.totals()
                now = samples[-1]
                print(
                    f"{name} {elapsed / 60:5.1f} min  {now.memory_mb:6.1f} MB  {now.files:4} files  {now.threads:3} threads  "
                    f"{sent / elapsed:10,.0f} records/s in  {received / elapsed:10,.0f} out  {visits} visits",
                    flush=True,
                )
        rate = load.totals()[0] / (time.monotonic() - begin)
    finally:
        load.end()
    return samples, rate


def figures(name: str, samples: list[Sample]) -> list[Figure]:
    third = len(samples) // 3
    found = []
    for at, measure in enumerate(SLACK):
        middle = statistics.median(each[at] for each in samples[third : 2 * third])
        last = statistics.median(each[at] for each in samples[2 * third :])
        allowed = max(middle * 1.1, middle + SLACK[measure])
        found.append(
            Figure(
                f"{name}: {measure}, last third of the time",
                last,
                middle,
                "middle third",
                UNITS[measure],
                round(middle / allowed, 3),
                higher_is_better=False,
            )
        )
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "data")
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        config = {"segment.bytes": "16000000", "retention.bytes": "64000000"}
        for topic in TOPICS:
            admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(20)
        full, rate = phase("full load", broker, FULL_MINUTES, float("inf"), churn=False)
        print(f"full load: {rate:,.0f} records/s", flush=True)
        third, _ = phase("a third", broker, THIRD_MINUTES, rate / 3, churn=True)
        code = broker.end(signal.SIGTERM)
        log = broker.log.read_text()
    assert code == 0, code
    assert "Traceback" not in log, log[-4000:]
    save(
        "soak",
        figures(f"{FULL_MINUTES:g} minutes at full load", full)
        + figures(f"{THIRD_MINUTES:g} minutes at a third of it, clients coming and going", third),
    )


if __name__ == "__main__":
    main()
