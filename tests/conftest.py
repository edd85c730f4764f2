"""Fixtures that every test may ask for."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import BrokerProcess, KafkaProcess


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


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """One Apache Kafka for all tests that compare with it."""
    process = KafkaProcess(tmp_path_factory.mktemp("kafka") / "data")
    process.start()
    yield process
    process.end()
