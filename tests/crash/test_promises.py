"""The checker of the kill tests finds each fault that is planted, and only then says anything."""

import pytest

from crash.promises import Observed, Promised, Sent, faults

PLACE, OTHER = ("t", 0), ("t", 1)


def promises():
    promised = Promised()
    promised.acknowledged[PLACE] = [(0, "a:0"), (1, "a:1"), (3, "a:2")]
    promised.transactions = [
        Sent({(PLACE, "x:0"), (OTHER, "x:1")}, "committed"),
        Sent({(PLACE, "x:2"), (OTHER, "x:3")}, "aborted"),
        Sent({(PLACE, "x:4"), (OTHER, "x:5")}),
    ]
    promised.commits[PLACE] = [7, 8]
    promised.sent = {"a:0", "a:1", "a:2", "a:9", *(f"x:{i}" for i in range(6))}
    return promised


def kept():
    records = {PLACE: [(0, "a:0"), (1, "a:1"), (2, "x:0"), (3, "a:2")], OTHER: [(0, "x:1")]}
    return Observed(records, {PLACE: 8})


def lose(observed):
    del observed.records[PLACE][3]


def move(observed):
    observed.records[PLACE][3] = (4, "a:2")


def double(observed):
    observed.records[PLACE].append((5, "a:2"))


def invent(observed):
    observed.records[OTHER].append((1, "z:0"))


def reorder(observed):
    observed.records[OTHER] += [(1, "a:9"), (2, "x:5"), (3, "x:3")]


def halve(observed):
    observed.records[OTHER].clear()


def halve_doubtful(observed):
    observed.records[OTHER].append((2, "x:5"))


def show_aborted(observed):
    observed.records[OTHER].append((2, "x:3"))


def step_back(observed):
    observed.commits[PLACE] = 6


def forget_group(observed):
    observed.commits.clear()


def test_kept_promises_are_not_faults():
    assert faults(promises(), kept()) == []


def test_a_transaction_in_doubt_may_be_whole():
    observed = kept()
    observed.records[PLACE].append((6, "x:4"))
    observed.records[OTHER].append((2, "x:5"))
    assert faults(promises(), observed) == []


def test_a_record_that_failed_may_be_there_once():
    observed = kept()
    observed.records[PLACE].append((6, "a:9"))
    assert faults(promises(), observed) == []


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
    observed = kept()
    plant(observed)
    assert any(fault.startswith(word) for fault in faults(promises(), observed))
