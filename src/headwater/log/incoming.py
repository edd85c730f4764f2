"""Incoming: a batch as a client may send it."""

from headwater.errors import ErrorCode, ProtocolError, Refused
from headwater.record import CONTROL, BatchHeader, read_batch

__all__ = ["checked"]


def checked(data: memoryview, bytes_max: int) -> BatchHeader:
    """The header of one whole, sound batch of records; raises Refused for anything else."""
    if len(data) > bytes_max:
        what = f"a batch of {len(data)} bytes is larger than max.message.bytes = {bytes_max}"
        raise Refused(ErrorCode.MESSAGE_TOO_LARGE, what)
    try:
        header = read_batch(data, verify=True)
    except ProtocolError as error:
        code = ErrorCode.INVALID_RECORD if "format" in error.what else ErrorCode.CORRUPT_MESSAGE
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
