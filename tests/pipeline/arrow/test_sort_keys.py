"""Sorting: keys come in the order of their bytes, whatever they begin with and however long they are."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.arrow import sort_keys
from headwater.pipeline.arrow.sort_keys import ordered

pieces = st.sampled_from([b"", b"\0", b"\0\0\0", b"a", b"abcdefgh", b"abcde", b"b", b"\xff", b"\xff" * 8])
keys = st.lists(pieces, max_size=6).map(b"".join) | st.binary(max_size=20)


@pytest.mark.parametrize("numbers_max", [sort_keys.NUMBERS_MAX, 2])
@settings(max_examples=300, deadline=None)
@given(found=st.lists(keys, max_size=40), skip=st.integers(0, 3))
def test_keys_are_in_the_order_of_their_bytes(numbers_max, found, skip):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sort_keys, "NUMBERS_MAX", numbers_max)
        column = pa.array(found, pa.large_binary())[skip:]
        order, fresh = ordered(column)
    expected = sorted(found[skip:])
    assert [found[skip:][place] for place in order] == expected
    assert sorted(order.tolist()) == list(range(len(expected)))
    assert fresh.tolist() == [n == 0 or key != expected[n - 1] for n, key in enumerate(expected)]
