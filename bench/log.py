"""make bench-log: the embedded broker and Apache Kafka under the same clients, in one run.

Each round measures every server in turn, and the median of the rounds counts, so that a wandering machine
disturbs all of them alike.
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import load
from results import Figure, save
from support.servers import BrokerProcess, KafkaProcess

ROUNDS = 5
RECORDS = 1_500_000
WIDE_RECORDS = 300_000
LATENCY_RECORDS = 1_500
COMMITS = 300
PEER = "Apache Kafka 4.3.1"

GOALS = {
    "produce": ("produce 100 B, one partition, acks all", "records/s", 1.0),
    "wide": ("produce 1 KB, 12 partitions, 4 producers, acks all", "records/s", 1.0),
    "cpu": ("broker CPU to produce and fetch a million records", "CPU-s", 2.0),
    "p50": ("end-to-end latency p50, linger 0", "ms", 2.5),
    "p99": ("end-to-end latency p99, linger 0", "ms", 5.0),
    "java": ("consume with Kafka's consumer-perf-test (Java)", "records/s", 0.8),
    "commits": ("transactions of 100 records", "commits/s", 1.0),
}
LOWER_IS_BETTER = {"cpu", "p50", "p99"}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure(server: BrokerProcess | KafkaProcess) -> dict[str, float]:
    """One round of everything on one server."""
    where, found = server.bootstrap, {}
    topic = load.new_topic(where)
    os.sync()  # what was written before must not be written back during the next measure
    before = cpu_seconds(server.pid)
    found["produce"] = load.produce(where, topic, RECORDS)
    load.consume(where, topic, RECORDS)
    found["cpu"] = (cpu_seconds(server.pid) - before) / RECORDS * 1e6
    found["java"] = load.consume_java(where, topic, RECORDS)
    os.sync()
    found["wide"] = load.produce_wide(where, WIDE_RECORDS)
    os.sync()
    found["p50"], found["p99"] = load.latencies(where, LATENCY_RECORDS)
    found["commits"] = load.transactions(where, COMMITS)
    load.delete_topics(where)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        servers = {
            "os": BrokerProcess(Path(folder) / "os", "--flush", "os"),
            "commit": BrokerProcess(Path(folder) / "commit", "--flush", "commit"),
            "kafka": KafkaProcess(Path(folder) / "kafka", heap="1g", java=["-XX:+UseG1GC"]),
        }
        ready, memory = {}, {}
        for name, server in servers.items():
            start = time.perf_counter()
            server.start()
            ready[name] = time.perf_counter() - start
            memory[name] = resident_mb(server.pid)
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for number in range(ROUNDS + 1):
            for name, server in servers.items():
                values = measure(server)
                print(
                    f"round {number} {name:7}",
                    "  ".join(f"{key} {value:,.3g}" for key, value in values.items()),
                    flush=True,
                )
                if number:  # the first round warms up all of them
                    for key, value in values.items():
                        found[name][key].append(value)
        for server in servers.values():
            server.end(signal.SIGTERM)
    figures = []
    for flush in ("os", "commit"):
        for key, (what, unit, goal) in GOALS.items():
            ours, peer = statistics.median(found[flush][key]), statistics.median(found["kafka"][key])
            higher = key not in LOWER_IS_BETTER
            asked = goal if flush == "os" else None
            figures.append(Figure(f'{what}, flush = "{flush}"', ours, peer, PEER, unit, asked, higher))
    lower = {"higher_is_better": False}
    figures.append(Figure("start to ready", ready["os"], ready["kafka"], PEER, "s", 10, **lower))
    figures.append(
        Figure("resident memory, idle", memory["os"], memory["kafka"], PEER, "MB", 1 / 0.15, **lower)
    )
    save("log", figures)


if __name__ == "__main__":
    main()
