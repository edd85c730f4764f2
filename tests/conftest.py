"""Real servers for the tests: each in its own process, on loopback, on a free port, with a folder of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], seconds: float = 30, what: str = "the condition") -> None:
    """Waits for a condition with a limit."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"{what} did not come true within {seconds} s")
        time.sleep(0.02)


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

    def start(self) -> None:
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
        wait_until(lambda: answers(self.port) or self._process.poll() is not None, 20, "the broker's port")
        assert self._process.poll() is None, self.log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(timeout=20)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One embedded broker for all tests that only need a log; use topic names of your own."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", "--flush", "commit")
    process.start()
    yield process
    assert process.end() == 0


@pytest.fixture(scope="session")
def bootstrap(broker: BrokerProcess) -> str:
    return broker.bootstrap


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that a test may kill."""
    process = BrokerProcess(tmp_path / "data", "--flush", "commit")
    process.start()
    yield process
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.end(signal.SIGKILL)
