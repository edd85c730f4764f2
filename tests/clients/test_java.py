"""Kafka's own command-line tools, which use the Java client."""

import subprocess
import uuid

import pytest

from servers import kafka_jars


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
    behind = {row[2]: row[5] for row in rows if row[:2] == [topic, topic]}
    assert behind == {"0": "0", "1": "0", "2": "0"}
