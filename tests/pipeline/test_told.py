"""The checker of the batch protocol finds every fault that is planted."""

import copy
from collections.abc import Callable

import pytest

from pipeline.told import Published, complaints


def sound() -> Published:
    """Two batches: de and fr, then de again."""
    rows = [{"c": "de", "n": 1, "_revision": 1}, {"c": "fr", "n": 1, "_revision": 1}]
    again = {"c": "de", "n": 2, "_revision": 2}
    results = [
        {"batch": 0, "run": "r", "inputs": {"t": {"0": 2}}, "outputs": {"0": 2}, "changed": 2},
        {"batch": 1, "run": "r", "inputs": {"t": {"0": 3}}, "outputs": {"0": 4}, "changed": 1},
    ]
    return Published(
        records=[(0, 0, "de", rows[0]), (0, 1, "fr", rows[1]), (0, 3, "de", again)],
        results=results,
        state={"de": again, "fr": rows[1]},
        expected={"de": {"c": "de", "n": 2}, "fr": {"c": "fr", "n": 1}},
    )


def lose(found: Published) -> None:
    del found.records[1]


def lose_an_update(found: Published) -> None:
    del found.records[0]


def double(found: Published) -> None:
    found.records.append((0, 4, *found.records[2][2:]))


def publish_without_a_result(found: Published) -> None:
    found.records.append((0, 5, "us", {"c": "us", "n": 1, "_revision": 1}))
    found.state["us"] = {"c": "us", "n": 1, "_revision": 1}
    found.expected["us"] = {"c": "us", "n": 1}


def keep_the_state_of_another_attempt(found: Published) -> None:
    found.state["de"] = {"c": "de", "n": 3, "_revision": 2}


def accept_a_batch_that_was_cut_anew(found: Published) -> None:
    found.results[1]["inputs"]["t"]["0"] = 1


def skip_a_batch(found: Published) -> None:
    found.results[1]["batch"] = 2


def change_runs(found: Published) -> None:
    found.results[1]["run"] = "s"


def count_twice(found: Published) -> None:
    found.records[2] = (0, 3, "de", {"c": "de", "n": 3, "_revision": 2})
    found.state["de"] = found.records[2][3]


def test_what_is_sound_is_not_complained_about():
    assert complaints(sound()) == []


@pytest.mark.parametrize(
    "plant",
    [
        lose,
        lose_an_update,
        double,
        publish_without_a_result,
        keep_the_state_of_another_attempt,
        accept_a_batch_that_was_cut_anew,
        skip_a_batch,
        change_runs,
        count_twice,
    ],
)
def test_every_planted_fault_is_found(plant: Callable[[Published], None]):
    found = copy.deepcopy(sound())
    plant(found)
    assert complaints(found)
