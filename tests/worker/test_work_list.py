"""What a worker holds and what follows from each outcome, without a log, a thread or a clock."""

import uuid

import pytest

import headwater as hw
from headwater.client.share.link import Delivery
from headwater.record import Record
from headwater.worker.outcome import Bury, Failed, GiveBack, Rejected, Retry, Succeeded, judge
from headwater.worker.work import Work
from headwater.worker.work_list import AHEAD_MAX, TaskState, WorkList

PLACE = uuid.uuid4(), 0
OTHER = uuid.uuid4(), 3
LOCK_S = 30.0
POLICY = hw.backoff("1s", jitter=False, attempts=3)


def listed(concurrency=2, timeout_s=60.0, **options):
    return WorkList(concurrency, timeout_s, POLICY, lambda: 0.0, **options)


def delivered(*offsets, place=PLACE, count=1, key=None):
    return [Delivery("mails", place, Record(key, b"v", offset=offset), count) for offset in offsets]


def begin_all(work, now=0.0):
    begun = []
    while (task := work.start(now)) is not None:
        begun.append(task)
    return begun


# ---- outcomes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "attempt", "verdict"),
    [
        (Succeeded(), 1, Succeeded()),
        (Succeeded(), 3, Succeeded()),
        (Failed("why"), 1, GiveBack(1_000, "why")),
        (Failed("why"), 2, GiveBack(2_000, "why")),
        (Failed("why", "line 1"), 3, Bury("why", "line 1")),
        (Retry(70, "later"), 2, GiveBack(70, "later")),
        (Retry(70, "later"), 3, Bury("later")),
        (Rejected("never", "line 1"), 1, Bury("never", "line 1")),
    ],
)
def test_what_follows_from_an_outcome(outcome, attempt, verdict):
    assert judge(outcome, attempt, POLICY, 0.0) == verdict


# ---- what is held --------------------------------------------------------------------------------------


def test_so_many_handlers_run_at_once_and_messages_begin_in_their_order():
    work = listed()
    work.take(delivered(5, 6, 7), 0.0, LOCK_S)

    first, second = begin_all(work)
    assert [first.record.offset, second.record.offset] == [5, 6]
    assert work.finish(second, Succeeded(), 1.0) == Succeeded()

    assert [task.record.offset for task in begin_all(work)] == [7]


def test_nothing_is_fetched_ahead_until_handlers_are_known_to_be_quick():
    work = listed()
    assert work.room() == 2
    work.take(delivered(1, 2), 0.0, LOCK_S)
    assert work.room() == 0

    slow, quick = begin_all(work)
    work.finish(slow, Succeeded(), 30.0)
    assert work.room() == 1

    for _ in range(200):
        work.settle(quick)
        work.take(delivered(3), 0.0, LOCK_S)
        (task,) = begin_all(work)
        work.finish(task, Succeeded(), 0.0001)
    assert 100 < work.room() <= AHEAD_MAX + 2


def test_a_message_that_was_delivered_too_often_is_buried_without_a_call():
    work = listed()

    ((task, verdict),) = work.take(delivered(1, count=4), 0.0, LOCK_S)

    assert "3 deliveries ended without an outcome" in verdict.reason
    assert begin_all(work) == []
    assert work.find(PLACE, 1) is task


def test_locks_are_renewed_while_messages_wait_run_and_end():
    work = listed(concurrency=1)
    work.take(delivered(1, 2), 0.0, LOCK_S)
    (task,) = begin_all(work)
    assert list(work.renewals(9.9, LOCK_S)) == []

    assert [each.record.offset for each in work.renewals(10.0, LOCK_S)] == [1, 2]
    assert list(work.renewals(10.1, LOCK_S)) == []
    work.finish(task, Succeeded(), 11.0)
    assert len(list(work.renewals(20.0, LOCK_S))) == 2
    work.settle(task)

    assert [each.record.offset for each in work.renewals(30.0, LOCK_S)] == [2]


def test_a_handler_that_runs_too_long_gives_its_place_and_its_message_away():
    work = listed(concurrency=1, timeout_s=5.0)
    work.take(delivered(1, 2), 0.0, LOCK_S)
    (hung,) = begin_all(work)
    assert work.overdue(4.9) == []

    ((task, verdict),) = work.overdue(5.0)
    work.settle(task)

    assert (task, verdict) == (hung, GiveBack(1_000, "TimeoutError: the handler ran for more than 5 s"))
    assert (work.hung, work.running) == (1, 0)
    assert [each.record.offset for each in begin_all(work)] == [2]
    assert work.finish(hung, Succeeded(), 9.0) is None
    assert work.hung == 0


def test_the_last_attempt_that_runs_too_long_is_buried():
    work = listed(timeout_s=5.0)
    work.take(delivered(1, count=3), 0.0, LOCK_S)
    begin_all(work)

    ((_, verdict),) = work.overdue(5.0)

    assert isinstance(verdict, Bury)


def test_what_was_held_through_a_lost_connection_is_others_and_outcomes_of_it_do_not_count():
    work = listed()
    work.take([*delivered(1, 2, 3), *delivered(9, place=OTHER)], 0.0, LOCK_S)
    first, second = begin_all(work)

    assert work.lose([PLACE]) == 3

    assert (work.held, work.running) == (1, 2)
    assert work.finish(first, Succeeded(), 1.0) is None
    assert [task.record.offset for task in begin_all(work)] == [9]
    # The same message may come back while its first handler still runs.
    work.take(delivered(2, count=2), 2.0, LOCK_S)
    again = work.find(PLACE, 2)
    assert work.finish(second, Succeeded(), 3.0) is None
    work.settle(second)
    work.drop(second)
    assert work.find(PLACE, 2) is again


