"""The long runs can be cut into slices: which seeds, and the environment of the test."""

import argparse
import json
from pathlib import Path

import pytest

from crash.faults import KINDS, TESTS, environment, lines, say, seeds


@pytest.mark.parametrize(("text", "expected"), [("0-9", (0, 9)), ("7", (7, 7)), ("10-10", (10, 10))])
def test_a_slice_is_a_range_of_seeds(text, expected):
    assert seeds(text) == expected


@pytest.mark.parametrize("text", ["", "9-0", "a-b", "-3", "1-2-3"])
def test_what_is_not_a_slice_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="seeds are"):
        seeds(text)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_kind_reads_the_variables_that_it_is_given(kind):
    source = Path(TESTS / kind.test).read_text()
    assert all(f'"{name}"' in source for name in environment(kind, 0, 1))


def test_a_whole_run_is_what_was_promised():
    amounts = {name: int(environment(k, *k.seeds)[k.amount_variable]) for name, k in KINDS.items()}
    assert amounts == {
        "power": 300,
        "simulation": 100_000,
        "simulation-long": 200,
        "simulation-views": 2_000,
        "simulation-captures": 2_000,
        "simulation-sinks": 2_000,
        "queue": 2000,
        "queue-kill": 300,
        "kill": 300,
        "views-kill": 10,
        "stage": 300,
        "stage-kafka": 100,
        "stage-executor": 50,
        "joins": 100,
        "joins-kafka": 30,
        "joins-executor": 30,
        "sink": 300,
        "time": 100,
        "tables": 100,
        "sql": 2_004,
        "versions": 1000,
        "fair": 2,
        "twelve": 40,
        "skew": 1_000_000,
        "capture": 100,
        "capture-mariadb": 100,
        "capture-large": 25,
        "values": 100,
        "cluster": 12,
        "fuzz": 100_000,
    }


def test_each_seed_says_what_it_killed_and_one_that_says_nothing_has_not_passed(tmp_path):
    tallied = {"seed": 4, "outcome": "passed", "kills": 10, "killed": {"driver": 10}}
    (tmp_path / "tally").write_text(json.dumps(tallied) + "\n")
    assert lines(tmp_path / "tally", 4, 5, "passed") == [
        {"seeds": "4", "outcome": "passed", "kills": 10, "killed": {"driver": 10}},
        {"seeds": "5", "outcome": "failed", "kills": 0},
    ]
    cut_off = lines(tmp_path / "nothing", 0, 1, "interrupted")
    assert [line["outcome"] for line in cut_off] == ["interrupted", "interrupted"]


def test_who_waits_for_a_slice_sees_how_far_it_is(tmp_path, capsys):
    progress = tmp_path / "progress"
    say("simulation 7-9", 30, progress)
    progress.write_text("a life that failed\n1200 of 3000 lives, 1 failed")
    say("simulation 7-9", 90, progress)
    assert capsys.readouterr().out.splitlines() == [
        "simulation 7-9: 0.5 minutes",
        "simulation 7-9: 1.5 minutes, 1200 of 3000 lives, 1 failed",
    ]
