"""An embedded log in a process of its own and the settings of a pipeline on it, for benchmarks that run one."""

import signal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from headwater.client.client import producer
from headwater.config import Settings
from support.servers import BrokerProcess

CHUNK = 10_000


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


def write(bootstrap: str, topic: str, records: Iterable[tuple[bytes, bytes]]) -> None:
    """Records by key, as fast as one producer sends them; all are in the log afterwards."""
    out, found = producer(bootstrap, **{"queue.buffering.max.messages": 1_000_000}), iter(records)
    while part := [{"key": key, "value": value} for key, value in islice(found, CHUNK)]:
        if out.produce_batch(topic, part) != len(part):
            raise RuntimeError("records do not fit into the producer's queue")
        out.poll(0)
    if out.flush(120):
        raise RuntimeError("records were not acknowledged")
