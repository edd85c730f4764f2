"""Record and record batch v2: the same binary form on the wire and on disk.

A batch is stored as its producer sent it. Only its first twelve bytes (base offset, length) and the leader
epoch may be rewritten, because the checksum starts after them. Everything else is read from the header
without opening the records, which may be compressed.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import cramjam
import msgspec
from crc32c import crc32c

from headwater.errors import ProtocolError
from headwater.varint import read_zigzag, zigzag

__all__ = [
    "BatchHeader",
    "Record",
    "RecordSlice",
    "batches",
    "decompress",
    "encode_batch",
    "encode_end",
    "encode_marker",
    "frame",
    "headers",
    "is_commit",
    "join_slices",
    "lz4_frame",
    "open_batch",
    "open_slices",
    "read_batch",
    "reencode_batch",
    "stamp",
    "whole_batches",
]

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
CRC_AT = 17
ATTRIBUTES_AT = 21
"""The checksum covers everything from the attributes on."""
MAX_TIMESTAMP_AT = 35
OVERHEAD_BYTES = 12
"""Base offset and length, which the length does not include."""

NO_PRODUCER = -1
NO_TIMESTAMP = -1

COMPRESSION_MASK = 0x07
LZ4 = 3
LZ4_HEAD = bytes.fromhex("04224d18 60 70 73")
"""The magic number, version 1 with independent blocks of at most 4 MB, and the check byte of these two."""
LZ4_SMALL_HEAD = bytes.fromhex("04224d18 60 40 82")
"""The same for blocks of at most 64 kB: for each batch, readers allocate what the head allows."""
LZ4_SMALL_BYTES = 1 << 16
LZ4_BLOCK_BYTES = 1 << 22
LZ4_PLAIN = 1 << 31
"""Set in the length of a block that is not compressed."""
LZ4_END = bytes(4)
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""The base timestamp is the time from which on the batch's tombstones may be dropped (KIP-534)."""


class BatchHeader(NamedTuple):
    """The fixed part of a batch, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.length + OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @classmethod
    def read(cls, buffer: Buffer, position: int = 0) -> "BatchHeader":
        return tuple.__new__(cls, HEADER.unpack_from(buffer, position))


class Record(msgspec.Struct, frozen=True):
    """One record at one offset."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = NO_TIMESTAMP
    offset: int = -1


class RecordSlice(NamedTuple):
    """A record as it is encoded in its batch."""

    offset: int
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    encoded: bytes


