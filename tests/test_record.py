"""Record batches as we write them ourselves."""

import os

import pytest

from headwater.record import (
    HEADER_BYTES,
    BatchHeader,
    Record,
    encode_batch,
    open_batch,
    read_batch,
    reencode_batch,
)

LZ4 = 3


def packed(values: list[bytes]) -> bytes:
    """What compaction makes of a batch with LZ4."""
    plain = encode_batch([Record(b"k", value, (), 1_000) for value in values])
    header = BatchHeader.read(plain)
    return reencode_batch(header._replace(attributes=LZ4), open_batch(plain))


@pytest.mark.parametrize("value", [b"a" * 100, b"like the others " * 400_000, os.urandom(5 << 20)])
def test_lz4_is_written_in_independent_blocks_since_java_reads_no_others(value: bytes):
    batch = packed([value])
    read_batch(batch, verify=True)
    assert batch[HEADER_BYTES : HEADER_BYTES + 4] == bytes.fromhex("04224d18")
    assert batch[HEADER_BYTES + 4] & 0x20
    assert [record.value for record in open_batch(batch)] == [value]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_has_lost_all_its_records_is_not_compressed(codec: int):
    header = BatchHeader.read(packed([b"gone"]))
    empty = reencode_batch(header._replace(attributes=codec), [])
    assert BatchHeader.read(empty).compression == 0
    assert len(empty) == HEADER_BYTES
    assert open_batch(empty) == []
