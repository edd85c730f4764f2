"""The check of a batch that a client sends."""

import re

from headwater.errors import ErrorCode, ProtocolError, RequestError
from headwater.log.storage.topic_config import FOREVER, TopicConfig
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

__all__ = ["check_batch", "check_keys", "check_times"]

_KEYLESS = re.compile(
    rb"\x00[\x80-\xff]{0,9}[\x00-\x7f][\x80-\xff]{0,4}[\x00-\x7f](?:\x01|\x81\x80{0,3}\x00)"
)
"""How a record without a key begins, after its length: attributes, two numbers, and -1.

Text does not contain such bytes. So a batch without a match has no such record; a match may also be part of a
value, and then the records are read one by one."""


def check_batch(data: memoryview, bytes_max: int) -> BatchHeader:
    """The header of exactly one complete, undamaged batch; raises RequestError for anything else."""
    if len(data) > bytes_max:
        what = f"a batch of {len(data)} bytes is larger than max.message.bytes = {bytes_max}"
        raise RequestError(ErrorCode.MESSAGE_TOO_LARGE, what)
    try:
        header = read_batch(data, verify=True)
    except ProtocolError as error:
        code = ErrorCode.CORRUPT_MESSAGE if "CRC" in error.what else ErrorCode.INVALID_RECORD
        raise RequestError(code, str(error)) from error
    if header.size_bytes != len(data):
        raise RequestError(ErrorCode.INVALID_RECORD, "several batches, expected one")
    if (
        header.record_count != header.last_offset_delta + 1
        or header.record_count < 1
        or header.attributes & CONTROL
    ):
        what = f"a batch of {header.record_count} records spans {header.last_offset_delta + 1} offsets"
        raise RequestError(ErrorCode.INVALID_RECORD, what)
    return header


def check_keys(data: memoryview, header: BatchHeader) -> None:
    """Refuses records without a key, as Kafka does for a compacted topic: compaction would drop them."""
    try:
        body = decompress(header.compression, data[HEADER_BYTES:])
    except Exception as error:  # four decompressors raise what they like
        raise RequestError(ErrorCode.INVALID_RECORD, f"the batch cannot be opened: {error}") from error
    if _KEYLESS.search(body) is not None and any(r.key is None for r in _open(data)):
        raise RequestError(
            ErrorCode.INVALID_RECORD, "a record without a key, in a topic with cleanup.policy=compact"
        )


def check_times(data: memoryview, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Refuses records whose timestamp is further from the broker's time than the topic allows.

    One record from far in the future would keep its segment, and all later ones, from retention until then.
    """
    latest_ms = now_ms + config.message_timestamp_after_max_ms
    if header.max_timestamp > latest_ms:
        what = f"timestamp {header.max_timestamp} is after {latest_ms}, see message.timestamp.after.max.ms"
        raise RequestError(ErrorCode.INVALID_TIMESTAMP, what)
    if config.message_timestamp_before_max_ms == FOREVER:
        return
    earliest_ms = now_ms - config.message_timestamp_before_max_ms
    oldest_ms = min(r.timestamp for r in _open(data))
    if NO_TIMESTAMP < oldest_ms < earliest_ms:
        what = f"timestamp {oldest_ms} is before {earliest_ms}, see message.timestamp.before.max.ms"
        raise RequestError(ErrorCode.INVALID_TIMESTAMP, what)


def _open(data: memoryview) -> list[Record]:
    try:
        return open_batch(data)
    except Exception as error:  # foreign encoders and four decompressors raise what they like
        raise RequestError(ErrorCode.INVALID_RECORD, f"the batch cannot be opened: {error}") from error
