"""Letter: a message that is given up, as a record of ``<group>.dead`` with the reason."""

from datetime import UTC, datetime

from headwater.record import Record
from headwater.worker.outcome import Bury
from headwater.worker.work_list import Task

__all__ = ["SUFFIX", "letter"]

SUFFIX = ".dead"
REASON_CHARACTERS_MAX = 2_000
STACK_CHARACTERS_MAX = 4_000


def letter(task: Task, group: str, verdict: Bury, now_ms: int) -> Record:
    """The whole record, and headers that say where it was and why it is given up."""
    record = task.record
    told = {
        "group": group,
        "topic": task.topic,
        "partition": str(task.place[1]),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
        "attempts": str(task.attempt),
        "reason": verdict.reason[:REASON_CHARACTERS_MAX],
        "stack": verdict.stack[:STACK_CHARACTERS_MAX],
        "at": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
    }
    headers = [
        *((name, value) for name, value in record.headers if name not in told),  # of a letter that came back
        *((name, value.encode(errors="replace")) for name, value in told.items()),
    ]
    return Record(record.key, record.value, tuple(headers))
