"""The producer of columns, on the embedded log and on Apache Kafka: what is committed is there once, and nothing else."""

import random
import signal
import threading
import uuid
from contextlib import closing

import msgspec
import pyarrow as pa
import pytest

from headwater.access import Access
from headwater.client.bulk import librdkafka
from headwater.client.bulk.choose import transactions
from headwater.client.bulk.librdkafka import LibraryProducer
from headwater.client.bulk.producer import BulkProducer
from headwater.client.client import Client, producer
from headwater.client.partitioner import murmur2
from headwater.clock import SystemClock
from headwater.errors import FencedError, MachineError, UsageError
from sink.proxy import Proxy
from support.servers import both_logs, free_port, wait_settled


@pytest.fixture
def topic():
    return f"bulk-{uuid.uuid4().hex[:8]}"


def made(bootstrap, topic, partitions=3):
    client = Client(bootstrap)
    client.ensure_topics([topic], partitions)
    client.close()


def held(bootstrap, topic):
    """By partition, the committed records of a topic."""
    with closing(Client(bootstrap)) as client:
        wait_settled(client, topic)
        found: dict[int, list] = {}
        for each in client.read([topic]):
            found.setdefault(each.partition(), []).append((each.key(), each.value()))
        return found


def claimed(bootstrap, name, kind=BulkProducer, wait_s=60.0):
    mine = kind(bootstrap, name, timeout_ms=60_000, wait_s=wait_s, clock=SystemClock())
    mine.claim()
    return closing(mine)


CUTS = 10
both_producers = pytest.mark.parametrize("kind", [BulkProducer, LibraryProducer], ids=["ours", "library"])
"""For what is promised by both."""


def written(mine, topic, value):
    mine.send(topic, [b"k"], [value])
    mine.commit()


def numbered(first, count, size=20):
    numbers = range(first, first + count)
    return [b"key %d" % (n % 50) for n in numbers], [b"%d " % n + bytes(size) for n in numbers]


@both_logs
@both_producers
def test_a_transaction_is_there_in_order_and_where_java_would_put_it(bootstrap, topic, kind):
    made(bootstrap, topic)
    keys, values = numbered(0, 40_000, 200)
    with claimed(bootstrap, topic, kind) as mine:
        mine.begin()
        for start in range(0, len(keys), 7_000):
            mine.send(topic, keys[start : start + 7_000], pa.array(values[start : start + 7_000]))
        mine.send(topic, [None, b"gone"], [b"without a key", None])
        ends = mine.flush()
        mine.commit()
    found = held(bootstrap, topic)
    assert {(topic, partition): len(rows) for partition, rows in found.items()} == ends
    for partition, rows in found.items():
        wanted = [row for row in zip(keys, values, strict=True) if murmur2(row[0]) % 3 == partition]
        assert [row for row in rows if row[0] not in {None, b"gone"}] == wanted
    assert (
        sum(rows.count((None, b"without a key")) + rows.count((b"gone", None)) for rows in found.values())
        == 2
    )


@both_logs
@both_producers
def test_many_small_transactions_follow_each_other(bootstrap, topic, kind):
    made(bootstrap, topic, 1)
    with claimed(bootstrap, topic, kind) as mine:
        for number in range(30):
            mine.begin(topic)
            mine.send(topic, [b"k"], [b"%d" % number])
            mine.commit()
    assert [value for _, value in held(bootstrap, topic)[0]] == [b"%d" % n for n in range(30)]


@both_logs
@both_producers
def test_what_is_aborted_is_not_there_and_the_name_is_claimed_before_work_continues(bootstrap, topic, kind):
    made(bootstrap, topic)
    with claimed(bootstrap, topic, kind) as mine:
        mine.begin()
        mine.send(topic, *numbered(0, 5_000, 500))
        mine.abort()
        with pytest.raises(MachineError, match="has not claimed its name"):
            mine.begin()
        mine.claim()
        mine.begin()
        mine.send(topic, [b"k"], [b"v"])
        mine.commit()
    assert [row for rows in held(bootstrap, topic).values() for row in rows] == [(b"k", b"v")]


@both_logs
@both_producers
def test_a_successor_shuts_it_out_and_ends_what_it_left_open(bootstrap, topic, kind):
    made(bootstrap, topic)
    with claimed(bootstrap, topic, kind) as old:
        old.begin()
        old.send(topic, *numbered(0, 100))
        old.flush()
        with claimed(bootstrap, topic, kind) as new:
            with pytest.raises(FencedError):
                old.commit()
            new.begin()
            new.send(topic, [b"k"], [b"new"])
            new.commit()
    assert [row for rows in held(bootstrap, topic).values() for row in rows] == [(b"k", b"new")]


@both_logs
def test_it_shuts_out_and_is_shut_out_by_other_clients(bootstrap, topic):
    """The name of a producer is the log's, not the library's: an application may change from one to the other."""
    made(bootstrap, topic, 1)
    settings = {"transactional.id": topic, "message.timeout.ms": 60_000}
    theirs = producer(bootstrap, **settings)
    theirs.init_transactions(30)
    theirs.begin_transaction()
    theirs.produce(topic, b"theirs", b"k")
    theirs.flush(30)
    with claimed(bootstrap, topic) as mine:
        mine.begin()
        mine.send(topic, [b"k"], [b"ours"])
        mine.commit()
        again = producer(bootstrap, **settings)
        again.init_transactions(30)
        mine.begin()
        mine.send(topic, [b"k"], [b"late"])
        with pytest.raises(FencedError):
            mine.commit()
    assert held(bootstrap, topic) == {0: [(b"k", b"ours")]}


