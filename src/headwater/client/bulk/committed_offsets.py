"""Committed offsets of a group with their notes.

librdkafka copies a note without an end: a note from a client of Java is read together with the memory after
it. So requests of our own ask for notes. The notes that confluent-kafka commits end with a zero byte, which
is not part of them.
"""

import time
from typing import NamedTuple

from headwater.access import Log
from headwater.client.bulk.connection import compose
from headwater.client.bulk.routes import Routes, refusal
from headwater.client.client import TIMEOUT_S
from headwater.errors import ErrorCode, MachineError
from headwater.protocol.kafka.codec import Message

__all__ = ["CommittedOffset", "committed_offsets"]

COORDINATOR_MOVES = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}
PAUSE_S = 0.1


class CommittedOffset(NamedTuple):
    """The committed offset of a partition, and the note that was committed with it."""

    partition: int
    offset: int
    note: str


def committed_offsets(log: Log, group: str) -> dict[str, list[CommittedOffset]]:
    """The committed offsets of a group, by topic. Raises MachineError if the log does not answer."""
    deadline = time.monotonic() + TIMEOUT_S
    routes = Routes(log)
    try:
        while True:
            try:
                answer = routes.ask_coordinator(
                    group, "OffsetFetch", compose("OffsetFetch", group_id=group, topics=None)
                )
            except OSError as error:
                what = f"the committed offsets of group {group!r} cannot be read"
                raise MachineError(what, got=str(error), hint="is the broker running?") from error
            if answer.error_code not in COORDINATOR_MOVES or time.monotonic() > deadline:
                break
            routes.forget_coordinator()
            time.sleep(PAUSE_S)
    finally:
        routes.close()
    if answer.error_code:
        raise refusal(answer.error_code, f"the committed offsets of group {group!r}")
    return {topic.name: [_offset(part) for part in topic.partitions] for topic in answer.topics}


def _offset(part: Message) -> CommittedOffset:
    note = (part.metadata or "").removesuffix("\0")
    return CommittedOffset(part.partition_index, part.committed_offset, note)
