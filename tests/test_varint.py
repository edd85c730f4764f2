"""Variable-length numbers are read as they were written, and no more bytes are read than a number may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import ProtocolError
from headwater.varint import read_varint, read_zigzag, varint, zigzag


@given(st.integers(0, 2**35 - 1), st.binary(max_size=3))
def test_a_number_is_read_as_it_was_written(number, before):
    data = before + varint(number) + b"\xff"
    assert read_varint(data, len(before)) == (number, len(data) - 1)


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_a_signed_number_is_read_as_it_was_written(number, before):
    data = before + zigzag(number) + b"\xff"
    assert read_zigzag(data, len(before)) == (number, len(data) - 1)


@pytest.mark.parametrize(("read", "bytes_max"), [(read_varint, 5), (read_zigzag, 10)])
def test_a_number_with_too_many_bytes_is_refused(read, bytes_max):
    with pytest.raises(ProtocolError, match=f"more than {bytes_max} bytes"):
        read(b"\x80" * 20, 0)
