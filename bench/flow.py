"""make bench-flow: what idle connections cost, and how long the broker's event loop is ever away from its clients.

A process of its own asks the broker for ApiVersions every millisecond while another client does the worst it can; the longest answer is
the stall, less the time for which the broker's event loop or the asking process was ready to run and the machine ran others
(``/proc/PID/schedstat``): with a quiet machine that is nothing. What the loop waits for itself, be it the disk or another thread
of the broker, counts. The longest answer as it was is printed beside it.
"""

import multiprocessing
import os
import resource
import signal
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka.admin import AdminClient, NewTopic

from headwater.protocol.kafka.codec import layout
from headwater.record import Record, encode_batch
from results import Figure, save
from support.protocol import build
from support.servers import BrokerProcess

IDLE_CONNECTIONS = 5_000
IDLE_MB_MAX = 200
STALL_MS_MAX = 20
ROUNDS = int(os.environ.get("ROUNDS", "3"))
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 42, -1)
PARTITIONS = 5_000
RETENTION_ROUND_S = 18
"""The broker looks after its partitions every 15 seconds."""


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


# ---- the probe -----------------------------------------------------------------------------------------


def kept_waiting_ms(pid: int) -> float:
    """How long the first thread of a process was ready to run while the machine ran others."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) / 1e6


def ask(port: int, pid: int, pipe: Connection) -> None:
    """Asks once a millisecond until it is stopped; answers with the longest latency, corrected and as it was, in milliseconds."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own, stall, longest = os.getpid(), 0.0, 0.0
    pipe.send("ready")
    while not pipe.poll():
        waited = kept_waiting_ms(pid) + kept_waiting_ms(own)
        start = time.perf_counter()
        client.sendall(API_VERSIONS)
        (size,) = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))
        client.recv(size, socket.MSG_WAITALL)
        latency = (time.perf_counter() - start) * 1000
        waited = kept_waiting_ms(pid) + kept_waiting_ms(own) - waited
        stall, longest = max(stall, latency - waited), max(longest, latency)
        time.sleep(0.001)
    pipe.send((stall, longest))