def batches(buffer: Buffer, *, verify: bool) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch; raises ProtocolError at the first one that is cut or damaged."""
    position, end = 0, len(buffer)
    while position < end:
        header = read_batch(buffer, position, verify=verify)
        yield position, header
        position += header.size_bytes


def read_batch(buffer: Buffer, position: int = 0, *, verify: bool) -> BatchHeader:
    """The header of the batch at a position; raises ProtocolError if it is cut or damaged."""
    left = len(buffer) - position
    if left < HEADER_BYTES:
        raise ProtocolError(f"batch at byte {position} is cut short", got=f"{left} bytes")
    header = BatchHeader.read(buffer, position)
    size_bytes = header.length + OVERHEAD_BYTES
    if header.magic != 2:
        raise ProtocolError(
            f"batch at byte {position} has an unknown format", got=f"magic {header.magic}", expected="2"
        )
    if not HEADER_BYTES <= size_bytes <= left:
        raise ProtocolError(f"batch at byte {position} is cut short", got=f"length {header.length}")
    if verify and crc32c(buffer[position + ATTRIBUTES_AT : position + size_bytes]) != header.crc:
        raise ProtocolError(f"batch at byte {position} is damaged: CRC mismatch")
    return header


def whole_batches(buffer: Buffer) -> Iterator[memoryview]:
    """The batches of a fetched piece of the log, without a last one that was cut."""
    view, position = memoryview(buffer), 0
    while len(view) - position >= HEADER_BYTES:
        size = BatchHeader.read(view, position).size_bytes
        if position + size > len(view):
            return
        yield view[position : position + size]
        position += size


def headers(buffer: Buffer) -> Iterator[BatchHeader]:
    """The headers of the batches of a fetched piece of the log, also of a last one that was cut."""
    position = 0
    while position + HEADER_BYTES <= len(buffer):
        header = BatchHeader.read(buffer, position)
        yield header
        position += header.size_bytes


def open_batch(buffer: Buffer, position: int = 0) -> list[Record]:
    """The records of the batch at a position, decompressed."""
    header = BatchHeader.read(buffer, position)
    body = decompress(header.compression, buffer[position + HEADER_BYTES : position + header.size_bytes])
    at, records = 0, []
    for _ in range(header.record_count):
        record, at = _read_record(body, at, header)
        records.append(record)
    return records


def open_slices(buffer: Buffer) -> Iterator[RecordSlice]:
    """The records of a batch as they are encoded in it, decompressed, with what is needed to choose some."""
    header = BatchHeader.read(buffer)
    body = decompress(header.compression, buffer[HEADER_BYTES : header.size_bytes])
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    appended_at = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    at = 0
    for _ in range(header.record_count):
        size, begin = read_zigzag(body, at)
        end = begin + size
        later, position = read_zigzag(body, begin + 1)
        delta, position = read_zigzag(body, position)
        key, position = _read_sized(body, position)
        value_size, position = read_zigzag(body, position)
        position += max(value_size, 0)
        names = () if body[position] == 0 else _read_headers(body, position)[0]
        timestamp = base_timestamp + later if appended_at is None else appended_at
        yield RecordSlice(base_offset + delta, key, names, timestamp, body[at:end])
        at = end


def join_slices(header: BatchHeader, slices: Iterable[RecordSlice]) -> bytes:
    """An uncompressed batch with some of the records of a batch; nothing else of it changes."""
    encoded = [piece.encoded for piece in slices]
    fields = (header.attributes & ~COMPRESSION_MASK, *header[6:12], len(encoded))
    return frame(header.base_offset, fields, b"".join(encoded))


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """One uncompressed batch of records with consecutive offsets from ``base_offset`` on."""
    base_timestamp = records[0].timestamp
    body = b"".join(_encode_record(i, r, r.timestamp - base_timestamp) for i, r in enumerate(records))
    last = len(records) - 1
    max_timestamp = max(r.timestamp for r in records)
    producer = (producer_id, producer_epoch, base_sequence)
    return frame(
        base_offset, (attributes, last, base_timestamp, max_timestamp, *producer, len(records)), body
    )


def reencode_batch(
    header: BatchHeader, records: Sequence[Record], *, delete_horizon_ms: int | None = None
) -> bytes:
    """A batch with some of its records; offsets, producer and compression do not change.

    Without records it is not compressed, as in Apache Kafka: librdkafka ends its process if a codec yields
    nothing.
    """
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if not records:
        attributes &= ~COMPRESSION_MASK
    if delete_horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, delete_horizon_ms
    body = b"".join(
        _encode_record(r.offset - header.base_offset, r, r.timestamp - base_timestamp) for r in records
    )
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    max_timestamp = max((r.timestamp for r in records), default=NO_TIMESTAMP)
    fields = (
        attributes,
        header.last_offset_delta,
        base_timestamp,
        header.max_timestamp if attributes & LOG_APPEND_TIME else max_timestamp,
        *producer,
        len(records),
    )
    return frame(header.base_offset, fields, _compress(attributes & COMPRESSION_MASK, body))


def frame(base_offset: int, fields: tuple[int, ...], body: bytes) -> bytes:
    """A batch of the fields of its header, from the attributes on, and its encoded records."""
    tail = struct.pack(">hiqqqhii", *fields) + body
    head = struct.pack(">qiibI", base_offset, HEADER_BYTES - OVERHEAD_BYTES + len(body), 0, 2, crc32c(tail))
    return head + tail


def stamp(batch: memoryview, timestamp: int) -> BatchHeader:
    """Sets the timestamp of a writable batch to its time of arrival (LogAppendTime)."""
    header = BatchHeader.read(batch)
    struct.pack_into(">h", batch, ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME)
    struct.pack_into(">q", batch, MAX_TIMESTAMP_AT, timestamp)
    struct.pack_into(">I", batch, CRC_AT, crc32c(batch[ATTRIBUTES_AT:]))
    return BatchHeader.read(batch)


def encode_marker(producer_id: int, producer_epoch: int, timestamp: int, *, commit: bool) -> bytes:
    """The control batch that ends a transaction."""
    record = Record(struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0), (), timestamp)
    return encode_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, attributes=TRANSACTIONAL | CONTROL
    )


def encode_end(last_offset: int) -> bytes:
    """A batch without records at an offset: it says how far a compacted segment reaches."""
    return frame(last_offset, (0, 0, NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER, -1, -1, 0), b"")


def is_commit(records: Sequence[Record]) -> bool:
    """Whether the record of a control batch commits its transaction."""
    return bool(struct.unpack(">hh", records[0].key or b"")[1])


def decompress(codec: int, data: Buffer) -> bytes:
    """Decompresses data with one of Kafka's codecs."""
    if codec == 0:
        return bytes(data)
    if codec == 1:
        return bytes(cramjam.gzip.decompress(data))
    if codec == 2:
        return _snappy(bytes(data))
    if codec == LZ4:
        return bytes(cramjam.lz4.decompress(data))
    if codec == 4:
        return bytes(cramjam.zstd.decompress(data))
    raise ProtocolError("unknown compression", got=str(codec), expected="0 to 4")


