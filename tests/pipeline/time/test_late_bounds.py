"""The bounds of a real-time view: what each batch went by, also for the next process."""

from headwater.pipeline.time.late_bounds import Bounds


def test_each_batch_has_the_bound_that_was_set_for_it_after_a_restart_too(tmp_path):
    bounds = Bounds(tmp_path)
    assert bounds.of(3) is None
    bounds.note(1, 100, settled=-1)
    bounds.note(3, 300, settled=0)
    bounds.note(4, 400, settled=1)
    for known in (bounds, Bounds(tmp_path)):
        assert [known.of(batch) for batch in range(6)] == [None, 100, 100, 300, 400, 400]


def test_a_start_takes_back_the_bounds_of_batches_that_run_again(tmp_path):
    bounds = Bounds(tmp_path)
    bounds.note(1, 100, settled=0)
    bounds.note(3, 300, settled=1)
    again = Bounds(tmp_path)
    again.note(2, 50, settled=1)
    assert [Bounds(tmp_path).of(batch) for batch in (1, 2, 3, 9)] == [100, 50, 50, 50]


def test_a_bound_that_is_the_same_takes_back_later_ones_all_the_same(tmp_path):
    bounds = Bounds(tmp_path)
    bounds.note(1, 100, settled=0)
    bounds.note(5, 500, settled=0)
    bounds.note(3, 100, settled=0)
    assert Bounds(tmp_path).of(7) == 100


def test_what_no_batch_to_settle_goes_by_is_forgotten(tmp_path):
    bounds = Bounds(tmp_path)
    for batch in range(1000):
        bounds.note(batch + 2, batch, settled=batch)
    assert (tmp_path / "bounds.json").stat().st_size < 200
    assert [bounds.of(batch) for batch in (999, 1000, 1001)] == [997, 998, 999]
