"""A view says what Spark's own SQL, or plain Python, says of the same rows, after every batch, whatever the query and the values; or it is refused.

SQL_SEED is the first dozen of programs, SQL_PROGRAMS their number. What differs is shrunk to a small case before it is reported.
"""

import json
import os
from pathlib import Path

import msgspec
import pytest

from pipeline.differential.generate import TOGETHER, Group, group
from pipeline.differential.history import history
from pipeline.differential.mutations import MUTATIONS, mutated, mutated_code
from pipeline.differential.oracles import Record
from pipeline.differential.programs import FIXED, Program
from pipeline.differential.run import Compared, compared
from pipeline.differential.shrink import Case, shrunk
from support.ordershop import Shop

FIRST = int(os.environ.get("SQL_SEED", "0"))
PROGRAMS = int(os.environ.get("SQL_PROGRAMS", "0"))
FEW = {0: 3, 2: 4}
"""Of which groups how many programs are run with all other tests: one of tables and one of streams."""
AMOUNTS = {FIRST + n: TOGETHER for n in range(-(-PROGRAMS // TOGETHER))} or FEW
RUNS_MAX = 30
FOUND = json.loads((Path(__file__).parents[1] / "differential" / "found.json").read_text())
REPLAYED = [
    "an update of a table does not take the old row out",
    "an outer join keeps its null row when a partner comes",
]
"""Of the defects that programs have found, those that they find again with all other tests."""


@pytest.fixture
def run(spark, bootstrap, tmp_path):
    """Runs programs, each time under a prefix and in a folder of their own."""

    def run(whole: Group, seed: int, *, first_only: bool = False) -> Compared:
        shop = Shop(bootstrap, tmp_path)
        shop.settings = msgspec.structs.replace(shop.settings, partitions=whole.shards)
        return compared(spark, shop, whole.programs, whole.batches, seed, first_only=first_only)

    return run


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("number", "amount"), AMOUNTS.items())
def test_a_view_says_what_sql_says_of_the_same_rows(run, number, amount):
    whole = group(number, amount)
    found = run(whole, number)
    if found.differences:
        pytest.fail(_report(run, whole, number, found))
    allowed = {each.text for each in whole.programs if each.refusable}
    assert found.refused.keys() <= allowed, found.refused


def _report(run, whole: Group, number: int, found: Compared) -> str:
    """The differences, and a small case of the first."""
    lines = [f"group {number}, {whole.shards} shards"]
    for each in found.differences:
        place = whole.programs.index(each.program)
        lines += [f"seed {number * TOGETHER + place}", str(each)]

    def fails(case: Case) -> bool:
        smaller = Group(case.programs, case.batches, whole.shards)
        return bool(run(smaller, number, first_only=True).differences)

    small = shrunk(Case([found.differences[0].program], whole.batches), fails, RUNS_MAX)
    return "\n".join([*lines, "shrunk to", str(small)])


@pytest.mark.spark
def test_views_that_were_wrong_once_say_what_sql_says(run):
    found = run(Group(FIXED, history(1, 2, streams=False), 2), 1)
    assert not found.differences, "\n".join(map(str, found.differences))
    assert not found.refused, found.refused


@pytest.mark.spark
@pytest.mark.parametrize("name", REPLAYED)
def test_a_program_that_found_a_defect_of_an_operator_finds_it_again(spark, run, tmp_path, name):
    seed, last = FOUND[name]["seed"], FOUND[name]["batch"]
    whole = group(seed // TOGETHER)
    alone = Group([whole.programs[seed % TOGETHER]], whole.batches[: last + 1], whole.shards)
    with mutated(spark, tmp_path, name):
        assert run(alone, seed // TOGETHER, first_only=True).differences
    assert not run(alone, seed // TOGETHER).differences


def test_every_defect_of_an_operator_can_be_put_in():
    assert FOUND.keys() <= MUTATIONS.keys()
    for each in MUTATIONS.values():
        mutated_code(each)


def test_a_case_is_shrunk_to_what_it_takes_to_fail():
    programs = [Program(f"SELECT id, name AS v0, age AS v1 FROM users WHERE id > {n}", ("id",), "select") for n in range(3)]  # fmt: skip
    batches = [[Record("users", (4 * batch + n,), None) for n in range(4)] for batch in range(3)]

    def fails(case: Case) -> bool:
        keys = [each.key for batch in case.batches[:2] for each in batch]
        return (2,) in keys and (7,) in keys and any("age AS v1" in each.sql for each in case.programs)

    small = shrunk(Case(programs, batches), fails)
    assert small.programs == [Program("SELECT id, age AS v1 FROM users", ("id",), "select")]
    assert [[each.key for each in batch] for batch in small.batches] == [[(2,)], [(7,)]]
