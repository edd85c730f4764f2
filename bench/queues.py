"""make bench-queue: queues of RabbitMQ, Apache Kafka and ours, with the same work, in one run.

Publish, process and acknowledge messages of 1 KB with sixteen workers and an empty handler. RabbitMQ: a durable queue, persistent messages,
publisher confirms, manual acknowledgements, prefetch 250, with its Java client and the faster of pika and aio-pika. Apache Kafka: a share group of
sixteen of its Java consumers. Ours: the same Java consumers, and a worker in Python. Each round measures every server in turn, and the medians
count. A peer is met by the setting that promises the same: RabbitMQ, which syncs before it confirms, by flush = "commit", and Apache Kafka, which does
not sync, by flush = "os".
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from log import cpu_seconds
from rabbit import RabbitProcess
from results import Figure, save
from support.servers import BrokerProcess, KafkaProcess, create_topic

ROOT = Path(__file__).parent.parent
MESSAGES = int(os.environ.get("MESSAGES", "200000"))
BACKLOG = int(os.environ.get("BACKLOG", str(MESSAGES * 5)))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SHORT = min(20_000, MESSAGES)
PARTITIONS = 4
KEYS = 10_000
SLOW_MS = 100
LATENCY_MESSAGES_MAX = 50_000
RABBIT, KAFKA, COMMIT, OS = "RabbitMQ 3.10", "Apache Kafka 4.3.1", "ours, commit", "ours, os"
RABBIT_PYTHON = os.environ.get("RABBIT_PYTHON", str(ROOT / ".venv-rabbit" / "bin" / "python"))
JAVA_FOLDER = ROOT / ".cache" / "queue"
Server = RabbitProcess | KafkaProcess | BrokerProcess
Found = dict[str, float]


class Driver:
    """A process that takes commands as lines and answers each with a line of JSON."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
        )

    def say(self, *words: object) -> None:
        print(*words, file=self._process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            raise RuntimeError(f"{self._process.args} has ended")
        return json.loads(line)

    def ask(self, *words: object) -> dict[str, Any]:
        self.say(*words)
        return self.hear()

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)


def java(server: Server) -> list[str]:
    kind, address = (
        ("rabbit", server.address) if isinstance(server, RabbitProcess) else ("share", server.bootstrap)
    )
    classes = f"{JAVA_FOLDER}/classes:{JAVA_FOLDER}/lib/*"
    return ["java", "-Xmx1g", "-XX:+UseSerialGC", "-cp", classes, "Queues", kind, address]


def python(server: Server, library: str) -> list[str]:
    if isinstance(server, RabbitProcess):
        return [RABBIT_PYTHON, "queue_rabbit.py", library, server.address]
    return [sys.executable, "queue_worker.py", server.bootstrap, *filter(None, [library])]


@contextlib.contextmanager
def driven(command: list[str]) -> Iterator[Driver]:
    driver = Driver(*command)
    try:
        yield driver
    finally:
        driver.end()


# ---- queues ----------------------------------------------------------------------------------------------


def new_queue(server: Server, publisher: Driver, *groups: str, **settings: str) -> str:
    """An empty queue; in a log, a topic and the share groups that read it from its start."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    if isinstance(server, RabbitProcess):
        publisher.ask("declare", name)
        return name
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})
    create_topic(admin, name, PARTITIONS)
    for group in groups or ("",):
        changes = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in {"share.auto.offset.reset": "earliest", **settings}.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, name + group, incremental_configs=changes)
        admin.incremental_alter_configs([resource])[resource].result(30)
    return name


def drop_queue(server: Server, publisher: Driver, name: str) -> None:
    if isinstance(server, RabbitProcess):
        publisher.ask("delete", name)
    else:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 3})  # kept until the answer
        admin.delete_topics([name])[name].result(30)


# ---- measures --------------------------------------------------------------------------------------------


def flow(server: Server, publisher: Driver, worker: Driver | None, messages: int, rate: float = 0) -> Found:
    """Publishes, processes and acknowledges; by the publisher's own workers if there is no other."""
    queue = new_queue(server, publisher)
    os.sync()  # what was written before must not be written back during the next measure
    before = cpu_seconds(server.pid)
    if worker is None:
        answer = publisher.ask("flow", queue, queue, messages, rate)
    else:
        worker.say("drain", queue, queue, messages)
        publisher.ask("prime", queue)
        worker.hear()
        publisher.ask("fill", queue, messages, 0, rate)
        answer = worker.hear()
    cpu = cpu_seconds(server.pid) - before
    drop_queue(server, publisher, queue)
    return {
        "rate": messages / answer["seconds"],
        "cpu": cpu / messages * 1e6,
        "p50": answer.get("p50_ms", 0.0),
        "p99": answer.get("p99_ms", 0.0),
    }


