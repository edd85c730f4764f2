"""Beside: records that stand beside a topic or a view, each under a key of its own in a compacted topic, so that one that is sent again is there once."""

import functools
from collections.abc import Iterable

from confluent_kafka import Producer

from headwater.access import Access
from headwater.client import producer
from headwater.errors import MachineError

__all__ = ["Beside"]

FLUSH_SECONDS_MAX = 120.0
IN_FLIGHT_MAX = 10_000


class Beside:
    """Sends such records. What ``send`` returns from is safe in the log."""

    def __init__(self, log: Access) -> None:
        self._log = log

    def send(self, what: str, records: Iterable[tuple[str, str, bytes]]) -> None:
        """Sends records by topic, key and value. MachineError, saying ``what``, when the log does not take them."""
        failed: list[str] = []
        for topic, key, value in records:
            while len(self._producer) >= IN_FLIGHT_MAX:
                self._producer.poll(0.1)
            self._producer.produce(
                topic, value, key, on_delivery=lambda error, _: failed.append(str(error)) if error else None
            )
        if self._producer.flush(FLUSH_SECONDS_MAX) or failed:
            raise MachineError(f"{what} could not be published", got=failed[0] if failed else "no answer")

    def close(self) -> None:
        self.__dict__.pop("_producer", None)

    @functools.cached_property
    def _producer(self) -> Producer:
        return producer(self._log)
