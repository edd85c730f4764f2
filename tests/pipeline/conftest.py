"""One Spark session for all pipeline tests, on the shared embedded broker or, where a test asks for both logs, also on Apache Kafka; each test has topics and folders of its own."""

from pathlib import Path

import pytest

from headwater.config import Settings
from headwater.pipeline import session
from ordershop import Shop


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory):
    settings = Settings(
        log=f"embedded:{tmp_path_factory.mktemp('spark')}", spark="local[12,4]", spark_memory="1g"
    )
    running = session.start(settings)
    yield running
    running.stop()


@pytest.fixture
def shop(spark, bootstrap: str, tmp_path: Path) -> Shop:
    return Shop(bootstrap, tmp_path)
