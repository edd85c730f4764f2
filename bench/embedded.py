"""An embedded log in a process of its own and the settings of a pipeline on it, for benchmarks that run one."""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater.config import Settings
from servers import BrokerProcess


@contextmanager
def embedded(slots: int = 2, **settings: Any) -> Iterator[tuple[BrokerProcess, Settings]]:
    """Spark gets so many slots and two gigabytes. Everything is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess(Path(folder) / "log")
        broker.start()
        host, _, port = broker.bootstrap.partition(":")
        try:
            yield (
                broker,
                Settings(
                    log=f"embedded:{folder}/pipeline",
                    host=host,
                    broker_port=int(port),
                    spark=f"local[{slots},4]",
                    spark_memory="2g",
                    **settings,
                ),
            )
        finally:
            broker.end(signal.SIGTERM)
