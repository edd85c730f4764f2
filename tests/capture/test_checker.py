"""What the tests of kills find wrong: a change that comes again, or out of order, also where the last state is right."""

from typing import Any

import pytest

from support.captured import Event, Unknown, once_in_order, table

SOURCES = {
    "postgres": [{"lsn": lsn} for lsn in (90, 100, 110, 120, 130)],
    "mariadb": [
        {"file": file, "pos": pos, "row": row}
        for file, pos, row in (
            ("bin.000009", 4, 0),
            ("bin.000009", 400, 0),
            ("bin.000009", 400, 1),
            ("bin.000010", 4, 0),
            ("bin.000010", 90, 0),
        )
    ],
}


@pytest.fixture(params=SOURCES)
def sound(request) -> list[Event]:
    """A row of a snapshot, two updates, another row, and a delete with its tombstone."""
    made = [("r", 1, 0), ("u", 1, 1), ("u", 1, 2), ("c", 2, 0), ("d", 1, None)]
    found = []
    for (op, key, n), place in zip(made, SOURCES[request.param], strict=True):
        source: dict[str, Any] = place | {"snapshot": "true" if op == "r" else "false"}
        after = None if n is None else {"id": key, "n": n}
        found.append(Event("t", {"id": key}, {"op": op, "after": after, "source": source}))
    return [*found, Event("t", {"id": 1}, None)]


def test_a_topic_that_is_right_passes(sound):
    once_in_order(sound)
    assert table(sound, "t") == {'{"id": 2}': {"id": 2, "n": 0}}


def test_a_row_that_was_never_there_is_found_unless_the_first_truncate_comes_after_it(sound):
    with pytest.raises(Unknown, match="changed and was not there"):
        table(sound[1:], "t")
    if "lsn" in sound[1].value["source"]:
        truncate = {"op": "t", "after": None, "source": {"lsn": 140, "snapshot": "false"}}
        assert table([*sound[1:], Event("t", None, truncate)], "t") == table(sound, "t")
        first = {"op": "t", "after": None, "source": {"lsn": 1, "snapshot": "false"}}
        with pytest.raises(Unknown):
            table([Event("t", None, first), *sound[1:], Event("t", None, truncate)], "t")


def test_an_update_that_comes_again_is_found(sound):
    again = [*sound[:3], sound[2], *sound[3:]]
    assert table(again, "t") == table(sound, "t"), "the last state alone does not show it"
    with pytest.raises(AssertionError, match=r"u at .* comes after"):
        once_in_order(again)


def test_updates_out_of_order_are_found(sound):
    swapped = [sound[0], sound[2], sound[1], *sound[3:]]
    assert table(swapped, "t") == table(sound, "t")
    with pytest.raises(AssertionError, match="comes after"):
        once_in_order(swapped)


def test_a_whole_transaction_that_comes_again_is_found(sound):
    with pytest.raises(AssertionError, match="comes after"):
        once_in_order([*sound[:4], *sound[1:]])


def test_a_row_that_a_snapshot_brings_twice_is_found(sound):
    with pytest.raises(AssertionError, match="comes twice from the snapshot"):
        once_in_order([sound[0], *sound])


def test_the_order_of_different_rows_is_free(sound):
    once_in_order([sound[3], *sound[:3], *sound[4:]])
