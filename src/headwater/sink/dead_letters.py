"""DeadLetters: the records that a store can never take, in ``<topic>.dead`` with the reason.

A crash between a dead letter and the offset after its record writes the letter twice: sink, topic,
partition and offset in its headers identify it.
"""

import logging
from typing import Any

from confluent_kafka import KafkaException

from headwater.access import Log
from headwater.client.client import Client, producer
from headwater.errors import MachineError, UnavailableError

__all__ = ["EFFECT_HEADER", "SUFFIX", "DeadLetters", "loggable", "places"]

SUFFIX = ".dead"
EFFECT_HEADER = "effect"
"""The header that only letters of effects have: the effect's id."""
FLUSH_S = 30.0
REASON_CHARACTERS = 2_000

logger = logging.getLogger(__name__)


def loggable(reason: str) -> str:
    """The part of a reason that a log may contain: our own words, before its first colon.

    The message of a store or function comes after it and may quote the record. It is in the letter, for
    readers of that topic.
    """
    ours, colon, _ = reason.partition(": ")
    return f"{ours} (more in its header 'reason')" if colon else ours


def places(client: Client, sink: str, topic: str) -> dict[tuple[int, int], bool]:
    """Partition and offset of each record that is a dead letter of a sink, and whether it is an effect.

    A letter that was written twice counts once.
    """
    letters = {}
    for letter in client.read([f"{topic}{SUFFIX}"]):
        headers = dict(letter.headers() or [])
        if headers.get("sink") == sink.encode():
            letters[int(headers["partition"]), int(headers["offset"])] = EFFECT_HEADER in headers
    return letters


class DeadLetters:
    """The dead letters of one sink.

    It opens nothing before the first letter. `put` returns when the letter is acknowledged, or raises
    UnavailableError.
    """

    def __init__(self, log: Log, sink: str, topic: str) -> None:
        self._log = log
        self._sink = sink
        self.topic = f"{topic}{SUFFIX}"
        self._producer: Any = None

    def _open(self) -> Any:
        config = {"cleanup.policy": "delete", "retention.ms": "-1"}
        client = Client(self._log)
        try:
            client.ensure_topics([self.topic], 1, config)
        except MachineError as error:
            raise UnavailableError(f"topic {self.topic} for dead letters", got=str(error)) from error
        finally:
            client.close()
        settings: dict[str, Any] = {"message.timeout.ms": int(FLUSH_S * 1000)}
        return producer(self._log, **settings)

    def put(self, message: Any, reason: str) -> None:
        """Writes the record unchanged, with headers for its sink, its place and the reason."""
        if self._producer is None:
            self._producer = self._open()
        origin = {
            "sink": self._sink,
            "topic": message.topic(),
            "partition": str(message.partition()),
            "offset": str(message.offset()),
            "reason": reason[:REASON_CHARACTERS],
        }
        headers = [*(message.headers() or []), *origin.items()]
        faults: list[Any] = []
        try:
            self._producer.produce(
                self.topic,
                message.value(),
                message.key(),
                headers=headers,
                on_delivery=lambda error, _: faults.append(error) if error else None,
            )
        except KafkaException as error:
            raise UnavailableError(f"topic {self.topic} for dead letters", got=error.args[0].str()) from error
        if self._producer.flush(FLUSH_S + 5) or faults:
            raise UnavailableError(
                f"topic {self.topic} for dead letters", got=str(faults[0]) if faults else "no answer"
            )
        logger.warning(
            "sink %s: %s-%d offset %d goes to %s: %s",
            self._sink,
            message.topic(),
            message.partition(),
            message.offset(),
            self.topic,
            loggable(reason),
        )
