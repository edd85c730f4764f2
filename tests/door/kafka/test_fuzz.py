"""Mutated requests, cut frames, giant lengths and slow writers: the broker says why it closes, and continues to serve others.

FUZZ_REQUESTS sets how many requests are sent, FUZZ_SEED which ones.
"""

import contextlib
import os
import random
import socket
import struct
from pathlib import Path

import pytest

from headwater.door.kafka.handlers import HANDLERS
from headwater.protocol.kafka.codec import layout
from headwater.protocol.kafka.layouts import Field
from support.servers import BrokerProcess, wait_until

REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "5000"))
SEED = int(os.environ.get("FUZZ_SEED", "11"))
REQUESTS_PER_CONNECTION = 20


def random_value(lay, field: Field, version: int, path: str, chance: random.Random):
    if field.array:
        return [random_item(lay, field, version, path, chance) for _ in range(chance.choice([0, 1, 1, 2]))]
    return random_item(lay, field, version, path, chance)


def random_item(lay, field: Field, version: int, path: str, chance: random.Random):
    if field.type == "struct":
        return random_message(lay, field.fields, version, path, chance)
    if field.type == "bool":
        return chance.random() < 0.5
    if field.type.startswith(("int", "uint")):
        bits = int(field.type.lstrip("uint"))
        return chance.choice([0, 1, 2, 5, 2 ** (bits - 2)])
    if field.type == "string":
        return chance.choice(["t", "g", "", "x" * 30, "range", "consumer"])
    if field.type == "uuid":
        return lay_uuid(chance)
    return chance.randbytes(chance.randint(0, 100))


def lay_uuid(chance: random.Random):
    import uuid

    return uuid.UUID(bytes=chance.randbytes(16))


def random_message(lay, fields: list[Field], version: int, path: str, chance: random.Random):
    present = [f for f in fields if version in f.versions]
    values = {f.name: random_value(lay, f, version, f"{path}.{f.name}".lstrip("."), chance) for f in present}
    return lay.struct(path)(**values)


def request(chance: random.Random) -> bytes:
    """A frame that is right in form, before it is mutated; waiting requests are kept short."""
    handler = chance.choice([h for h in HANDLERS.values() if h.request.api.name != "DeleteTopics"])
    version = chance.randint(handler.first, handler.last)
    name = handler.request.api.name
    lay = layout(name, "request")
    message = random_message(lay, lay.fields, version, "", chance)
    if name == "Fetch":
        message.max_wait_ms = 0
    body = b"".join(lay.encode(version, message))
    tags = b"\x00" if version in handler.request.api.flexible else b""
    head = struct.pack(">hhi", handler.key, version, 7) + struct.pack(">h", 4) + b"fuzz" + tags
    return struct.pack(">i", len(head) + len(body)) + head + body


def mutate(frame: bytes, chance: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 8])):
        if len(data) < 6:
            break
        way = chance.random()
        at = chance.randrange(4, len(data)) if chance.random() < 0.97 else chance.randrange(len(data))
        if way < 0.7:
            data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif way < 0.85:
            del data[at:]
            data += b"\x00" * 4
        else:
            data[at:at] = chance.randbytes(chance.randint(1, 8))
    return bytes(data)


@pytest.fixture
def fuzzed(tmp_path: Path):
    process = BrokerProcess(tmp_path / "data", "--flush", "os")
    process.start()
    yield process
    assert process.end() == 0


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def alive(port: int) -> bool:
    """A new client gets its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(struct.pack(">ihhih", 10, 18, 0, 42, -1))
        return client.recv(8)[4:] == struct.pack(">i", 42)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def drain(client: socket.socket) -> None:
    client.setblocking(False)
    try:
        while client.recv(65536):
            pass
    except (BlockingIOError, ConnectionError):
        pass
    client.setblocking(True)
    client.settimeout(10)


def send_some(port: int, chance: random.Random) -> int:
    """Mutated requests over one connection until the broker has had enough; how many it took."""
    sent = 0
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as client,
        contextlib.suppress(ConnectionError),
    ):
        for _ in range(REQUESTS_PER_CONNECTION):
            client.sendall(mutate(request(chance), chance))
            sent += 1
            drain(client)
    return sent


def test_mutated_requests_never_end_the_broker_nor_leak(fuzzed):
    chance, files = random.Random(SEED), open_files(fuzzed.pid)
    half_way_kb = 0
    sent = 0
    while sent < REQUESTS:
        sent += send_some(fuzzed.port, chance)
        if not half_way_kb and sent >= REQUESTS // 2:
            half_way_kb = resident_kb(fuzzed.pid)

    wait_until(lambda: alive(fuzzed.port), 10, "an answer to a new client")
    assert resident_kb(fuzzed.pid) < half_way_kb * 1.2 + 10_000
    topics = len(list((fuzzed.folder / "topics").iterdir()))
    wait_until(lambda: open_files(fuzzed.pid) < files + topics * 2 + 20, 10, "closed connections")
    assert "Traceback" not in fuzzed.log.read_text()


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (struct.pack(">i", 2**31 - 1) + b"x" * 20, "impossible size"),
        (struct.pack(">i", -5) + b"x" * 20, "impossible size"),
        (struct.pack(">ihhih", 10, 999, 0, 1, -1), "unknown API key"),
        (struct.pack(">ihhih", 10, 0, 99, 1, -1), "not supported"),
        (struct.pack(">ihhih", 10, 3, 1, 1, 3000), "client id"),
    ],
)
def test_a_frame_that_cannot_be_closes_its_connection_with_the_reason_in_the_log(fuzzed, frame, said):
    with socket.create_connection(("127.0.0.1", fuzzed.port), timeout=10) as client:
        client.sendall(frame)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert alive(fuzzed.port)
    assert said in fuzzed.log.read_text()


def test_a_version_of_api_versions_from_the_future_is_answered_in_version_0(fuzzed):
    with socket.create_connection(("127.0.0.1", fuzzed.port), timeout=10) as client:
        client.sendall(struct.pack(">ihhihb", 11, 18, 77, 5, -1, 0))
        answer = client.recv(65536)
    size, correlation, error = struct.unpack_from(">iih", answer)
    assert (size, correlation, error) == (len(answer) - 4, 5, 35)


def test_writers_that_send_a_byte_at_a_time_hold_up_no_others(fuzzed):
    slow = [socket.create_connection(("127.0.0.1", fuzzed.port), timeout=10) for _ in range(50)]
    for byte in struct.pack(">ihhih", 10, 18, 0, 42, -1)[:-1]:
        for client in slow:
            client.sendall(bytes([byte]))
        assert alive(fuzzed.port)
    for client in slow:
        client.close()
