"""Incoming: a batch as a client may send it."""

import re

from headwater.errors import ErrorCode, ProtocolError, Refused
from headwater.log.config import FOREVER, TopicConfig
from headwater.record import (
    CONTROL,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Record,
    decompress,
    open_batch,
    read_batch,
)

__all__ = ["check_keys", "check_times", "checked"]

_KEYLESS = re.compile(
    rb"\x00[\x80-\xff]{0,9}[\x00-\x7f][\x80-\xff]{0,4}[\x00-\x7f](?:\x01|\x81\x80{0,3}\x00)"
)
"""How a record without a key begins, after its length: attributes, two numbers, and -1. Text has no such bytes, so what is not
found is not there; what is found may also be part of a value, and is looked at record by record."""


def checked(data: memoryview, bytes_max: int) -> BatchHeader:
    """The header of one whole, sound batch of records; raises Refused for anything else."""
    if len(data) > bytes_max:
        what = f"a batch of {len(data)} bytes is larger than max.message.bytes = {bytes_max}"
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, what)
    try:
        header = read_batch(data, verify=True)
    except ProtocolError as error:
        code = ErrorCode.CORRUPT_MESSAGE if "CRC" in error.what else ErrorCode.INVALID_RECORD
        raise Refused(code, str(error)) from error
    if header.size_bytes != len(data):
        raise Refused(ErrorCode.INVALID_RECORD, "several batches where one is expected")
    if (
        header.record_count != header.last_offset_delta + 1
        or header.record_count < 1
        or header.attributes & CONTROL
    ):
        what = f"a batch of {header.record_count} records spans {header.last_offset_delta + 1} offsets"
        raise Refused(ErrorCode.INVALID_RECORD, what)
    return header


def check_keys(data: memoryview, header: BatchHeader) -> None:
    """Refuses records without a key, as Kafka does for a compacted topic: compaction would drop them."""
    try:
        body = decompress(header.compression, data[HEADER_BYTES:])
    except Exception as error:  # whatever four decompressors can raise
        raise Refused(ErrorCode.INVALID_RECORD, f"the batch cannot be opened: {error}") from error
    if _KEYLESS.search(body) is not None and any(r.key is None for r in _opened(data)):
        raise Refused(
            ErrorCode.INVALID_RECORD, "a record without a key, in a topic with cleanup.policy=compact"
        )


def check_times(data: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Refuses records whose time is further from the broker's than the topic allows.

    One record from far in the future would keep its segment, and all later ones, from retention until then.
    """
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    if header.max_timestamp > latest_ms:
        what = f"a record of {header.max_timestamp}, later than message.timestamp.after.max.ms allows: {latest_ms}"
        raise Refused(ErrorCode.INVALID_TIMESTAMP, what)
    if config.message_timestamp_before_max_ms == FOREVER:
        return
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    oldest_ms = min(r.timestamp for r in _opened(data))
    if NO_TIMESTAMP < oldest_ms < earliest_ms:
        what = f"a record of {oldest_ms}, earlier than message.timestamp.before.max.ms allows: {earliest_ms}"
        raise Refused(ErrorCode.INVALID_TIMESTAMP, what)


def _opened(data: memoryview) -> list[Record]:
    try:
        return open_batch(data)
    except Exception as error:  # whatever a foreign encoder and four decompressors can raise
        raise Refused(ErrorCode.INVALID_RECORD, f"the batch cannot be opened: {error}") from error