def stalls(broker: BrokerProcess, load: Callable[[], None]) -> tuple[float, float]:
    """The longest answer of the broker while a load is on."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=ask, args=(broker.port, broker.pid, theirs), daemon=True)
    process.start()
    ours.recv()
    load()
    ours.send("end")
    found = ours.recv()
    process.join()
    return found


# ---- loads ---------------------------------------------------------------------------------------------


class Client:
    """Frames over one socket, without a library that would slow them down."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._scratch = bytearray(1 << 20)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def skip_answer(self) -> int:
        (size,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        left = size
        while left:
            left -= self._socket.recv_into(self._scratch, min(left, len(self._scratch)))
        return size

    def close(self) -> None:
        self._socket.close()


def frame(name: str, version: int, **fields: object) -> bytes:
    request = layout(name, "request")
    body = b"".join(request.encode(version, build(request, "", fields)))
    head = struct.pack(">hhih", request.api.key, version, 1, -1)
    return struct.pack(">i", len(head) + len(body)) + head + body


def fetch(topic: str, offset: int) -> bytes:
    most = 100 << 20
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": most}
    topics = [{"topic": topic, "partitions": [part]}]
    return frame("Fetch", 11, max_wait_ms=0, min_bytes=1, max_bytes=most, session_epoch=-1, topics=topics)


def produce(topic: str, batch: bytes) -> bytes:
    topics = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    return frame("Produce", 7, acks=-1, timeout_ms=10_000, topic_data=topics)


def create(bootstrap: str, topic: str, partitions: int = 1, **config: object) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(60)


def send_megabytes(port: int, topic: str, count: int) -> None:
    client = Client(port)
    request = produce(topic, encode_batch([Record(None, b"x" * 1_000_000, (), time.time_ns() // 1_000_000)]))
    for sent in range(count):
        client.send(request)
        if sent >= 4:
            client.skip_answer()
    for _ in range(min(count, 4)):
        client.skip_answer()
    client.close()


def fetch_all(port: int, topic: str) -> None:
    """A gigabyte in fetches that ask for a hundred megabytes each."""
    client = Client(port)
    taken = 0
    while taken < 1 << 30:
        client.send(fetch(topic, 0))
        taken += client.skip_answer()
    client.close()


def block(port: int, topic: str) -> None:
    """Asks for fifty gigabytes and reads nothing."""
    clients = [Client(port) for _ in range(10)]
    for client in clients:
        client.send(fetch(topic, 0) * 50)
    time.sleep(5)
    for client in clients:
        client.close()


def fill_for_retention(broker: BrokerProcess, number: int) -> None:
    """A thousand segments that are to go at once, and a hundred megabytes of changes of which little stays."""
    now = time.time_ns() // 1_000_000
    create(broker.bootstrap, f"expires-{number}", segment_bytes=10_000, retention_ms=1)
    create(
        broker.bootstrap,
        f"compacts-{number}",
        cleanup_policy="compact",
        segment_bytes=10_000_000,
        min_cleanable_dirty_ratio=0.01,
    )
    client = Client(broker.port)
    expiring = produce(f"expires-{number}", encode_batch([Record(None, b"x" * 9_000, (), now - 60_000)]))
    changes = [Record(b"key %d" % (i % 500), b"x" * 100, (), now) for i in range(4000)]
    changed = produce(f"compacts-{number}", encode_batch(changes))
    for request, count in ((expiring, 1000), (changed, 200)):
        for _ in range(count):
            client.send(request)
            client.skip_answer()
    client.close()


# ---- measures ------------------------------------------------------------------------------------------


def idle_memory(folder: Path) -> float:
    broker = BrokerProcess(folder, "--flush", "os")
    broker.start()
    clients = []
    for _ in range(IDLE_CONNECTIONS):
        clients.append(socket.create_connection(("127.0.0.1", broker.port)))
        clients[-1].sendall(API_VERSIONS)
        clients[-1].recv(65536)
    memory = resident_mb(broker.pid)
    for client in clients:
        client.close()
    broker.end()
    return memory


def worst_stalls(folder: Path) -> dict[str, list[float]]:
    broker = BrokerProcess(folder)
    broker.start()
    create(broker.bootstrap, "large")
    send_megabytes(broker.port, "large", 200)
    found: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        create(broker.bootstrap, f"written-{number}")

        def expire(number: int = number) -> None:
            fill_for_retention(broker, number)
            time.sleep(RETENTION_ROUND_S)

        loads: dict[str, Callable[[], None]] = {
            "nothing else": lambda: time.sleep(3),
            "fetches of 100 MB": lambda: fetch_all(broker.port, "large"),
            "produce requests of 1 MB": lambda n=number: send_megabytes(broker.port, f"written-{n}", 400),
            "ten clients that never read": lambda: block(broker.port, "large"),
            f"a topic of {PARTITIONS:,} partitions is created": lambda n=number: create(
                broker.bootstrap, f"wide-{n}", PARTITIONS
            ),
            "retention and compaction at work": expire,
        }
        for name, load in loads.items():
            stall, longest = stalls(broker, load)
            print(f"round {number}  {name:45} worst {stall:8.2f} ms   as it was {longest:8.2f} ms")
            found.setdefault(name, []).append(stall)
    print(f"memory of the broker after all of it: {resident_mb(broker.pid):.0f} MB")
    broker.end(signal.SIGTERM)
    return found


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = "the limit that was set"
    with tempfile.TemporaryDirectory() as name:
        memory = idle_memory(Path(name) / "idle")
        figures = [
            Figure(
                f"broker with {IDLE_CONNECTIONS:,} idle connections: memory",
                memory,
                IDLE_MB_MAX,
                limit,
                "MB",
                1,
                higher_is_better=False,
            )
        ]
        print(f"{IDLE_CONNECTIONS} idle connections: {memory:.0f} MB")
        for name_, taken in worst_stalls(Path(name) / "stalls").items():
            ours = statistics.median(taken)
            figures.append(
                Figure(
                    f"longest stall of the event loop: {name_}",
                    ours,
                    STALL_MS_MAX,
                    limit,
                    "ms",
                    1,
                    higher_is_better=False,
                )
            )
    save("flow", figures)


if __name__ == "__main__":
    main()
