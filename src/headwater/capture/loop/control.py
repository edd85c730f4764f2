"""Control: commands for a capture in the topic ``<name>.control``, with results in ``<name>.notifications``.

The state of a capture has the offset after the last command: each is carried out once, in order, also by a
process that starts later.
"""

import logging
import time
from typing import Any

import msgspec
from confluent_kafka import KafkaException, TopicPartition

from headwater.access import Log
from headwater.capture.messages import Command, Notice
from headwater.client.client import READING, Client, acquaint, consumer, producer
from headwater.errors import CaptureError, MachineError, UsageError
from headwater.formats import CONTROL, NOTICE

__all__ = ["Control", "end", "finished", "send"]

POLL_S = 0.2
SEND_S = 10.0
FINISH_S = 600.0
FOREVER = {"retention.ms": "-1"}

logger = logging.getLogger(__name__)


def send(log: Log, name: str, command: Command) -> None:
    """Sends a command to a capture, which need not run now."""
    client = Client(log)
    try:
        client.ensure_topics([f"{name}.control"], 1, FOREVER)
    finally:
        client.close()
    sender = producer(log)
    sender.produce(f"{name}.control", msgspec.json.encode(command), name)
    if sender.flush(SEND_S):
        raise MachineError("the log does not accept records", hint="is the broker running?")


def end(log: Log, name: str) -> int:
    """The offset after the last command of a capture; creates its topic if necessary."""
    client = Client(log)
    try:
        client.ensure_topics([f"{name}.control"], 1, FOREVER)
    finally:
        client.close()
    reader = consumer(log, **READING)
    try:
        acquaint(reader)
        _, high = reader.get_watermark_offsets(TopicPartition(f"{name}.control", 0), timeout=SEND_S)
        return int(high)
    except KafkaException as error:
        raise MachineError(f"topic {name}.control cannot be read", got=error.args[0].str()) from error
    finally:
        reader.close()


def finished(log: Log, name: str, command: str) -> str:
    """Waits for the end of the snapshot of a command, and returns its result; CaptureError if it failed."""
    client = Client(log)
    limit = time.monotonic() + FINISH_S
    try:
        while time.monotonic() < limit:
            for message in client.read([f"{name}.notifications"]):
                notice = NOTICE.decode(message.value(), Notice, f"a record of {name}.notifications")
                if notice.details.get("id") != command or notice.what == "snapshot begun":
                    continue
                if notice.what != "snapshot finished":
                    raise CaptureError(f"capture {name}: {notice.what}", got=notice.text)
                return f"{notice.what}: {notice.text}"
            time.sleep(POLL_S)
    finally:
        client.close()
    raise CaptureError(
        f"capture {name} has not finished {command} in {FINISH_S:.0f} s",
        hint="does it run, and is it not paused?",
    )


class Control:
    """The commands after an offset. One thread calls."""

    def __init__(self, log: Log, name: str, offset: int) -> None:
        self.offset = offset
        """The offset after the last command that `next` has returned."""
        self._name = name
        self._reader: Any = consumer(log, **READING)
        acquaint(self._reader)
        self._reader.assign([TopicPartition(f"{name}.control", 0, offset)])
        self._polled = 0.0

    def next(self) -> Command | None:
        """The next command, if there is one; polls the topic at most five times a second."""
        now = time.monotonic()
        if now - self._polled < POLL_S:
            return None
        message = self._reader.poll(0)
        if message is None or message.error() is not None:
            self._polled = now
            return None
        self.offset = message.offset() + 1
        try:
            return CONTROL.decode(message.value() or b"", Command, f"a command in {self._name}.control")
        except (msgspec.DecodeError, UsageError) as error:
            logger.warning(
                "capture %s: a record of %s.control is not a command: %s", self._name, self._name, error
            )
            return None

    def close(self) -> None:
        self._reader.close()
