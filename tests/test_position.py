"""Positions as values and as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import UsageError
from headwater.position import Position

offsets = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True),
    st.dictionaries(st.integers(0, 63), st.integers(0, 2**62), min_size=1),
    max_size=4,
)


@given(offsets, st.integers(0, 2**48))
def test_a_position_reads_back_from_its_text(offsets, build):
    position = Position(offsets, build)

    assert Position.parse(str(position)) == position
    assert str(position).isascii()
    assert "\n" not in str(position)


@pytest.mark.parametrize(
    "text",
    ["", "x", "1~", "1~topic", "1~topic:0", "1~topic:0=1,", "1~to pic:0=1", "-1", "1~t:0=1\n", "~" * 20_000],
)
def test_text_that_is_not_a_position_is_refused(text):
    with pytest.raises(UsageError, match="not a position"):
        Position.parse(text)


def test_a_position_covers_what_lies_before_it_in_the_same_build():
    here = Position({"a": {0: 5, 1: 2}}, 7)

    assert here.covers(here)
    assert here.covers(Position({"a": {0: 4}}, 7))
    assert here.covers(Position({}, 7))
    assert not here.covers(Position({"a": {1: 3}}, 7))
    assert not here.covers(Position({"a": {2: 1}}, 7))
    assert not here.covers(Position({"b": {0: 1}}, 7))
    assert not here.covers(Position({"a": {0: 4}}, 6))
