"""Real servers for the tests: each in its own process, on loopback, on a free port, with a folder of its own."""

import base64
import contextlib
import fcntl
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headwater.client.client import Client

both_logs = pytest.mark.parametrize(
    "bootstrap", ["broker", "kafka"], ids=["embedded", "kafka"], indirect=True
)
"""For a test whose promise depends on the log: it runs on the embedded one and on Apache Kafka, which must agree."""


LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One outside the range of outgoing connections: a server that is killed and started again finds it free."""
    first = int(LOCAL_PORTS.read_text().split()[0]) if LOCAL_PORTS.exists() else 32_768
    while True:
        port = random.randrange(10_000, first)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


PATIENCE = 4
"""By how much a machine may be slower than a quiet one before a limit of the tests is taken for a fault."""
POLL_S, POLL_S_MAX = 0.02, 0.5
"""Between two looks at a condition."""


def wait_until(condition: Callable[[], object], seconds: float = 30, what: str = "the condition") -> None:
    """Waits for a condition with a limit: the seconds that a quiet machine never needs, times our patience.

    A condition that takes long is asked less often: what it asks for needs the machine too.
    """
    limit = time.monotonic() + seconds * PATIENCE
    while True:
        asked = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        if now > limit:
            raise TimeoutError(f"{what} did not come true within {seconds * PATIENCE} s")
        time.sleep(min(max(POLL_S, 2 * (now - asked)), POLL_S_MAX))


def create_topic(admin: AdminClient, name: str, partitions: int = 1, **settings: str) -> str:
    """Makes a topic and waits until it can be used: Apache Kafka confirms one before its broker knows it and takes records for it.

    librdkafka 2.16 remembers for long that a partition has no leader when it asks in that moment, so each question is by a new client.
    """
    config = {key.replace("_", "."): value for key, value in settings.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
    places = {TopicPartition(name, number): OffsetSpec.latest() for number in range(partitions)}

    def led() -> bool:
        admin.list_topics(name, timeout=60)
        return all(end.exception(60) is None for end in admin.list_offsets(places).values())

    wait_until(led, what=f"a leader of every partition of {name}")
    return name


def wait_settled(client: Client, *topics: str) -> None:
    """Waits until readers see all of some topics: Apache Kafka writes the end of a transaction into them after it has said that it is committed."""
    wait_until(
        lambda: client.end_offsets(topics) == client.end_offsets(topics, uncommitted=True),
        what=f"the end of all transactions in {', '.join(topics)}",
    )


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class BrokerProcess:
    """``headwater broker`` as a user runs it; it can be killed and started again on the same folder and port."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder.parent / f"{folder.name}.log"

    def launch(self) -> None:
        """Starts the process, and does not wait for it."""
        command = [
            sys.executable,
            "-m",
            "headwater",
            "broker",
            "--data",
            str(self.folder),
            "--port",
            str(self.port),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([*command, *self._arguments], stdout=log, stderr=log)

    def start(self) -> None:
        self.launch()
        assert self._process is not None
        wait_until(lambda: answers(self.port) or self._process.poll() is not None, 20, "the broker's port")
        assert self._process.poll() is None, self.log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(timeout=120)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *files], capture_output=True, check=True)
    return certificate, key


CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "headwater"


def kafka_jars() -> Path:
    """Apache Kafka's jars, fetched once by Maven; the folder appears whole or not at all."""
    return _jars("kafka")


def opensearch_jars() -> Path:
    """OpenSearch's jars, and in them the class that starts a node."""
    return _jars("opensearch", "SearchNode.java")


def _jars(name: str, source: str = "") -> Path:
    recipe = Path(__file__).parent / f"{name}_jars"
    pom = recipe / "pom.xml"
    written = pom.read_bytes() + ((recipe / source).read_bytes() if source else b"")
    folder = CACHE / f"{name}-{hashlib.sha256(written).hexdigest()[:12]}"
    if not folder.exists():
        with _alone(f"{name}.lock"):  # rows of tests that start at once fetch them once
            if not folder.exists():
                _fetch(pom, recipe / source if source else None, folder)
    return folder


