"""Fixtures that every test may ask for."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headwater.config import Settings
from support.cpureport import CpuReport
from support.databases import MariaDBProcess, PostgresProcess
from support.rowreport import RowReport
from support.servers import BrokerProcess, KafkaProcess, make_certificate

# How long an example takes says more of the machine than of the code.
settings.register_profile("headwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headwater")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-report", type=Path, metavar="FILE", help="write what each test costs in CPU-seconds"
    )
    parser.addoption("--row-report", type=Path, metavar="FILE", help="write how far the tests are")


def pytest_configure(config: pytest.Config) -> None:
    for option, plugin in (("--cpu-report", CpuReport), ("--row-report", RowReport)):
        file = config.getoption(option)
        if file is not None:
            config.pluginmanager.register(plugin(file))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a Spark session are where ``scripts/test`` looks for them."""
    for item in items:
        shares = item.get_closest_marker("spark") and not item.get_closest_marker("own_spark")
        if shares and "pipeline" not in item.path.parts:
            raise pytest.UsageError(f"{item.nodeid} shares a Spark session: it belongs in tests/pipeline")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One embedded broker for all tests that only need a log; use topic names of your own."""
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", "--flush", "commit")
    process.start()
    yield process
    assert process.end() == 0


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """A log: the embedded one, and Apache Kafka too where a test is marked with ``both_logs``; TEST_LOG=kafka makes it that for all."""
    usual = os.environ.get("TEST_LOG", "broker")
    return request.getfixturevalue(getattr(request, "param", usual)).bootstrap


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


PASSWORD = 'correct "horse" \\ staple'
"""With all that needs quoting somewhere."""


@pytest.fixture
def guarded_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[BrokerProcess, Settings]]:
    """A broker with TLS and one user, and the settings with which an application elsewhere reaches it as a Kafka."""
    certificate, key = make_certificate(tmp_path)
    given = Settings(tls_certificate=str(certificate), tls_key=str(key), users={"alice": PASSWORD})
    with monkeypatch.context() as patch:
        for name, value in given.environ().items():
            patch.setenv(name, value)
        process = BrokerProcess(tmp_path / "guarded")
        process.start()
    yield (
        process,
        Settings(
            log=f"kafkas://{process.bootstrap}",
            log_user="alice",
            log_password=PASSWORD,
            log_ca=str(certificate),
            view_tables=f"sqlite:{tmp_path / 'app' / 'views'}",
        ),
    )
    assert process.end() == 0
    assert PASSWORD not in process.log.read_text()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaProcess]:
    """One Apache Kafka for all tests that compare with it."""
    process = KafkaProcess(tmp_path_factory.mktemp("kafka") / "data")
    process.start()
    yield process
    process.end()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    """One PostgreSQL for all tests that do not kill it; make a database of your own."""
    process = PostgresProcess()
    process.start()
    yield process
    process.end()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBProcess]:
    """One MariaDB for all tests that do not kill it; make a database of your own."""
    process = MariaDBProcess()
    process.start()
    yield process
    process.end()
