"""Sinks in processes of their own, that tests kill and suspend.

And what a sink must have done, from the log itself.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from headwater.client.client import Client
from support.servers import answers, free_port, wait_until

PROGRAM = """
import json, logging, os, signal, sys, threading
from headwater.sink import Postgres, Redis, Sqlite, Webhook
from headwater.sink.effects import schedule
from headwater.sink.loop import loop, membership
from headwater.sink.store import SinkFeed
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
logging.getLogger("httpx").setLevel(logging.WARNING)
membership.BATCH_RECORDS = 200
schedule.PAUSES_S = (0, *[0.5] * 60)
KINDS = {"postgresql": Postgres, "redis": Redis, "http": lambda url: Webhook(url, start="beginning")}
stopping, ended = threading.Event(), []

def made(name, topic, where, versioned=False):
    feed = SinkFeed(name, topic, ("id",), {"id": "STRING", "n": "BIGINT"}, versioned=versioned)
    target = KINDS.get(where.partition(":")[0], Sqlite)(where)
    return loop.Loop(sys.argv[1], name, topic, target, lambda: feed, session_ms=1500)

def run(each):
    try:
        each.run()
    except BaseException:
        logging.exception("a sink has ended")
        ended.append(each)
    stopping.set()

loops = [made(*each) for each in json.loads(sys.argv[2])]
threads = [threading.Thread(target=run, args=(each,)) for each in loops]
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
for thread in threads:
    thread.start()
stopping.wait()
for each in loops:
    each.stop()
for thread in threads:
    thread.join()
sys.exit(len(ended))
"""
RECEIVER = """
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
delivered = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        os.write(delivered, (self.headers["webhook-id"] + chr(10)).encode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class ReceiverProcess:
    """Takes calls of webhooks, and has the id of each in a file before it answers.

    It can be killed and started again on the same port.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self._delivered = folder / "delivered"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", RECEIVER, str(self.port), str(self._delivered)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until(lambda: answers(self.port), 20, "the receiver's port")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(120)

    def ids(self) -> list[str]:
        return self._delivered.read_text().split()


class SinkProcess:
    """One process that runs sinks, each a name, a topic, where it goes and whether its rows have versions.

    Members of one group share its partitions.
    """

    def __init__(self, bootstrap: str, folder: Path, *sinks: tuple[str, str, str, bool]) -> None:
        self._arguments = [bootstrap, json.dumps(sinks)]
        self.log = folder / "sink.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-c", PROGRAM, *self._arguments]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(120)

    def end(self) -> int:
        """As an operator ends it; one that is suspended or gone is killed."""
        assert self._process is not None
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
            try:
                return self._process.wait(120)
            except subprocess.TimeoutExpired:
                self._process.kill()
        return self._process.wait(120)


def faults(expected: Counter, found: Counter) -> list[str]:
    """What was lost and what is there too often, of rows that may occur several times.

    Empty when all is well.
    """
    lost, doubled = expected - found, found - expected
    return [f"lost {row} {n}x" for row, n in lost.items()] + [
        f"{'doubled' if row in expected else 'invented'} {row} {n}x" for row, n in doubled.items()
    ]


def appended(bootstrap: str, topic: str) -> Counter:
    """Every record of a topic by its place and value: what an append sink must hold, once each."""
    return Counter(
        (record.partition(), record.offset(), record.value()) for record in Client(bootstrap).read([topic])
    )
