"""Sends the shop's traffic to a log at its own pace, and writes down what the views must show."""

import threading
from pathlib import Path
from typing import Any

import msgspec
from confluent_kafka import KafkaError, Message

from headwater.access import Log
from headwater.client import Client, producer
from headwater.clock import Clock, SystemClock
from headwater.demo.event import TOPICS
from headwater.demo.traffic import Traffic
from headwater.errors import MachineError
from headwater.keep import FULL

__all__ = ["feed"]

PACE_S = 0.02
"""Records that fall due within this time go out together: a shop needs no wake-up for each of them."""
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

    The tally file appears, in one step, only when nothing was lost: it counts exactly what is in the log.
    """
    Client(log).ensure_topics(TOPICS.values(), partitions, FULL)
    lost: list[str] = []
    sender = producer(log, **{"on_delivery": _noted(lost), "linger.ms": 20})
    _send(traffic, sender, stop, clock or SystemClock())
    left = sender.flush(FLUSH_S)
    if left or lost:
        raise MachineError(
            f"the log did not take {left + len(lost)} records", got=next(iter(lost), "no answer")
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
    """Waits while the client's queue is full: a log that is away slows the shop down and loses nothing."""
    while True:
        try:
            sender.produce(topic, value, key)
        except BufferError:
            sender.poll(PACE_S)
        else:
            return


def _noted(lost: list[str]) -> Any:
    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            lost.append(f"{message.topic()}: {error.str()}")

    return on_delivery
