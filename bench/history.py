"""make bench-history: a partition of 100,000 segments beside one of 1,000: writing, reading, looking up, starting, memory and files.

Segments are scaled down to a few kilobytes, so that only their number differs. Both histories are written through the log itself, without
sockets; then one broker process after the other serves them to the same client. Rounds alternate, and the best of each counts: what
the machine does beside only ever takes away. The broker's CPU time for a request is printed too: it wanders less.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from flow import Client, frame, produce, resident_mb
from headwater.log.storage.catalog import Catalog
from headwater.log.storage.disk import RealDisk
from headwater.log.storage.partition import Partition
from headwater.log.storage.topic_config import TopicConfig
from headwater.record import Record, encode_batch
from results import Figure, save
from support.servers import BrokerProcess, answers

SHORT, LONG = 1_000, 100_000
SEGMENT_BYTES = 4_000
RECORDS = 10
"""In a batch; each batch fills a segment."""
FIRST_MS = 1_700_000_000_000
TOPIC = "history"
ROUNDS = 7
REQUESTS = 600
PEER = f"{SHORT:,} segments"


class QuickDisk(RealDisk):
    """For building only: nothing is synced until the end."""

    def sync_folder(self, folder: Path) -> None:
        pass

    def replace(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)


def batch(number: int) -> bytes:
    stamp = FIRST_MS + number * 1000
    return encode_batch([Record(b"key %d" % i, b"x" * 340, (), stamp + i) for i in range(RECORDS)])


def build(folder: Path, segments: int) -> None:
    """A data folder as a clean stop leaves it."""
    catalog = Catalog(RealDisk(), folder, sync_on_commit=False, on_dirty=lambda _: None)
    config = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
    catalog.create(TOPIC, 1, config)
    place = folder / "topics" / f"{TOPIC}-0"
    partition = Partition(
        QuickDisk(), place, TopicConfig(segment_bytes=SEGMENT_BYTES, retention_ms=-1), sync_on_commit=False
    )
    for number in range(segments):
        partition.append(memoryview(bytearray(batch(number))))
        if number % 100 == 0:
            sync_round = partition.begin_sync()
            sync_round.run()
            partition.finish_sync(sync_round)
    partition.close()


# ---- measures, as operations a second ------------------------------------------------------------------


def cpu_ms(pid: int) -> float:
    """What all threads of a process have run so far."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def rate(pid: int, operation: Callable[[int], None]) -> float:
    start, used = time.perf_counter(), cpu_ms(pid)
    for number in range(REQUESTS):
        operation(number)
    print(f"  {(cpu_ms(pid) - used) / REQUESTS:6.3f} CPU-ms", end="")
    return REQUESTS / (time.perf_counter() - start)


def fetch(offset: int) -> bytes:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    topics = [{"topic": TOPIC, "partitions": [part]}]
    return frame("Fetch", 11, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics)


def by_time(timestamp: int) -> bytes:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
    return frame("ListOffsets", 5, replica_id=-1, isolation_level=0, topics=topics)


def measures(client: Client, pid: int, segments: int) -> dict[str, float]:
    chance = random.Random(3)

    def ask(request: bytes) -> None:
        client.send(request)
        client.skip_answer()

    record = produce(TOPIC, encode_batch([Record(None, b"x" * 100, (), FIRST_MS + segments * 1000)]))
    return {
        "produce": rate(pid, lambda _: ask(record)),
        "fetch from the beginning": rate(pid, lambda n: ask(fetch(n * RECORDS))),
        "fetch at random offsets": rate(pid, lambda _: ask(fetch(chance.randrange(segments * RECORDS)))),
        "offset by time": rate(pid, lambda _: ask(by_time(FIRST_MS + chance.randrange(segments) * 1000))),
    }


def start_seconds(broker: BrokerProcess) -> float:
    begin = time.perf_counter()
    broker.start()
    return time.perf_counter() - begin


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def first_answer_ms(broker: BrokerProcess) -> float:
    begin = time.perf_counter()
    client = Client(broker.port)
    client.send(fetch(0))
    client.skip_answer()
    client.close()
    return (time.perf_counter() - begin) * 1000


def observe(folder: Path, segments: int) -> dict[str, float]:
    """One round on one history: a clean start, its work, and a clean stop."""
    broker = BrokerProcess(folder, "--flush", "os")
    found = {"start after a clean stop": start_seconds(broker)}
    first_answer_ms(broker)
    client = Client(broker.port)
    print(f"{segments:>7,}: start {cpu_ms(broker.pid):6.0f} CPU-ms; produce, fetches, time:", end="")
    found |= measures(client, broker.pid, segments)
    print()
    found["resident memory"] = resident_mb(broker.pid)
    found["open files"] = open_files(broker.pid)
    client.close()
    broker.end(signal.SIGTERM)
    assert not answers(broker.port)
    return found


def crash_start(folder: Path) -> float:
    """A start after the broker was killed after a write: it trusts what has proof of its end, and reads the rest."""
    broker = BrokerProcess(folder, "--flush", "os")
    broker.start()
    client = Client(broker.port)
    client.send(produce(TOPIC, batch(0)))
    client.skip_answer()
    client.close()
    broker.end(signal.SIGKILL)
    seconds = start_seconds(broker)
    broker.end(signal.SIGTERM)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--long", type=int, default=LONG)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        histories = {SHORT: Path(name) / "short", arguments.long: Path(name) / "long"}
        for segments, folder in histories.items():
            begin = time.perf_counter()
            build(folder, segments)
            print(f"built {segments:,} segments in {time.perf_counter() - begin:.0f} s")
        found: dict[int, dict[str, list[float]]] = {segments: {} for segments in histories}
        for number in range(arguments.rounds):
            for segments, folder in histories.items():
                for measure, value in observe(folder, segments).items():
                    found[segments].setdefault(measure, []).append(value)
                shown = "  ".join(f"{key} {values[-1]:,.4g}" for key, values in found[segments].items())
                print(f"round {number}  {segments:>7,}: {shown}")
        crashed = {segments: crash_start(folder) for segments, folder in histories.items()}
        print(f"start after a kill: {crashed}")
    short, long = found[SHORT], found[arguments.long]
    what = f"{arguments.long:,} segments"
    figures = [
        Figure(f"{measure}, {what}", max(long[measure]), max(short[measure]), PEER, "requests/s", 0.9)
        for measure in ("produce", "fetch from the beginning", "fetch at random offsets", "offset by time")
    ]
    for measure, unit, goal in (
        ("start after a clean stop", "s", 0.9),
        ("resident memory", "MB", 0.8),
        ("open files", "files", 0.9),
    ):
        pair = min(long[measure]), min(short[measure])
        figures.append(Figure(f"{measure}, {what}", *pair, PEER, unit, goal, higher_is_better=False))
    save("history", figures)


if __name__ == "__main__":
    main()
