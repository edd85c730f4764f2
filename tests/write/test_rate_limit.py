"""Token buckets, by a clock that a test moves."""

import pytest

import headwater as hw
from headwater.testing import SettableClock
from headwater.write.rate_limit import Bucket, Limit


def taken(bucket: Bucket) -> int:
    count = 0
    while bucket.take():
        count += 1
    return count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000/s", Limit(1000, 1000)),
        ("600/min burst 20", Limit(10, 20)),
        ("1/h", Limit(1 / 3600, 1)),
    ],
)
def test_a_limit_says_a_rate_and_how_many_may_pass_at_once(text, expected):
    assert Limit.parse(text) == expected


@pytest.mark.parametrize("text", ["", "fast", "10", "0/s", "10/day", "10/s burst 0", "-1/s"])
def test_a_wrong_limit_is_refused_with_what_is_right(text):
    with pytest.raises(hw.UsageError, match=r"the limit is wrong; got .*; expected '1000/s'"):
        Limit.parse(text)


def test_a_bucket_lets_pass_the_burst_and_then_the_rate_whatever_the_pattern_of_asking():
    clock = SettableClock()
    bucket = Bucket(Limit.parse("10/s burst 5"), clock)

    assert taken(bucket) == 5
    passed = 0
    for _ in range(1000):
        clock.advance(0.015)
        passed += taken(bucket)
    assert passed == 150


def test_a_pause_saves_up_no_more_than_the_burst():
    clock = SettableClock()
    bucket = Bucket(Limit.parse("10/s burst 5"), clock)
    taken(bucket)

    clock.advance(3600)
    assert taken(bucket) == 5


def test_a_bucket_says_how_long_to_wait_and_takes_back_what_did_not_pass():
    clock = SettableClock()
    bucket = Bucket(Limit.parse("4/s burst 1"), clock)
    assert bucket.wait_s() == 0
    assert bucket.take()
    assert bucket.wait_s() == 0.25

    bucket.give_back()
    assert bucket.take()
    clock.advance(0.125)
    assert not bucket.take()
    assert bucket.wait_s() == 0.125
