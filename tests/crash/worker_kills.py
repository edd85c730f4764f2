"""A life of a queue with two worker processes: broker and workers are killed with SIGKILL while handlers write in their transactions.

The seed chooses partitions, order, concurrency, what fails, and when each kill comes and of what.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headwater.client.client import Client
from headwater.errors import HeadwaterError
from support.servers import BrokerProcess, create_topic, wait_until

__all__ = ["KILLS_PER_LIFE", "Lived", "live"]

KILLS_PER_LIFE = 10
MESSAGES_PER_KILL = 60
KEYS = 9
PROGRESS_S = 3.0
"""How long a kill waits for something to be written: a transaction that a kill has left open lasts for ten seconds."""
APPLICATION = """
import random, time
import headwater as hw

class Mail(hw.Event):
    number: int
    to: str

app = hw.App("post")
app.stream("mails", Mail, key="to", time=hw.ARRIVAL)
sent = app.stream("sent", Mail, key="to", time=hw.ARRIVAL)

@app.worker(
    "mails", group="post", order_by="{order}", concurrency={concurrency}, retry=hw.backoff("10ms", attempts=20)
)
def send(mail, ctx: hw.Work):
    chance = random.Random(mail.number * 100 + ctx.attempt)
    time.sleep(chance.uniform(0, {longest}))
    ctx.write(sent, mail)
    if mail.number % 3 == 0:
        ctx.write("copies", b"%d" % mail.number, key=mail.to)
    if ctx.attempt < 3 and chance.random() < {fails}:
        raise ConnectionError
"""


@dataclass
class Lived:
    """What came of a life."""

    faults: list[str]
    messages: int
    kills: Counter[str]


class WorkerProcess:
    """``headwater worker run`` as a user runs it; it can be killed and started again."""

    def __init__(self, app: Path, bootstrap: str) -> None:
        self.log = app.with_suffix(".log")
        self._command = [sys.executable, "-m", "headwater", "worker", "run", str(app)]
        folder = f"sqlite:{app.parent}/views"
        self._environ = os.environ | {
            "HEADWATER_LOG": f"kafka://{bootstrap}",
            "HEADWATER_VIEW_TABLES": folder,
        }
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(self._command, env=self._environ, stdout=out, stderr=out)

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self._process.wait(60)


def live(seed: int, folder: Path, kills: int = KILLS_PER_LIFE) -> Lived:
    """Runs a life in an empty folder."""
    chance = random.Random(seed)
    broker = BrokerProcess(folder / "data", "--flush", "commit")
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for topic in ("mails", "sent", "copies"):
        create_topic(admin, topic, chance.randint(1, 4))
    app = folder / "post.py"
    choices = {
        "order": chance.choice(["", "key"]),
        "concurrency": chance.choice([1, 4, 8]),
        "longest": chance.choice([0.0, 0.005, 0.02]),
        "fails": chance.choice([0.0, 0.2]),
    }
    app.write_text(APPLICATION.format(**choices))
    workers = [WorkerProcess(app, broker.bootstrap) for _ in range(2)]
    client = Client(broker.bootstrap)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0})
    killed: Counter[str] = Counter()
    try:
        for kill in range(kills):
            _produce(producer, range(kill * MESSAGES_PER_KILL, (kill + 1) * MESSAGES_PER_KILL))
            _await_progress(client)
            time.sleep(chance.uniform(0, 0.3))
            victim = chance.choice(["broker", "worker", "worker", "both"])
            killed[victim] += 1
            _kill(victim, broker, chance.choice(workers), producer)
        count = kills * MESSAGES_PER_KILL
        producer.flush(120)
        with contextlib.suppress(TimeoutError):  # then some are lost, which is said below
            wait_until(lambda: _written(client) == count, 60)
        for worker in workers:
            worker.end(signal.SIGTERM)
        return Lived(_faults(client, count, ordered=bool(choices["order"])), count, killed)
    finally:
        client.close()
        for worker in workers:
            worker.end(signal.SIGKILL)
        broker.end(signal.SIGKILL)


def _produce(producer: Producer, numbers: range) -> None:
    for number in numbers:
        key = f"k{number % KEYS}"
        producer.produce("mails", msgspec.json.encode({"number": number, "to": key}), key)
    producer.poll(0)


def _kill(victim: str, broker: BrokerProcess, worker: WorkerProcess, producer: Producer) -> None:
    producer.poll(0)
    if victim in {"worker", "both"}:
        worker.end(signal.SIGKILL)
    if victim in {"broker", "both"}:
        broker.end(signal.SIGKILL)
        broker.start()
    if victim in {"worker", "both"}:
        worker.start()


def _written(client: Client) -> int:
    """How many messages have an output."""
    try:
        return len({record.value() for record in client.read(["sent"])})
    except HeadwaterError:
        return 0


def _ends(client: Client) -> int:
    try:
        return sum(client.end_offsets(["sent"], uncommitted=True).values())
    except HeadwaterError:
        return 0


def _await_progress(client: Client) -> None:
    """Until workers have written something, so that a kill finds them at it."""
    begun, limit = _ends(client), time.monotonic() + PROGRESS_S
    while _ends(client) == begun and time.monotonic() < limit:
        time.sleep(0.005)


def _faults(client: Client, count: int, *, ordered: bool) -> list[str]:
    """What a reader of committed records sees, against what must be there: everything once."""
    faults = []
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for record in client.read(["sent"]):
        numbers[record.key()].append(msgspec.json.decode(record.value())["number"])
    sent = Counter(number for of_key in numbers.values() for number in of_key)
    copies = Counter(int(record.value()) for record in client.read(["copies"]))
    wanted = {"sent": range(count), "copies": range(0, count, 3)}
    for topic, there in (("sent", sent), ("copies", copies)):
        lost = sorted(set(wanted[topic]) - there.keys())
        doubled = sorted(number for number, times in there.items() if times > 1)
        faults += [f"{topic}: {len(lost)} lost: {lost[:10]}"] if lost else []
        faults += [f"{topic}: {len(doubled)} doubled: {doubled[:10]}"] if doubled else []
    if ordered:
        mixed = [key for key, of_key in numbers.items() if of_key != sorted(of_key)]
        faults += [f"not in order: {key!r}: {numbers[key]}" for key in mixed[:3]]
    letters = [record.value() for record in client.read(["post.dead"])]
    faults += [f"{len(letters)} dead letters: {letters[:10]}"] if letters else []
    return faults
