"""One Spark session for all pipeline tests; each test has topics and folders of its own on the shared embedded broker,
and on Apache Kafka too where it is marked with ``both_logs``."""

import os
from pathlib import Path

import pytest

from headwater.config import Settings
from headwater.pipeline.spark import session
from pipeline.driver import JAVA
from support.ordershop import Shop

TESTS = Path(__file__).parents[1]
FEW_ROWS = {
    "spark.default.parallelism": "2",
    "spark.sql.leafNodeDefaultParallelism": "2",
    "spark.python.daemon.module": "pipeline.daemon",
    "spark.executor.heartbeatInterval": "1s",  # as in a rebuild
    # Garbage of plans is collected rarely: a fifth of the work of the collector.
    "spark.driver.extraJavaOptions": "-Xms1200m -Xmn800m",
}
"""What is good for few rows in many queries. A frame that is made of a list would have a part, and a worker, for each of the slots."""


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark's own logs are."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_folder: Path):
    """Nearly every test has queries of its own, over a few rows: compiling them would take longer than running them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", JAVA)
        patch.setenv("PYTHONPATH", str(TESTS), prepend=os.pathsep)
        settings = Settings(
            log=f"embedded:{spark_folder}", spark="local[12,4]", spark_memory="2g", spark_options=FEW_ROWS
        )
        running = session.start(settings)
    yield running
    running.stop()


@pytest.fixture
def shop(spark, bootstrap: str, tmp_path: Path) -> Shop:
    return Shop(bootstrap, tmp_path)
