"""Records to send and answers to compare, as plain values."""

import functools
import time

from headwater.errors import ErrorCode
from headwater.record import BatchHeader, Record, encode_batch, open_batch, reencode_batch


@functools.cache
def now_ms() -> int:
    """The time of the first record of every case: that of the first case, and so the same on both logs."""
    return time.time_ns() // 1_000_000


UNSETTLED = {
    "CONCURRENT_TRANSACTIONS",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
}
"""Answers that ask a client to try again; the last one is Apache Kafka's to a batch while it still ends the transaction before."""
SESSION_MS = 60_000


def named(code: int) -> str:
    """Kafka's name of an error code."""
    return ErrorCode(code).name if code in set(ErrorCode) else str(code)


def record(value: str | None, key: str | None = "k", at: int = 0) -> Record:
    """A record that is so many milliseconds younger than the case."""
    return Record(
        None if key is None else key.encode(), None if value is None else value.encode(), (), now_ms() + at
    )


def batch_of(records: list[Record], codec: int = 0, **fields: int) -> bytes:
    data = encode_batch(records, **fields)
    if codec:
        header = BatchHeader.read(data)
        data = reencode_batch(header._replace(attributes=header.attributes | codec), open_batch(data))
    return data


def subscription(topics: list[str]) -> bytes:
    """The topics that a consumer wants, as it sends them to its group in version 0 of the embedded protocol."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\0\0\0\0"
