"""DeadLetters: the records that a store can never take in, in ``<topic>.dead`` with the reason.

A crash between a letter and the offset behind its record writes the letter again: sink, topic, partition and offset in its headers tell
that it is the same.
"""

import logging
from typing import Any

from confluent_kafka import KafkaException

from headwater.access import Log
from headwater.client import Client, producer
from headwater.errors import Away, MachineError

__all__ = ["EFFECT", "ENDING", "DeadLetters", "loggable", "places"]

ENDING = ".dead"
EFFECT = "effect"
"""The header that only letters of effects have: the effect's id."""
FLUSH_S = 30.0
REASON_CHARACTERS = 2_000

logger = logging.getLogger(__name__)


def loggable(reason: str) -> str:
    """What a log may say of a reason: the words in front of its first colon, which are ours.

    What a store or a function says behind it may quote the record. Whoever may read the letter finds it there.
    """
    ours, colon, _ = reason.partition(": ")
    return f"{ours} (more in its header 'reason')" if colon else ours


def places(client: Client, sink: str, topic: str) -> dict[tuple[int, int], bool]:
    """Partition and offset of every record of a topic that a sink has buried, and whether it had taken the record over: that of an effect.

    A letter that was written twice is one.
    """
    found = {}
    for letter in client.read([f"{topic}{ENDING}"]):
        about = dict(letter.headers() or [])
        if about.get("sink") == sink.encode():
            found[int(about["partition"]), int(about["offset"])] = EFFECT in about
    return found


class DeadLetters:
    """Of one sink. It opens nothing before the first letter; `put` returns when the letter is acknowledged, or raises Away."""

    def __init__(self, log: Log, sink: str, topic: str) -> None:
        self._log = log
        self._sink = sink
        self.topic = f"{topic}{ENDING}"
        self._producer: Any = None

    def _open(self) -> Any:
        config = {"cleanup.policy": "delete", "retention.ms": "-1"}
        asked = Client(self._log)
        try:
            asked.ensure_topics([self.topic], 1, config)
        except MachineError as error:
            raise Away(f"topic {self.topic} for dead letters", got=str(error)) from error
        finally:
            asked.close()
        settings: dict[str, Any] = {"message.timeout.ms": int(FLUSH_S * 1000)}
        return producer(self._log, **settings)

    def put(self, message: Any, reason: str) -> None:
        """The record as it was, with headers that say whose it is, where it stood and what is wrong with it."""
        if self._producer is None:
            self._producer = self._open()
        about = {
            "sink": self._sink,
            "topic": message.topic(),
            "partition": str(message.partition()),
            "offset": str(message.offset()),
            "reason": reason[:REASON_CHARACTERS],
        }
        headers = [*(message.headers() or []), *about.items()]
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
            raise Away(f"topic {self.topic} for dead letters", got=error.args[0].str()) from error
        if self._producer.flush(FLUSH_S + 5) or faults:
            raise Away(f"topic {self.topic} for dead letters", got=str(faults[0]) if faults else "no answer")
        logger.warning(
            "sink %s: %s-%d offset %d goes to %s: %s",
            self._sink,
            message.topic(),
            message.partition(),
            message.offset(),
            self.topic,
            loggable(reason),
        )