def _compress(codec: int, data: bytes) -> bytes:
    if codec == 0:
        return data
    if codec == 2:
        block = bytes(cramjam.snappy.compress_raw(data))
        return XERIAL_MAGIC + struct.pack(">iii", 1, 1, len(block)) + block
    if codec == LZ4:
        return lz4_frame(data)
    module = {1: cramjam.gzip, 4: cramjam.zstd}[codec]
    return bytes(module.compress(data))


def lz4_frame(data: Buffer) -> bytes:
    """A frame of independent blocks: Java's clients read no others, but the library's frames chain blocks."""
    pieces = [LZ4_HEAD if len(data) > LZ4_SMALL_BYTES else LZ4_SMALL_HEAD]
    for start in range(0, len(data), LZ4_BLOCK_BYTES):
        plain = data[start : start + LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        smaller = len(block) < len(plain)
        pieces += [struct.pack("<I", len(block) if smaller else len(plain) | LZ4_PLAIN)]
        pieces += [block if smaller else bytes(plain)]
    return b"".join([*pieces, LZ4_END])


XERIAL_MAGIC = b"\x82SNAPPY\x00"


def _snappy(data: bytes) -> bytes:
    """Raw snappy, or blocks in the framing of the Java library."""
    if not data.startswith(XERIAL_MAGIC):
        return bytes(cramjam.snappy.decompress_raw(data))
    blocks, at = [], len(XERIAL_MAGIC) + 8
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return b"".join(blocks)


def _encode_record(delta: int, record: Record, timestamp_delta: int) -> bytes:
    parts = [b"\x00", zigzag(timestamp_delta), zigzag(delta), _sized(record.key), _sized(record.value)]
    parts.append(zigzag(len(record.headers)))
    for name, value in record.headers:
        parts += [_sized(name.encode(errors="surrogateescape")), _sized(value)]
    body = b"".join(parts)
    return zigzag(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def _read_sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_zigzag(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _read_record(data: bytes, at: int, header: BatchHeader) -> tuple[Record, int]:
    _, at = read_zigzag(data, at)
    timestamp_delta, at = read_zigzag(data, at + 1)
    offset_delta, at = read_zigzag(data, at)
    key, at = _read_sized(data, at)
    value, at = _read_sized(data, at)
    headers, at = _read_headers(data, at)
    timestamp = (
        header.max_timestamp
        if header.attributes & LOG_APPEND_TIME
        else header.base_timestamp + timestamp_delta
    )
    return Record(key, value, headers, timestamp, header.base_offset + offset_delta), at


def _read_headers(data: bytes, at: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = read_zigzag(data, at)
    headers = []
    for _ in range(count):
        name, at = _read_sized(data, at)
        content, at = _read_sized(data, at)
        headers.append(((name or b"").decode(errors="surrogateescape"), content))
    return tuple(headers), at