def drain(
    server: Server, publisher: Driver, worker: Driver | None, messages: int, keys: int = 0, **settings: str
) -> float:
    """Messages a second out of a queue in which so many wait."""
    queue = new_queue(server, publisher, **settings)
    publisher.ask("fill", queue, messages, keys, 0)
    os.sync()
    if worker is None:
        answer = publisher.ask("drain", queue, queue, messages)
    else:
        answer = worker.ask("drain", queue, queue, messages)
    drop_queue(server, publisher, queue)
    return messages / answer["seconds"]


def beside_slow(server: BrokerProcess, publisher: Driver, messages: int) -> tuple[float, float]:
    """Messages a second of a group alone, and beside another one whose consumer is slow."""
    alone = flow(server, publisher, None, messages)["rate"]
    queue = new_queue(server, publisher, "", "-slow")
    publisher.ask("slow", queue, f"{queue}-slow", SLOW_MS)
    answer = publisher.ask("flow", queue, queue, messages, 0)
    return alone, messages / answer["seconds"]


def best_python(server: RabbitProcess, publisher: Driver) -> str:
    """Which of RabbitMQ's two libraries is the faster one."""
    rates = {}
    for library in ("pika", "aio-pika"):
        with driven(python(server, library)) as worker:
            rates[library] = flow(server, publisher, worker, SHORT)["rate"]
    print("faster of", "  ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items()), flush=True)
    return max(rates, key=rates.get)


def throughput(servers: dict[str, Server], found: dict[str, dict[str, list[float]]]) -> None:
    """All servers in turns, with clients in Java and in Python."""
    with contextlib.ExitStack() as stack:
        publishers = {name: stack.enter_context(driven(java(server))) for name, server in servers.items()}
        library = best_python(servers[RABBIT], publishers[RABBIT])
        workers = {
            name: stack.enter_context(driven(python(server, library if name == RABBIT else "")))
            for name, server in servers.items()
            if name != KAFKA
        }
        for number in range(ROUNDS + 1):
            rounds: dict[str, Found] = {}
            for name, server in servers.items():
                rounds[name] = flow(server, publishers[name], None, MESSAGES)
            for name, worker in workers.items():
                rounds[f"{name}, Python"] = flow(servers[name], publishers[name], worker, MESSAGES // 4)
            half = rounds[RABBIT]["rate"] / 2
            few = min(MESSAGES, LATENCY_MESSAGES_MAX)
            for name, server in servers.items():
                rounds[f"{name}, half"] = flow(server, publishers[name], None, few, half)
            half = rounds[f"{RABBIT}, Python"]["rate"] / 2
            for name, worker in workers.items():
                rounds[f"{name}, Python, half"] = flow(servers[name], publishers[name], worker, few, half)
            for name, values in rounds.items():
                shown = "  ".join(f"{key} {value:,.3g}" for key, value in values.items())
                print(f"round {number} {name:28} {shown}", flush=True)
                if number:  # the first round warms up all of them
                    for key, value in values.items():
                        found[name][key].append(value)


def ours_alone(server: BrokerProcess, found: dict[str, dict[str, list[float]]]) -> None:
    """A backlog, order, and a slow neighbour, on our own server."""
    with (
        driven(java(server)) as publisher,
        driven(python(server, "")) as worker,
        driven(python(server, "key")) as ordered,
    ):
        for number in range(ROUNDS + 1):
            short = drain(server, publisher, None, SHORT)
            values = {
                "short": short,
                "backlog": drain(server, publisher, None, BACKLOG if number else SHORT),
                "unordered": drain(server, publisher, worker, MESSAGES // 4, KEYS),
                "ordered": drain(server, publisher, ordered, MESSAGES // 4, KEYS),
                "unordered java": drain(
                    server, publisher, None, MESSAGES, KEYS, **{"headwater.queue": "true"}
                ),
                "ordered java": drain(
                    server, publisher, None, MESSAGES, KEYS, **{"headwater.order.by": "key"}
                ),
            }
            values["alone"], values["beside"] = beside_slow(server, publisher, MESSAGES)
            print(
                f"round {number}",
                "  ".join(f"{key} {value:,.0f}/s" for key, value in values.items()),
                flush=True,
            )
            if number:
                for key, value in values.items():
                    found["own"][key].append(value)


def _beside(
    of: Callable[[str, str], float], ours: str, peer: str, how: str, goal: float | None
) -> list[Figure]:
    """What a server and its clients can do, and what it costs."""
    name = peer.partition(",")[0]
    pair = (ours, peer)
    late = (f"{ours}, half", f"{peer}, half")
    p99_goal = None if goal is None else 1.0
    return [
        Figure(
            f"publish, process, acknowledge, {how}",
            *(of(each, "rate") for each in pair),
            name,
            "messages/s",
            goal,
        ),
        Figure(
            f"CPU of the broker, {how}", *(of(each, "cpu") for each in pair), name, "µs/message", goal, False
        ),
        Figure(
            f"publish to handler p99, half load, {how}",
            *(of(each, "p99") for each in late),
            name,
            "ms",
            p99_goal,
            False,
        ),
    ]


def figures(found: dict[str, dict[str, list[float]]]) -> list[Figure]:
    def of(name: str, key: str) -> float:
        return statistics.median(found[name][key])

    rows: list[Figure] = []
    for ours, flush in ((COMMIT, "commit"), (OS, "os")):
        for peer, equal, goal in ((RABBIT, COMMIT, 3.0), (KAFKA, OS, 1.0)):
            rows += _beside(
                of, ours, peer, f'Java clients, flush = "{flush}"', goal if ours == equal else None
            )
        pair = f"{ours}, Python", f"{RABBIT}, Python"
        rows += _beside(of, *pair, f'Python clients, flush = "{flush}"', 3.0 if ours == COMMIT else None)
    own = (
        (f"a backlog of {BACKLOG:,} drained", "backlog", "short", f"a queue of {SHORT:,}", 0.9),
        (f"order by {KEYS:,} keys, worker", "ordered", "unordered", "without order", 0.7),
        (f"order by {KEYS:,} keys, Java consumers", "ordered java", "unordered java", "without order", 0.7),
        ("beside a group whose consumer is slow", "beside", "alone", "alone", 0.95),
    )
    return rows + [
        Figure(measure, of("own", ours), of("own", peer), name, "messages/s", goal)
        for measure, ours, peer, name, goal in own
    ]


def main() -> None:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as folder:
        servers: dict[str, Server] = {
            RABBIT: RabbitProcess(Path(folder) / "rabbit"),
            KAFKA: KafkaProcess(Path(folder) / "kafka", heap="1g", java=["-XX:+UseG1GC"]),
            COMMIT: BrokerProcess(Path(folder) / "commit", "--flush", "commit"),
            OS: BrokerProcess(Path(folder) / "os", "--flush", "os"),
        }
        try:
            for server in servers.values():
                server.start()
            throughput(servers, found)
            ours_alone(servers[OS], found)
        finally:
            for server in servers.values():
                server.end()
    rows = figures(found)
    if MESSAGES >= 100_000:
        save("queue", rows)
    else:
        for row in rows:
            print(
                f"{row.measure:70} {row.ours:>12,.4g} {row.peer:>12,.4g} {row.unit:12} {row.ratio:5.2f}x of {row.goal}"
            )


if __name__ == "__main__":
    main()
