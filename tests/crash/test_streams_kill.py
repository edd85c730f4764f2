"""Kafka Streams' WordCountDemo with exactly_once_v2 on the embedded log, killed with -9 in the middle: exact counts."""

import signal
import subprocess
import time
from collections import Counter

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.servers import kafka_jars, wait_until

SOURCE, TARGET = "streams-plaintext-input", "streams-wordcount-output"
WORDS = ["all", "streams", "lead", "to", "kafka"]
LINES = 300


def start_word_count(folder, bootstrap):
    properties = folder / "streams.properties"
    properties.write_text(
        f"bootstrap.servers={bootstrap}\nprocessing.guarantee=exactly_once_v2\nstate.dir={folder}/state\n"
        "commit.interval.ms=100\nsession.timeout.ms=6000\nheartbeat.interval.ms=1000\ntransaction.timeout.ms=10000\n"
    )
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*"]
    main = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
    with (folder / "streams.log").open("ab") as log:
        return subprocess.Popen([*java, main, str(properties)], stdout=log, stderr=log)


class Counts:
    """What a read_committed reader has seen of the output so far: the newest count of each word, and each step to it."""

    def __init__(self, bootstrap):
        settings = {"group.id": "check", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        self._reader = Consumer({"bootstrap.servers": bootstrap, **settings})
        self._reader.assign([TopicPartition(TARGET, p, 0) for p in (0, 1)])
        self.newest = {}
        self.repeated = []

    def read(self):
        for message in self._reader.consume(500, 0.2):
            word, count = message.key().decode(), int.from_bytes(message.value(), "big")
            if count <= self.newest.get(word, 0):
                self.repeated.append((word, self.newest[word], count))
            self.newest[word] = count
        return self.newest

    def close(self):
        self._reader.close()


def test_word_counts_are_exact_although_the_application_is_killed(own_broker, tmp_path):
    bootstrap = own_broker.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for name in (SOURCE, TARGET):
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    producer, expected, counts = Producer({"bootstrap.servers": bootstrap}), Counter(), Counts(bootstrap)

    def send(lines):
        for i in range(lines):
            line = " ".join(WORDS[: i % len(WORDS) + 1])
            expected.update(line.split())
            producer.produce(SOURCE, line, str(i))
            producer.poll(0)
            time.sleep(0.002)
        assert producer.flush(60) == 0

    running = start_word_count(tmp_path, bootstrap)
    try:
        send(LINES)
        wait_until(counts.read, 90, "the first counts")
        send(LINES)
        running.send_signal(signal.SIGKILL)
        running.wait(120)
        send(LINES)
        running = start_word_count(tmp_path, bootstrap)
        wait_until(lambda: counts.read() == expected, 120, f"all counts: {counts.newest} of {expected}")
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait(120)
        counts.close()
    assert counts.repeated == []
