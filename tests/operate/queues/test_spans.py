"""What has become of the offsets of a partition."""

from headwater.client.share.queue_state import RecordState, StateRun
from headwater.operate.queues.spans import spans


def run(first, last, state, deliveries=1, due_ms=None):
    return StateRun(first, last, state, deliveries, due_ms)


def test_what_no_run_says_anything_of_waits():
    runs = [run(2, 3, RecordState.ACQUIRED), run(6, 6, RecordState.DELAYED, 2, 99)]

    assert [span[:3] for span in spans(0, 10, runs)] == [
        (0, 1, "waiting"),
        (2, 3, "held"),
        (4, 5, "waiting"),
        (6, 6, "delayed"),
        (7, 9, "waiting"),
    ]


def test_runs_are_cut_to_what_is_asked_for():
    runs = [run(0, 5, RecordState.SETTLED), run(6, 20, RecordState.SCHEDULED)]

    assert [span[:3] for span in spans(3, 8, runs)] == [(3, 5, "settled"), (6, 7, "scheduled")]
    assert list(spans(8, 8, runs)) == []


def test_messages_of_transactions_are_held():
    assert [span.state for span in spans(0, 1, [run(0, 0, RecordState.PLEDGED)])] == ["held"]