def _fetch(pom: Path, source: Path | None, folder: Path) -> None:
    fresh = folder.with_name(folder.name + f".{os.getpid()}")
    fetch = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    subprocess.run([*fetch, f"-DoutputDirectory={fresh}"], check=True, timeout=600)
    if source is not None:
        compile_it = ["javac", "-nowarn", "-d", str(fresh), "-cp", f"{fresh}/*", str(source)]
        subprocess.run(compile_it, check=True, timeout=120, capture_output=True)
    fresh.rename(folder)


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """One process at a time; the lock goes with the process."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


LOG4J = """
Configuration:
  Appenders:
    Console: {name: C, PatternLayout: {pattern: "[%d] %p %m (%c)%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: C}]}
"""

SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
num.partitions=2
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
log.cleaner.backoff.ms=1000
"""


SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a JVM of which little is asked: it gains nothing from the better compiler."""


class KafkaProcess:
    """Apache Kafka, one node, from Maven's jars; ``settings`` are lines of its properties that override ours."""

    def __init__(
        self, folder: Path, heap: str = "512m", java: Sequence[str] = SHORT_LIVED, settings: str = ""
    ) -> None:
        self.folder = folder
        self._settings = settings
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._java = ["java", *java, f"-Xmx{heap}", f"-Dlog4j2.configurationFile={folder}/log4j2.yaml"]
        self._java += ["-cp", f"{kafka_jars()}/*"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        if not properties.exists():
            (self.folder / "log4j2.yaml").write_text(LOG4J)
            properties.write_text(
                SERVER_PROPERTIES.format(port=self.port, controller=free_port(), folder=self.folder)
                + self._settings
            )
            # An id that began with a dash would be read as an option.
            cluster = base64.urlsafe_b64encode(b"log" + uuid.uuid4().bytes[3:]).decode().rstrip("=")
            format_command = [
                *self._java,
                "kafka.tools.StorageTool",
                "format",
                "-t",
                cluster,
                "-c",
                str(properties),
            ]
            subprocess.run(format_command, check=True, capture_output=True, timeout=400)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(properties)], stdout=log, stderr=log
            )
        wait_until(self._answers, 60, "Apache Kafka's first answer")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(timeout=120)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text()
        if not answers(self.port):
            return False
        try:
            return bool(
                AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
                .list_topics(timeout=2)
                .brokers
            )
        except KafkaException:
            return False


OPENSEARCH_YML = """
cluster.name: test-{port}
network.host: 127.0.0.1
http.port: {port}
transport.port: {transport}
discovery.type: single-node
path.data: {folder}/data
path.logs: {folder}
cluster.routing.allocation.disk.threshold_enabled: false
node.store.allow_mmap: false
"""


class OpenSearchProcess:
    """OpenSearch, one node, from Maven's jars: plain HTTP, no users."""

    def __init__(self, folder: Path, heap: str = "512m") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        jars = opensearch_jars()
        self._java = ["java", f"-Xms{heap}", f"-Xmx{heap}", *SHORT_LIVED]
        self._java += [f"-Djava.io.tmpdir={folder}/tmp", "-Dlog4j2.disable.jmx=true"]
        self._java += ["-cp", f"{jars}:{jars}/*", "SearchNode", str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for part in ("config", "data", "tmp"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        settings = OPENSEARCH_YML.format(port=self.port, transport=free_port(), folder=self.folder)
        (self.folder / "config" / "opensearch.yml").write_text(settings)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(self._java, stdout=log, stderr=log)
        wait_until(self._answers, 90, "OpenSearch's first answer")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(timeout=120)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "server.log").read_text()[-4000:]
        try:
            with urllib.request.urlopen(f"{self.url}/_cluster/health", timeout=5) as answer:  # noqa: S310  ours
                return answer.status == 200
        except OSError:
            return False
