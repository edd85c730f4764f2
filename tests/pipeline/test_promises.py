"""The checker of the batch protocol finds every fault that is planted."""

import copy
from collections.abc import Callable

import pytest

from pipeline.promises import Published, complaints


def shards() -> dict[str, list[list[str]]]:
    """Of each operator the files of its shards, of which there are two."""
    return {"count1": [[], []], "publish": [[], []]}


def sound() -> Published:
    """Three batches: de and fr, then de again, then nothing, of which nothing is written."""
    rows = [{"c": "de", "n": 1, "_revision": 1}, {"c": "fr", "n": 1, "_revision": 1}]
    again = {"c": "de", "n": 2, "_revision": 2}
    results = [
        {
            "batch": 0,
            "run": "r",
            "inputs": {"t": {"0": 2}},
            "outputs": {"0": 2},
            "changed": 2,
            "state": shards(),
        },
        {
            "batch": 1,
            "run": "r",
            "inputs": {"t": {"0": 3}},
            "outputs": {"0": 4},
            "changed": 1,
            "state": shards(),
        },
        {"batch": 2, "run": "r", "inputs": {"t": {"0": 4}}, "outputs": {"0": 4}, "state": shards()},
    ]
    return Published(
        records=[(0, 0, "de", rows[0]), (0, 1, "fr", rows[1]), (0, 3, "de", again)],
        results=results,
        state={"de": again, "fr": rows[1]},
        expected={"de": {"c": "de", "n": 2}, "fr": {"c": "fr", "n": 1}},
        inner={"count1": {"de": 2, "fr": 1}},
        inner_expected={"count1": {"de": 2, "fr": 1}},
    )


def lose(published: Published) -> None:
    del published.records[1]


def lose_an_update(published: Published) -> None:
    del published.records[0]


def double(published: Published) -> None:
    published.records.append((0, 4, *published.records[2][2:]))


def publish_without_a_result(published: Published) -> None:
    published.records.append((0, 5, "us", {"c": "us", "n": 1, "_revision": 1}))
    published.state["us"] = {"c": "us", "n": 1, "_revision": 1}
    published.expected["us"] = {"c": "us", "n": 1}


def keep_the_state_of_another_attempt(published: Published) -> None:
    published.state["de"] = {"c": "de", "n": 3, "_revision": 2}


def accept_a_batch_that_was_cut_differently(published: Published) -> None:
    published.results[1]["inputs"]["t"]["0"] = 1


def skip_a_batch(published: Published) -> None:
    published.results[1]["batch"] = 2


def change_runs(published: Published) -> None:
    published.results[1]["run"] = "s"


def retry_with_another_number_of_tasks(published: Published) -> None:
    published.results[1]["state"]["count1"] = [[], [], []]


def count_twice(published: Published) -> None:
    published.records[2] = (0, 3, "de", {"c": "de", "n": 3, "_revision": 2})
    published.state["de"] = published.records[2][3]


def publish_a_batch_without_its_result(published: Published) -> None:
    del published.results[1]


def lose_a_result_in_the_middle(published: Published) -> None:
    del published.results[0]


def apply_a_batch_twice_to_an_operator(published: Published) -> None:
    published.inner["count1"]["de"] = 3


def lose_the_state_of_an_operator(published: Published) -> None:
    del published.inner["count1"]


def many(count: int = 10_000) -> Published:
    """One batch of many keys."""
    rows = {str(n): {"c": n, "_revision": 1} for n in range(count)}
    return Published(
        records=[(0, n, key, row) for n, (key, row) in enumerate(rows.items())],
        results=[
            {"batch": 0, "run": "r", "inputs": {"t": {"0": 1}}, "outputs": {"0": count}, "changed": count}
        ],
        state=dict(rows),
        expected={key: {"c": row["c"]} for key, row in rows.items()},
    )


def test_one_of_ten_thousand_records_that_is_lost_or_doubled_is_found():
    assert complaints(many()) == []
    lost, doubled = many(), many()
    del lost.records[7_000]
    doubled.records.append((0, 10_000, *doubled.records[7_000][2:]))

    assert complaints(lost)
    assert complaints(doubled)


def test_what_is_sound_is_not_complained_about():
    assert complaints(sound()) == []


@pytest.mark.parametrize(
    "plant",
    [
        lose,
        lose_an_update,
        double,
        publish_without_a_result,
        publish_a_batch_without_its_result,
        lose_a_result_in_the_middle,
        apply_a_batch_twice_to_an_operator,
        lose_the_state_of_an_operator,
        keep_the_state_of_another_attempt,
        accept_a_batch_that_was_cut_differently,
        skip_a_batch,
        change_runs,
        retry_with_another_number_of_tasks,
        count_twice,
    ],
)
def test_every_planted_fault_is_found(plant: Callable[[Published], None]):
    published = copy.deepcopy(sound())
    plant(published)
    assert complaints(published)
