"""How a view starts: the table that decides is the one that DESIGN.md shows, and each of its cases decides something."""

from types import SimpleNamespace

import pytest

from headwater.errors import UsageError
from headwater.pipeline.definition.definition import FORM, Definition
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.start import HISTORY_CASES, PLAN_CASES, History, Start, check_plan, start_of
from headwater.pipeline.state.layouts import GROUPS
from headwater.result import Result
from pipeline.startpage import PAGE, page


def result(batch: int, run: str = "one", partitions: int = 2, **more) -> Result:
    return Result(run=run, batch=batch, inputs={}, partitions=partitions, **more)


def history(closed: int, newest: Result | None, batches: range) -> History:
    return History("v", "one", closed, newest, batches, 2)


def test_the_design_shows_the_tables_of_the_code():
    assert PAGE.read_text() == page(PAGE.read_text()), "make start-page"


@pytest.mark.parametrize(
    ("closed", "newest", "batches", "start"),
    [
        (-1, None, range(0), Start.FRESH),
        (4, result(4), range(5), Start.RESUMED),
        (4, result(5), range(6), Start.REPEATED),
        (-1, result(0), range(1), Start.REPEATED),
    ],
)
def test_a_run_starts_as_its_log_and_its_checkpoint_say(closed, newest, batches, start):
    assert start_of(history(closed, newest, batches)) is start


REFUSED = [
    (4, result(4, run="two"), range(5), "its topic was written by another run"),
    (4, result(6), range(7), "the checkpoint is from an earlier time"),
    (4, result(3), range(4), "results are missing"),
    (0, None, range(0), "results are missing"),
    (4, result(5), range(5, 6), "without the one before it"),
    (4, result(4, partitions=3), range(5), "keys would move to other partitions"),
]


@pytest.mark.parametrize(("closed", "newest", "batches", "why"), REFUSED)
def test_a_run_whose_log_and_checkpoint_contradict_each_other_is_refused(closed, newest, batches, why):
    with pytest.raises(UsageError, match=f"view 'v' cannot continue.*{why}.*headwater view reset v"):
        start_of(history(closed, newest, batches))


def test_every_case_of_the_history_is_tried_here():
    tried = {
        next(case.when for case in HISTORY_CASES if case.holds(history(closed, newest, batches)))
        for closed, newest, batches in [
            *(refused[:3] for refused in REFUSED),
            (-1, None, range(0)),
            (4, result(4), range(5)),
            (4, result(5), range(6)),
        ]
    }
    assert tried == {case.when for case in HISTORY_CASES}


LAST = result(
    3,
    state={"count1": [(), ()], PUBLISH: [(), ()]},
    layouts={PUBLISH: GROUPS},
    parts={"form": FORM, "steps": "a"},
)


def plan(steps: str = "a", shards: int = 2, layouts: dict[str, str] | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        timed={"count1": "", PUBLISH: ""},
        shards=shards,
        layouts={PUBLISH: GROUPS} if layouts is None else layouts,
        definition=Definition("2-0", {"form": FORM, "steps": steps}, dict),
    )


def test_a_run_continues_with_the_same_plan():
    check_plan("v", LAST, plan())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (plan(steps="b"), "its steps changed"),
        (plan(shards=3), "its operators or shards have changed"),
        (plan(layouts={}), "its rows are stored where Spark has grouped them"),
    ],
)
def test_a_run_does_not_continue_with_a_plan_for_other_state(changed, why):
    with pytest.raises(UsageError, match=f"view 'v' cannot continue.*{why}.*headwater view rebuild v APP"):
        check_plan("v", LAST, changed)


def test_every_case_of_the_plan_refuses():
    assert {case.verdict for case in PLAN_CASES} == {Start.REFUSED}
