"""The checker of the kill tests finds each fault that is planted, and only then says anything."""

import pytest

from crash.told import Found, Sent, Told, faults

PLACE, OTHER = ("t", 0), ("t", 1)


def promised():
    told = Told()
    told.acknowledged[PLACE] = [(0, "a:0"), (1, "a:1"), (3, "a:2")]
    told.transactions = [
        Sent({(PLACE, "x:0"), (OTHER, "x:1")}, "committed"),
        Sent({(PLACE, "x:2"), (OTHER, "x:3")}, "aborted"),
        Sent({(PLACE, "x:4"), (OTHER, "x:5")}),
    ]
    told.commits[PLACE] = [7, 8]
    told.sent = {"a:0", "a:1", "a:2", "a:9", *(f"x:{i}" for i in range(6))}
    return told


def kept():
    records = {PLACE: [(0, "a:0"), (1, "a:1"), (2, "x:0"), (3, "a:2")], OTHER: [(0, "x:1")]}
    return Found(records, {PLACE: 8})


def lose(found):
    del found.records[PLACE][3]


def move(found):
    found.records[PLACE][3] = (4, "a:2")


def double(found):
    found.records[PLACE].append((5, "a:2"))


def invent(found):
    found.records[OTHER].append((1, "z:0"))


def reorder(found):
    found.records[OTHER] += [(1, "a:9"), (2, "x:5"), (3, "x:3")]


def halve(found):
    found.records[OTHER].clear()


def halve_doubtful(found):
    found.records[OTHER].append((2, "x:5"))


def show_aborted(found):
    found.records[OTHER].append((2, "x:3"))


def step_back(found):
    found.commits[PLACE] = 6


def forget_group(found):
    found.commits.clear()


def test_kept_promises_are_no_fault():
    assert faults(promised(), kept()) == []


def test_a_transaction_in_doubt_may_be_whole():
    found = kept()
    found.records[PLACE].append((6, "x:4"))
    found.records[OTHER].append((2, "x:5"))
    assert faults(promised(), found) == []


def test_a_record_that_failed_may_be_there_once():
    found = kept()
    found.records[PLACE].append((6, "a:9"))
    assert faults(promised(), found) == []


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (lose, "lost"),
        (move, "lost"),
        (double, "doubled"),
        (invent, "invented"),
        (reorder, "reordered"),
        (halve, "half a transaction"),
        (halve_doubtful, "half a transaction"),
        (show_aborted, "aborted, and visible"),
        (step_back, "group"),
        (forget_group, "group"),
    ],
)
def test_a_planted_fault_is_found(plant, word):
    found = kept()
    plant(found)
    assert any(fault.startswith(word) for fault in faults(promised(), found))
