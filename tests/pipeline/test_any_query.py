"""A view over tables says what Spark's own SQL says of what the tables hold, after every batch, whatever the query and the values.

SQL_SEED is the first dozen of programs, SQL_PROGRAMS their number.
"""

import os

import pytest

from pipeline.differential.programs import FIXED, program
from pipeline.differential.run import compared

pytestmark = pytest.mark.spark
TOGETHER = 12
"""Programs that share a history and a run."""
FIRST = int(os.environ.get("SQL_SEED", "0")) * TOGETHER
PROGRAMS = int(os.environ.get("SQL_PROGRAMS", "4"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, TOGETHER))
def test_a_view_over_tables_says_what_sql_says_of_the_tables(spark, shop, first):
    programs = [program(seed) for seed in range(first, min(first + TOGETHER, FIRST + PROGRAMS))]
    found = compared(spark, shop, programs, first)
    assert not found.differences, "\n".join(map(str, found.differences))
    assert not found.refused, found.refused


def test_views_that_were_wrong_once_say_what_sql_says(spark, shop):
    found = compared(spark, shop, FIXED, 1)
    assert not found.differences, "\n".join(map(str, found.differences))
    assert not found.refused, found.refused
