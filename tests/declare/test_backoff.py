"""Pauses between the attempts of a worker: how they grow, how they are spread, what is refused."""

import pytest

import headwater as hw
from headwater.declare.duration import pause_ms


def test_pauses_grow_by_the_factor_up_to_the_longest():
    policy = hw.backoff("1s", factor=3, jitter=False, longest="10s")

    assert [policy.pause_ms(failures, 0.5) for failures in range(1, 6)] == [
        1_000,
        3_000,
        9_000,
        10_000,
        10_000,
    ]


def test_jitter_spreads_a_pause_from_half_of_it_to_all_of_it():
    policy = hw.backoff("1s", factor=1)

    assert [policy.pause_ms(1, chance) for chance in (0, 0.5, 1)] == [500, 750, 1_000]


def test_a_factor_of_one_keeps_the_pause_and_no_pause_is_possible():
    assert hw.backoff("0s").pause_ms(20, 1) == 0
    assert hw.backoff("200ms", factor=1, jitter=False).pause_ms(20, 1) == 200


def test_a_longest_pause_shorter_than_the_first_does_not_shorten_it():
    assert hw.backoff("2h", jitter=False).pause_ms(1, 1) == 7_200_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("10s", 10_000),
        ("500ms", 500),
        ("5 min", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("10 minutes", 600_000),
    ],
)
def test_a_pause_is_written_in_short_or_in_words(text, ms):
    assert pause_ms(text) == ms


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"first": "soon"}, "'soon' is not a duration"),
        ({"first": "-1s"}, "is not a duration"),
        ({"first": 1}, "1 is not a duration"),
        ({"attempts": 0}, "attempts= is wrong; got 0; expected 1 to 20"),
        ({"attempts": 21}, "attempts= is wrong"),
        ({"factor": 0.5}, "factor= is wrong"),
        ({"longest": "367d"}, "longest is too long"),
    ],
)
def test_a_wrong_backoff_is_refused(options, said):
    with pytest.raises(hw.UsageError, match=said):
        hw.backoff(**{"first": "1s"} | options)
