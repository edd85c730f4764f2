"""Which partition a record goes to, by name and by function, on the embedded log and on Apache Kafka."""

import uuid
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest

from headwater.client.client import Client, producer
from headwater.client.partitioner import STICKY_BYTES, chooser, murmur2, named
from headwater.errors import UsageError

KAFKAS_OWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""What Apache Kafka's own test of its murmur2 expects."""


@pytest.fixture(params=["broker", "kafka"])
def log(request):
    return request.getfixturevalue(request.param).bootstrap


@pytest.fixture
def spread(log):
    """Sends keys with a partitioner; returns where each record went, in the order of sending."""

    def send(partitioner, keys, partitions=4, value=b""):
        topic = f"partition-{uuid.uuid4().hex[:8]}"
        Client(log).ensure_topics([topic], partitions)
        sender, places = producer(log, partitioner=partitioner), {}

        def note(n, error, message):
            places[n] = error or message.partition()

        for n, key in enumerate(keys):
            sender.produce(topic, value, key, on_delivery=partial(note, n))
        assert sender.flush(30) == 0
        return [places[n] for n in range(len(keys))]

    return send


@pytest.mark.parametrize(("key", "value"), KAFKAS_OWN.items())
def test_the_hash_is_kafkas(key, value):
    assert murmur2(key) == value & 0x7FFFFFFF


def test_by_key_records_go_where_java_clients_put_them(spread):
    keys = [*KAFKAS_OWN, *(f"key {n}".encode() for n in range(100))]
    assert spread("key", keys, partitions=5) == [murmur2(key) % 5 for key in keys]


def test_round_robin_is_even_whatever_the_keys(spread):
    places = spread("round-robin", ["same"] * 40)
    assert set(Counter(places).values()) == {10}
    assert all(second == (first + 1) % 4 for first, second in pairwise(places))


def test_sticky_stays_for_a_batch_and_then_moves_on(spread):
    size = STICKY_BYTES // 8
    places = spread("sticky", ["a", "b"] * 32, value=b"x" * size)
    runs = [place for n, place in enumerate(places) if n == 0 or places[n - 1] != place]
    assert len(places) / len(runs) == pytest.approx(8, abs=1)
    assert set(places) == {0, 1, 2, 3}


def test_a_function_of_key_and_count_decides(spread):
    by_tenant = lambda key, count: 0 if key is None else murmur2(key.partition(b":")[0]) % count  # noqa: E731
    places = spread(by_tenant, ["t1:a", "t1:b", "t2:a", None])
    assert places == [murmur2(b"t1") % 4, murmur2(b"t1") % 4, murmur2(b"t2") % 4, 0]


def test_a_partition_that_is_not_there_is_refused_with_what_was_chosen(bootstrap):
    Client(bootstrap).ensure_topics(["partition.two"], 2)
    sender = producer(bootstrap, partitioner=lambda _, count: count)
    with pytest.raises(UsageError, match="did not choose a partition of the topic; got 2; expected 0 to 1"):
        sender.produce("partition.two", b"x")


def test_an_unknown_name_is_answered_with_those_that_exist():
    with pytest.raises(UsageError, match="got 'rand'; expected key, round-robin, sticky or a function"):
        chooser("rand")


def test_a_function_is_found_in_its_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def first(key, count):\n    return 0\n")
    assert named(f"{file}:first")(b"x", 3) == 0
    with pytest.raises(UsageError, match="there is no function 'second'"):
        named(f"{file}:second")
