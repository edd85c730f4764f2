"""One Spark session for all pipeline tests; each test has topics and folders of its own on the shared embedded broker,
and on Apache Kafka too where it is marked with ``both_logs``."""

from pathlib import Path

import pytest

from headwater.config import Settings
from headwater.pipeline import session
from ordershop import Shop
from pipeline.driver import JAVA


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark's own logs are."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_folder: Path):
    """Nearly every test has queries of its own, over a few rows: compiling them would take longer than running them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", JAVA)
        running = session.start(
            Settings(log=f"embedded:{spark_folder}", spark="local[12,4]", spark_memory="2g")
        )
    yield running
    running.stop()


@pytest.fixture
def shop(spark, bootstrap: str, tmp_path: Path) -> Shop:
    return Shop(bootstrap, tmp_path)