def test_messages_whose_handler_was_not_called_are_given_back():
    work = listed(concurrency=1)
    work.take(delivered(1, 2, 3), 0.0, LOCK_S)
    (running,) = begin_all(work)

    assert [task.record.offset for task in work.give_back()] == [2, 3]

    assert (work.held, work.running) == (1, 1)
    assert running.state is TaskState.RUNNING


def test_a_message_whose_lock_is_lost_while_it_waits_is_not_begun():
    work = listed(concurrency=1)
    work.take(delivered(1, 2), 0.0, LOCK_S)
    begin_all(work)

    work.drop(work.find(PLACE, 2))

    assert work.give_back() == []


def test_a_message_that_comes_again_while_its_handler_runs_was_lost_and_its_first_outcome_does_not_count():
    work = listed()
    work.take(delivered(1), 0.0, LOCK_S)
    (first,) = begin_all(work)

    work.take(delivered(1, count=2), 40.0, LOCK_S)

    assert work.finish(first, Succeeded(), 41.0) is None
    (second,) = begin_all(work)
    assert work.finish(second, Succeeded(), 42.0) == Succeeded()


# ---- order ---------------------------------------------------------------------------------------------


def test_in_order_a_key_waits_for_the_end_of_a_call_that_takes_too_long():
    work = listed(concurrency=2, timeout_s=5.0, in_order=True)
    work.take(delivered(1, key=b"ada"), 0.0, LOCK_S)
    (hung,) = begin_all(work)

    assert work.overdue(5.0) == [(hung, None)]
    assert work.held == 1, "its lock is kept, and so the key"
    assert list(work.renewals(10.0, LOCK_S)) == [hung]

    assert work.finish(hung, Succeeded(), 9.0) == GiveBack(
        1_000, "TimeoutError: the handler ran for more than 5 s"
    )


def test_in_order_the_last_attempt_that_takes_too_long_is_buried_when_its_call_has_ended():
    work = listed(timeout_s=5.0, in_order=True)
    work.take(delivered(1, count=3, key=b"ada"), 0.0, LOCK_S)
    (hung,) = begin_all(work)

    assert work.overdue(5.0) == [(hung, None)]

    assert isinstance(work.finish(hung, Failed("late"), 6.0), Bury)


def test_in_order_a_call_that_does_not_end_is_known_after_twice_its_time():
    work = listed(timeout_s=5.0, in_order=True)
    work.take([*delivered(1, key=b"ada"), *delivered(2)], 0.0, LOCK_S)
    hung, _ = begin_all(work)
    work.overdue(5.0)

    assert work.stuck(9.9) is None
    assert work.stuck(10.0) is hung


def test_in_order_a_message_that_comes_again_waits_for_the_end_of_its_first_call():
    """Its lock was lost with the connection while the handler ran."""
    work = listed(concurrency=4, in_order=True)
    work.take(delivered(1, key=b"ada"), 0.0, LOCK_S)
    (first,) = begin_all(work)
    work.lose([PLACE])
    work.take([*delivered(1, key=b"ada", count=2), *delivered(2, key=b"bob")], 1.0, LOCK_S)

    assert [task.record.offset for task in begin_all(work)] == [2]
    assert work.finish(first, Succeeded(), 2.0) is None

    assert [task.record.offset for task in begin_all(work)] == [1]


def test_without_order_the_next_attempt_does_not_wait_for_a_call_that_takes_too_long():
    work = listed(timeout_s=5.0)
    work.take(delivered(1, key=b"ada"), 0.0, LOCK_S)
    (hung,) = begin_all(work)

    ((_, verdict),) = work.overdue(5.0)
    work.settle(hung)
    work.take(delivered(1, key=b"ada", count=2), 6.0, LOCK_S)

    assert isinstance(verdict, GiveBack)
    assert work.stuck(100.0) is None
    assert len(begin_all(work)) == 1


# ---- ends that could not be stored -----------------------------------------------------------------------


def test_a_message_whose_end_could_not_be_stored_ends_without_another_call_when_it_comes_again():
    work = listed()
    work.take(delivered(1, count=3), 0.0, LOCK_S)
    (task,) = begin_all(work)
    task.work = Work()
    task.work.write("out", b"made")
    verdict = work.finish(task, Succeeded(), 1.0)

    work.conclude_later(task, verdict)
    ((again, how),) = work.take(delivered(1, count=4), 2.0, LOCK_S)

    assert how == Succeeded()
    assert [written.record.value for written in again.work.end()] == [b"made"]
    assert begin_all(work) == []


def test_a_message_that_the_group_was_set_back_to_is_handled_again():
    work = listed()
    work.take(delivered(1, count=2), 0.0, LOCK_S)
    (task,) = begin_all(work)
    work.conclude_later(task, work.finish(task, Succeeded(), 1.0))

    assert work.take(delivered(1, count=1), 2.0, LOCK_S) == []
    assert len(begin_all(work)) == 1
    work.settle(work.find(PLACE, 1))
    work.take(delivered(1, count=3), 3.0, LOCK_S)
    assert len(begin_all(work)) == 1
