"""The embedded log on a disk without room: it refuses, serves, says so once, and continues when there is room."""

import signal

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from headwater.client.client import Client, admin, producer
from support.servers import BrokerProcess, wait_until
from support.smalldisk import SmallDisk, small_disk

DISK_BYTES = 8 << 20
RECORD_BYTES = 5_000
SEGMENT = {"segment.bytes": str(1 << 20)}
"""Small, so that segments are closed while there is no room for their indexes."""
FULL = "partition t-0: the disk is full; records are refused until it has space"
ROUNDS_MAX = 20


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def server(disk, tmp_path):
    process = BrokerProcess(disk.folder / "data", "--flush", "commit")
    process.log = tmp_path / "broker.log"
    process.start()
    yield process
    if process._process.poll() is None:
        process.end(signal.SIGKILL)


class Sender:
    """A producer, and what the log has answered for each record."""

    def __init__(self, bootstrap: str, *, patience_ms: int = 4_000) -> None:
        self._producer = producer(
            bootstrap, **{"message.timeout.ms": patience_ms, "batch.num.messages": 20, "linger.ms": 1}
        )
        self.kept: list[bytes] = []
        self.refused: list[bytes] = []

    def send(self, word: str, count: int = 1) -> None:
        def delivered(error, message):
            (self.refused if error else self.kept).append(message.value())

        for number in range(count):
            value = f"{word} {number} ".encode().ljust(RECORD_BYTES, b".")
            self._producer.produce("t", value, on_delivery=delivered)
        assert self._producer.flush(30) == 0


def create(server: BrokerProcess, topic: str) -> None:
    asking = admin(server.bootstrap)
    asking.create_topics([NewTopic(topic, 1, 1, config=SEGMENT)])[topic].result(60)


def read(server: BrokerProcess) -> list[bytes]:
    return [record.value() for record in Client(server.bootstrap).read(["t"])]


def fill(server: BrokerProcess, disk: SmallDisk) -> Sender:
    """Writes until there is no room, in a topic of small segments; nothing at all can be written then."""
    create(server, "t")
    disk.fill(leave_bytes=DISK_BYTES // 2)
    sender = Sender(server.bootstrap)
    for number in range(ROUNDS_MAX):
        sender.send(f"first {number}", 500)
        if FULL in server.log.read_text():
            break
    assert sender.kept
    assert sender.refused
    disk.fill()
    return sender


def test_a_full_disk_loses_nothing_that_was_acknowledged_and_is_over_when_there_is_room(server, disk):
    sender = fill(server, disk)

    assert read(server) == sender.kept
    with pytest.raises(KafkaException, match="No space left"):
        create(server, "u")
    disk.empty()
    again = Sender(server.bootstrap, patience_ms=20_000)
    again.send("later", 20)

    assert again.refused == []
    assert read(server) == sender.kept + again.kept
    create(server, "u")
    said = server.log.read_text()
    assert said.count(FULL) == 1
    assert said.count("partition t-0: the disk has space again") == 1
    assert "Traceback" not in said
    assert "offline" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_stops_and_starts_on_a_full_disk(server, disk, number):
    sender = fill(server, disk)

    assert server.end(number) == (0 if number == signal.SIGTERM else -number)
    server.start()
    assert read(server) == sender.kept
    disk.empty()
    again = Sender(server.bootstrap, patience_ms=20_000)
    again.send("later", 20)
    assert server.end() == 0
    server.start()

    assert read(server) == sender.kept + again.kept
    assert "Traceback" not in server.log.read_text()


def test_a_transaction_that_found_no_room_is_whole_or_not_there_at_all(server, disk):
    sender = fill(server, disk)
    disk.empty()
    writer = producer(
        server.bootstrap, **{"transactional.id": "x", "message.timeout.ms": 20_000, "batch.num.messages": 5}
    )
    writer.init_transactions(20)
    writer.begin_transaction()
    disk.fill(leave_bytes=4 * RECORD_BYTES)
    for number in range(40):
        writer.produce("t", f"whole {number} ".encode().ljust(RECORD_BYTES, b"."))
    writer.poll(1)
    assert read(server) == sender.kept  # none of it can be seen before it is committed
    disk.empty()
    writer.commit_transaction(30)

    found = read(server)
    assert found[: len(sender.kept)] == sender.kept
    assert len(found) == len(sender.kept) + 40


def test_a_read_only_data_folder_is_reported_in_one_line(server, disk):
    sender = fill(server, disk)
    disk.empty()
    assert server.end() == 0
    disk.forbid()
    server.log.write_text("")
    server.launch()
    wait_until(lambda: server._process.poll() is not None, 20, "the end of the broker")

    assert server._process.poll() == 5
    said = server.log.read_text()
    assert "cannot be written" in said
    assert "Read-only file system" in said
    assert "Traceback" not in said
    disk.allow()
    server.start()
    assert read(server) == sender.kept
