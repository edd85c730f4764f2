"""Control: what a capture is asked to do while it runs, as records of the topic ``<name>.control``, and what it tells in ``<name>.notifications``.

The state of a capture says which commands it has taken up: each is obeyed once, in order, also by a process that starts later.
"""

import logging
import time
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from confluent_kafka import KafkaException, TopicPartition

from headwater.access import Log
from headwater.client import READING, Client, acquaint, consumer, producer
from headwater.errors import CaptureError, MachineError, UsageError
from headwater.formats import CONTROL, NOTICE

__all__ = ["Command", "Control", "Notice", "Range", "end", "finished", "send"]

ASK_S = 0.2
SEND_S = 10.0
FINISH_S = 600.0
FOREVER = {"retention.ms": "-1"}

logger = logging.getLogger(__name__)


class Range(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of a table behind one key and up to another, as the texts of the key's columns."""

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None
    ghosts: tuple[str, ...] = ()
    """Keys, as records have them, that the topic has and the table had not: these alone, no rows."""


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of ``<name>.control``."""

    do: Literal["pause", "resume", "snapshot", "remove", "add"]
    """The last two say that the state in ``<name>.capture`` was changed: who runs looks there."""
    id: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex[:12])
    table: str = ""
    where: str = ""
    """Which rows, see `Condition`."""
    incremental: bool = True
    """Whether rows are read in chunks beside the stream; else the table begins anew, with a truncate."""
    ranges: tuple[Range, ...] | None = None
    """Only the rows in these."""
    format: int = 1


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record of ``<name>.notifications``, under the name of the capture."""

    what: str
    """One or two words: ``paused``, ``snapshot finished``."""
    at_ms: int
    table: str = ""
    text: str = ""
    details: Mapping[str, Any] = {}
    format: int = 1


def send(log: Log, name: str, command: Command) -> None:
    """Asks a capture to do something; it need not run now."""
    client = Client(log)
    try:
        client.ensure_topics([f"{name}.control"], 1, FOREVER)
    finally:
        client.close()
    sender = producer(log)
    sender.produce(f"{name}.control", msgspec.json.encode(command), name)
    if sender.flush(SEND_S):
        raise MachineError("the log does not take records", hint="is the broker running?")


def end(log: Log, name: str) -> int:
    """Behind the last command of a capture; its topic is made if there is none."""
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
    """Waits for the end of a snapshot that was asked for, and says how it was."""
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
            time.sleep(ASK_S)
    finally:
        client.close()
    raise CaptureError(
        f"capture {name} has not finished {command} in {FINISH_S:.0f} s",
        hint="does it run, and is it not paused?",
    )


class Control:
    """The commands behind an offset. One thread."""

    def __init__(self, log: Log, name: str, offset: int) -> None:
        self.offset = offset
        """Behind the last command that `next` gave."""
        self._name = name
        self._reader: Any = consumer(log, **READING)
        acquaint(self._reader)
        self._reader.assign([TopicPartition(f"{name}.control", 0, offset)])
        self._asked = 0.0

    def next(self) -> Command | None:
        """The next command, if there is one; looks at most a few times a second."""
        now = time.monotonic()
        if now - self._asked < ASK_S:
            return None
        message = self._reader.poll(0)
        if message is None or message.error() is not None:
            self._asked = now
            return None
        self.offset = message.offset() + 1
        try:
            return CONTROL.decode(message.value() or b"", Command, f"a command in {self._name}.control")
        except (msgspec.DecodeError, UsageError) as error:
            logger.warning(
                "capture %s: a record of %s.control is no command: %s", self._name, self._name, error
            )
            return None

    def close(self) -> None:
        self._reader.close()
