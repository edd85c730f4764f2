"""Sends the traffic of the shop to a log at its own pace, and writes the expected sums to a file."""

import threading
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import KafkaError, Message

from headwater.access import Log
from headwater.client.client import Client, producer
from headwater.client.topic_defaults import FULL
from headwater.clock import Clock, SystemClock
from headwater.demo.event import TOPICS
from headwater.demo.traffic import Traffic
from headwater.errors import MachineError

__all__ = ["feed"]

PACE_S = 0.02
"""Records that are due within this time are sent together, which saves wake-ups."""
FLUSH_S = 120.0


def feed(
    traffic: Traffic,
    log: Log,
    *,
    partitions: int,
    tally: Path,
    stop: threading.Event,
    clock: Clock | None = None,
) -> None:
    """Runs until the traffic ends or ``stop`` is set, then waits until the log has acknowledged every record.

    The tally file is created, in one step, only if no record was lost: it counts exactly the records in the
    log.
    """
    Client(log).ensure_topics(TOPICS.values(), partitions, FULL)
    failures: list[str] = []
    sender = producer(log, **{"on_delivery": _collect_failures(failures), "linger.ms": 20})
    _send(traffic, sender, stop, clock or SystemClock())
    unanswered = sender.flush(FLUSH_S)
    if unanswered or failures:
        raise MachineError(
            f"the log did not accept {unanswered + len(failures)} records",
            got=next(iter(failures), "no answer"),
        )
    part = tally.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(traffic.tally.figures())))
    part.replace(tally)


def _send(traffic: Traffic, sender: Any, stop: threading.Event, clock: Clock) -> None:
    begun = clock.monotonic()
    for record in traffic.events():
        ahead = record.wall - (clock.monotonic() - begun)
        if ahead > 0:
            sender.poll(0)
            stop.wait(max(ahead, PACE_S))
        _produce(sender, record.topic, record.key, record.value)
        if stop.is_set():
            return


def _produce(sender: Any, topic: str, key: bytes, value: bytes) -> None:
    """Sends a record, and waits while the client's queue is full, so that no record is lost."""
    while True:
        try:
            sender.produce(topic, value, key)
        except BufferError:
            sender.poll(PACE_S)
        else:
            return


def _collect_failures(failures: list[str]) -> Any:
    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(f"{message.topic()}: {error.str()}")

    return on_delivery
