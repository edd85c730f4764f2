"""Letter: a message that is given up, as a record of ``<group>.dead``.

It keeps the key, the value, the timestamp and all headers of the message. After these come headers of its
own, with names that begin with ``headwater-letter-``, which say where the message was and why it is given up.
A message may be given up a second time, as a letter of a letter: then the last headers of these names count.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from headwater.record import Record
from headwater.worker.outcome import Bury
from headwater.worker.work_list import Task

__all__ = ["PREFIX", "SUFFIX", "OpenedLetter", "letter", "open_letter"]

SUFFIX = ".dead"
PREFIX = "headwater-letter-"
FACTS = ("group", "topic", "partition", "offset", "attempts", "at", "reason", "stack")
REASON_CHARACTERS_MAX = 2_000
STACK_CHARACTERS_MAX = 4_000


class OpenedLetter(NamedTuple):
    """A letter, taken apart."""

    message: Record
    """The message as it was written; its offset is that of the letter."""
    facts: dict[str, str]
    """By the names of `FACTS`; empty if the record is no letter."""


def letter(task: Task, group: str, verdict: Bury, now_ms: int) -> Record:
    """The whole message, and headers that say where it was and why it is given up."""
    record = task.record
    facts = {
        "group": group,
        "topic": task.topic,
        "partition": str(task.place[1]),
        "offset": str(record.offset),
        "attempts": str(task.attempt),
        "at": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "reason": verdict.reason[:REASON_CHARACTERS_MAX],
        "stack": verdict.stack[:STACK_CHARACTERS_MAX],
    }
    own = ((f"{PREFIX}{name}", facts[name].encode(errors="replace")) for name in FACTS)
    return Record(record.key, record.value, (*record.headers, *own), record.timestamp)


def open_letter(record: Record) -> OpenedLetter:
    """The message and the facts of a record of ``<group>.dead``."""
    names = tuple(name for name, _ in record.headers[-len(FACTS) :])
    if names != tuple(f"{PREFIX}{name}" for name in FACTS):
        return OpenedLetter(record, {})
    own = record.headers[-len(FACTS) :]
    message = Record(record.key, record.value, record.headers[: -len(FACTS)], record.timestamp, record.offset)
    facts = {
        name: (value or b"").decode(errors="replace") for name, (_, value) in zip(FACTS, own, strict=True)
    }
    return OpenedLetter(message, facts)
