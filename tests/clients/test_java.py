"""Kafka's own command-line tools, which use the Java client."""

import subprocess
import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from support.servers import create_topic, kafka_jars


@pytest.fixture
def topic():
    return f"java-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def tool(bootstrap):
    """Runs a tool's main class against the log."""

    def run(main, *arguments, text=""):
        java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*"]
        command = [*java, f"org.apache.kafka.tools.{main}", "--bootstrap-server", bootstrap, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_topics_lines_and_groups_through_kafkas_own_tools(tool, topic):
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "3")
    assert "PartitionCount: 3" in tool("TopicCommand", "--describe", "--topic", topic)
    tool("ConsoleProducer", "--topic", topic, text="".join(f"{i}\n" for i in range(500)))
    read = tool(
        "consumer.ConsoleConsumer",
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "500",
        "--group",
        topic,
    )
    assert sorted(map(int, read.split())) == list(range(500))

    rows = [
        line.split()
        for line in tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", topic).splitlines()
    ]
    lags = {row[2]: row[5] for row in rows if row[:2] == [topic, topic]}
    assert lags == {"0": "0", "1": "0", "2": "0"}


def test_a_share_group_through_javas_share_consumer_its_admin_client_and_kafkas_tools(bootstrap, topic):
    """One program, since a JVM takes longer than all that it does here."""
    create_topic(AdminClient({"bootstrap.servers": bootstrap}), topic)
    program = Path(__file__).parent / "ShareGroups.java"
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_jars()}/*", str(program)]
    done = subprocess.run(
        [*java, bootstrap, topic, "sharers-" + topic],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    said = [" ".join(columns(line)) for line in done.stdout.splitlines() if line.strip()]
    assert said == [
        "settings {share.auto.offset.reset=earliest, share.record.lock.duration.ms=15000}",
        "resource listed true",
        "polled 0x1 1x1 2x1 3x1 4x1 5x1",
        "committed Optional.empty",
        "lock 15000",
        "again [1x2, 4x2, 5x1]",
        "group Empty members 0",
        "listed Share Empty",
        "classic false",
        "GROUP TOPIC PARTITION LAG",
        f"sharers-{topic} {topic} 0 0",
        "GROUP TOPIC PARTITION NEW-OFFSET",
        f"sharers-{topic} {topic} 0 0",
        *map(str, range(6)),
        "GROUP TOPIC PARTITION LAG",
        f"sharers-{topic} {topic} 0 0",
        "TOPIC STATUS",
        f"{topic} Successful",
        f"Deletion of requested share groups ('sharers-{topic}') was successful.",
    ], done.stderr


def columns(line):
    """Without the start offset of a group, which Apache Kafka stores only with the next change."""
    words = line.split()
    return words[:3] + words[4:] if len(words) == 5 and words[2] in {"0", "PARTITION"} else words
