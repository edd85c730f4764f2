"""kcat, as Debian ships it: librdkafka 2.0, older than what confluent-kafka brings."""

import uuid

import pytest

from clients.kcat import kcat


@pytest.fixture
def topic():
    return f"kcat-{uuid.uuid4().hex[:8]}"


def test_lines_written_are_read_back_with_their_keys(bootstrap, topic):
    lines = [f"k{i}:value {i}" for i in range(1000)]
    kcat(bootstrap, "-P", "-t", topic, "-K:", text="\n".join(lines) + "\n")

    assert sorted(kcat(bootstrap, "-C", "-t", topic, "-e", "-K:").splitlines()) == sorted(lines)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
def test_compressed_lines_are_read_back(bootstrap, topic, codec):
    lines = [f"value {i}" for i in range(1000)]
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", "-z", codec, text="\n".join(lines) + "\n")

    assert kcat(bootstrap, "-C", "-t", topic, "-e").splitlines() == lines


def test_the_broker_describes_itself(bootstrap, topic):
    kcat(bootstrap, "-P", "-t", topic, text="x\n")

    listing = kcat(bootstrap, "-L")
    assert f"broker 0 at {bootstrap} (controller)" in listing
    assert f'topic "{topic}" with 2 partitions' in listing


def test_a_group_reads_everything_once(bootstrap, topic):
    kcat(bootstrap, "-P", "-t", topic, text="\n".join(map(str, range(100))) + "\n")

    first = kcat(bootstrap, "-G", topic + "-group", topic, "-e", "-X", "auto.offset.reset=earliest")
    second = kcat(bootstrap, "-G", topic + "-group", topic, "-e", "-X", "auto.offset.reset=earliest")
    assert sorted(map(int, first.split())) == list(range(100))
    assert second == ""


def test_messages_are_found_by_time(bootstrap, topic):
    kcat(bootstrap, "-P", "-t", topic, "-p", "0", text="a\nb\n")

    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:1").strip() == f"{topic} [0] offset 0"