@both_logs
@both_producers
def test_a_record_that_the_topic_never_takes_is_named(bootstrap, topic, kind):
    made(bootstrap, topic)
    with claimed(bootstrap, topic, kind) as mine:
        mine.begin()
        noise = random.Random(1).randbytes(3_000_000)
        with pytest.raises(UsageError, match="does not take a record as large"):
            written(mine, topic, noise)
        mine.abort()
    assert held(bootstrap, topic) == {}


def test_a_topic_that_is_not_there_is_named(bootstrap):
    with claimed(bootstrap, "unknown", wait_s=0.3) as mine:
        mine.begin()
        with pytest.raises(
            MachineError, match=r"topic 'not-there' are not known; got .* UNKNOWN_TOPIC_OR_PARTITION"
        ):
            mine.send("not-there", [b"k"], [b"v"])


def test_a_log_that_is_away_is_named_when_the_time_is_up():
    mine = BulkProducer(f"127.0.0.1:{free_port()}", "unknown", wait_s=0.3)
    with pytest.raises(MachineError, match="the log does not answer unknown"):
        mine.claim()
    mine.close()


def test_what_is_closed_stays_closed(bootstrap, topic):
    made(bootstrap, topic)
    with claimed(bootstrap, topic) as mine:
        mine.begin()
        mine.close()
        with pytest.raises(MachineError, match="were closed"):
            mine.send(topic, [b"k"], [b"v"])


def test_connections_that_break_again_and_again_lose_and_double_nothing(own_broker, topic):
    """A proxy before the broker drops everything again and again."""
    made(own_broker.bootstrap, topic)
    proxy = Proxy(own_broker.port)
    proxy.join()
    stop = threading.Event()

    def cut():
        while not stop.wait(0.15):
            proxy.cut()
            proxy.join()

    cutter = threading.Thread(target=cut)
    with closing(Through(f"127.0.0.1:{proxy.port}", topic, proxy.port)) as mine:
        mine.claim()
        cutter.start()
        try:
            number = 0
            while mine.losses < CUTS:
                mine.begin()
                for part in range(5):
                    mine.send(topic, *numbered(number * 10_000 + part * 2_000, 2_000, 300))
                mine.commit()
                number += 1
                assert number < 500, "nothing is cut"
        finally:
            stop.set()
            cutter.join()
            proxy.cut()
    found = held(own_broker.bootstrap, topic)
    keys, values = numbered(0, number * 10_000, 300)
    assert len(keys) == sum(map(len, found.values()))
    for partition, rows in found.items():
        assert rows == [row for row in zip(keys, values, strict=True) if murmur2(row[0]) % 3 == partition]


class Through(BulkProducer):
    """Reaches every broker at one port, whatever the log says."""

    def __init__(self, log, name, port):
        super().__init__(log, name)
        self._cluster._connection = self._by_port  # the seam: where a broker is
        self._port = port

    @property
    def losses(self):
        return self._cluster.losses

    def _by_port(self, place, known):
        return type(self._cluster)._connection(self._cluster, (place[0], self._port), known)


def test_a_transaction_continues_when_a_broker_that_was_killed_comes_back(own_broker, topic):
    made(own_broker.bootstrap, topic)
    keys, values = numbered(0, 60_000, 300)
    with claimed(own_broker.bootstrap, topic) as mine:
        for number in range(3):
            mine.begin()
            for start in range(number * 20_000, (number + 1) * 20_000, 2_000):
                mine.send(topic, keys[start : start + 2_000], values[start : start + 2_000])
                if start % 20_000 == 8_000:
                    own_broker.end(signal.SIGKILL)
                    own_broker.start()
            mine.commit()
    found = held(own_broker.bootstrap, topic)
    for partition, rows in found.items():
        assert rows == [row for row in zip(keys, values, strict=True) if murmur2(row[0]) % 3 == partition]


def test_a_log_with_users_and_tls_lets_it_in(guarded_broker, topic):
    _, settings = guarded_broker
    made(settings.access, topic, 1)
    with claimed(settings.access, topic) as mine:
        mine.begin()
        mine.send(topic, [b"k"], [b"v"])
        mine.commit()
    assert held(settings.access, topic) == {0: [(b"k", b"v")]}


def test_a_wrong_password_is_said_at_once(guarded_broker):
    _, settings = guarded_broker
    wrong = BulkProducer(msgspec.structs.replace(settings.access, password="guess"), "stranger")
    with pytest.raises(MachineError, match="will not let us in"):
        wrong.claim()
    wrong.close()


def test_the_library_is_sent_no_more_than_its_queue_holds_so_that_the_order_stays(
    bootstrap, topic, monkeypatch
):
    made(bootstrap, topic, 1)
    monkeypatch.setitem(librdkafka.SETTINGS, "queue.buffering.max.messages", 25_000)
    monkeypatch.setattr(librdkafka, "UNSENT_BYTES_MAX", 2 << 20)
    keys, values = numbered(0, 100_000, 100)
    with claimed(bootstrap, topic, LibraryProducer) as theirs:
        theirs.begin()
        theirs.send(topic, keys, values)
        theirs.commit()
    assert held(bootstrap, topic)[0] == list(zip(keys, values, strict=True))


def test_security_that_only_the_library_knows_is_left_to_it():
    known = {"sasl.mechanism": "SCRAM-SHA-512", "client.id": "me", "java.sasl.login.class": "x"}
    assert isinstance(transactions(Access("h:1", user="u", options=known), "x"), BulkProducer)
    for other in ({"sasl.mechanism": "GSSAPI"}, {"librdkafka.sasl.oauthbearer.method": "oidc"}):
        made = transactions(Access("h:1", user="u", options=other), "x")
        assert isinstance(made, LibraryProducer)
        made.close()
