"""What every store promises a sink (``headwater/sink/store.py``).

A store's tests derive from `Contract` and say in ``place`` where it is.
"""

import contextlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from headwater.change import Change
from headwater.errors import UnavailableError, UsageError
from headwater.sink.store import Batch, SinkFeed, Store, Superseded, Target
from sink.suspended import Suspended, lines_run

COLUMNS = {"id": "STRING", "total": "DOUBLE", "at": "TIMESTAMP", "items": "ARRAY<STRING>"}


class Place(Protocol):
    """A store that is empty when a test begins."""

    target: Target

    def save(self) -> Any:
        """A copy of the whole store for `restore`, if it can be restored while a sink runs."""

    def restore(self, saved: Any) -> None:
        """Brings the store back to it."""

    def rows(self, feed: SinkFeed) -> Mapping[str, Mapping[str, Any]]:
        """What a user of the store sees: by key, the columns ``id`` and ``total`` at least."""

    def write_format(self, of: SinkFeed, number: int | None) -> None:
        """Gives what the sink keeps for itself another format.

        None takes the format away, as code from before formats has left it.
        """


def feed(sink: str = "orders.store", topic: str = "orders") -> SinkFeed:
    return SinkFeed(sink, topic, ("id",), COLUMNS)


def change(key: str, total: float | None, offset: int, partition: int = 0) -> Change:
    """A row of ``key``, or its deletion."""
    row = {
        "id": key,
        "total": total,
        "at": "2026-01-31T10:00:00.000001Z",
        "items": ["a", 'b"'],
        "_revision": 1,
    }
    return Change(key, None if total is None else json.dumps(row), partition, offset, 1_769_853_600_000)


def version(key: str, number: int, offset: int) -> Change:
    """A row of a real-time view whose total is its version."""
    row = change(key, number, offset)
    value = json.dumps(json.loads(row.value or "{}") | {"_version": number})
    return msgspec.structs.replace(row, value=value, version=number)


def batch(*changes: Change, **upto: int) -> Batch:
    """Changes and the offsets after them; ``p0=9`` moves a partition further."""
    after = {each.partition: each.offset + 1 for each in changes}
    return Batch(changes, after | {int(name[1:]): offset for name, offset in upto.items()})


def copied(folder: Path) -> Path:
    """A copy of a folder next to it."""
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-copy")))


def brought_back(folder: Path, copy: Path) -> None:
    """The folder as it was when it was copied."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def filled(store: Store, changes: list[Change]) -> None:
    """Applies all changes of partition 0 as the loop does: after Superseded it claims again and continues."""
    for _ in range(5):
        try:
            at = store.claim([0]).get(0, 0)
            store.apply(Batch(changes[at:], {0: len(changes)}))
        except Superseded:
            continue
        return
    raise AssertionError("superseded all the time")


class Contract:
    """The promises, one test each."""

    fences = True
    """Whether a holder that was superseded is refused; a store that goes by versions may take what changes
    nothing."""
    restores = True
    """Whether it notices that it was brought back to an older state."""
    versions = True
    """Whether it keeps the newest version of a row of a real-time view."""
    empties = True
    """Whether a reset removes rows; effects that were delivered stay delivered."""
    suspensions = 40
    """At how many of its lines a reset is suspended, at most."""

    @pytest.fixture
    def store(self, place: Place):
        store = place.target.open(feed())
        yield store
        store.close()

    def test_what_a_newer_version_keeps_there_is_refused_and_left_alone(self, place: Place, store: Store):
        store.claim([0])
        store.apply(batch(change("a", 1, 0)))
        before = self.totals(place)
        place.write_format(feed(), 2)
        refused = (
            r"was written by a newer Headwater; got format 2; expected at most 1; "
            r"install that version again, or give"
        )

        with pytest.raises(UsageError, match=refused), contextlib.closing(place.target.open(feed())) as later:
            later.claim([0])
        with pytest.raises(UsageError, match=refused):
            store.claim([0])
        place.write_format(feed(), 1)
        assert self.totals(place) == before
        assert dict(store.claim([0])) == {0: 1}

    def test_a_store_from_before_formats_continues(self, place: Place, store: Store):
        store.claim([0])
        store.apply(batch(change("a", 1, 0), change("b", 2, 1)))
        place.write_format(feed(), None)

        with contextlib.closing(place.target.open(feed())) as later:
            assert dict(later.claim([0])) == {0: 2}
            later.apply(batch(change("b", 2, 1), change("c", 3, 2)))
            assert self.totals(place) == {"a": 1, "b": 2, "c": 3}

    def totals(self, place: Place, of: SinkFeed | None = None) -> dict[str, float]:
        return {key: row["total"] for key, row in place.rows(of or feed()).items()}

    def test_a_batch_takes_effect_with_its_offsets(self, place: Place, store: Store):
        assert dict(store.claim([0, 1])) == {}
        store.apply(batch(change("a", 1.5, 0), change("b", 2.5, 7, partition=1)))

        assert self.totals(place) == {"a": 1.5, "b": 2.5}
        assert dict(store.claim([0, 1, 2])) == {0: 1, 1: 8}

    def test_the_newest_change_of_a_key_is_its_row_and_a_deletion_takes_it_out(self, place, store):
        store.claim([0])
        store.apply(batch(change("a", 1, 0), change("b", 1, 1), change("a", 2, 2), change("c", 1, 3)))
        store.apply(
            batch(change("b", None, 4), change("c", None, 5), change("c", 9, 6), change("d", None, 7))
        )

        assert self.totals(place) == {"a": 2, "c": 9}

    def test_what_was_applied_before_changes_nothing(self, place, store):
        store.claim([0])
        store.apply(batch(change("a", 1, 0), change("a", 2, 1)))
        store.claim([0])
        store.apply(batch(change("a", 1, 0), change("b", 1, 2)))

        assert self.totals(place) == {"a": 2, "b": 1}
        assert dict(store.claim([0])) == {0: 3}

    def test_markers_at_the_end_of_a_partition_are_passed(self, store):
        store.claim([0, 1])
        store.apply(batch(change("a", 1, 0), p0=5, p1=3))

        assert dict(store.claim([0, 1])) == {0: 5, 1: 3}

    def test_a_store_that_is_opened_again_knows_how_far_it_is(self, place, store):
        store.claim([0])
        store.apply(batch(change("a", 1, 41)))
        store.close()
        again = place.target.open(feed())

        assert dict(again.claim([0])) == {0: 42}
        again.apply(batch(change("a", 2, 42)))
        assert self.totals(place) == {"a": 2}
        again.close()

    @pytest.mark.parametrize("first", [0, 1], ids=["before its first batch", "between two"])
    def test_a_store_that_was_restored_from_an_older_copy_is_filled_from_there(self, place, store, first):
        if not self.restores:
            pytest.skip("does not notice it")
        changes = [change(key, n, n) for n, key in enumerate("abcd")]
        store.claim([0, 1])
        for each in changes[:first]:
            store.apply(batch(each))
        saved = place.save()
        store.apply(batch(changes[first]))
        store.apply(batch(changes[first + 1]))
        place.restore(saved)

        with pytest.raises((Superseded, UnavailableError)):
            store.apply(batch(changes[3]))
        assert dict(store.claim([0])) == ({0: first} if first else {})
        store.apply(batch(*changes[first:]))
        assert self.totals(place) == {"a": 0, "b": 1, "c": 2, "d": 3}

    def test_a_holder_that_was_superseded_writes_nothing(self, place, store):
        store.claim([0, 1])
        store.apply(batch(change("a", 1, 0)))
        successor = place.target.open(feed())
        assert dict(successor.claim([0])) == {0: 1}
        successor.apply(batch(change("a", 2, 1)))

        if self.fences:
            with pytest.raises(Superseded):
                store.apply(batch(change("a", 3, 1), change("b", 3, 0, partition=1)))
        else:
            store.apply(batch(change("a", 3, 1)))
        assert self.totals(place) == {"a": 2}
        assert dict(successor.claim([0])) == {0: 2}
        successor.close()

    def test_what_one_holder_has_claimed_does_not_disturb_the_other_partitions(self, place, store):
        store.claim([0, 1])
        successor = place.target.open(feed())
        successor.claim([1])
        store.apply(batch(change("a", 1, 0)))
        successor.apply(batch(change("b", 2, 0, partition=1)))

        assert self.totals(place) == {"a": 1, "b": 2}
        successor.close()

    def test_a_key_that_moves_to_another_partition_keeps_its_newest_row(self, place, store):
        """With more partitions, later records of a key may be in another partition, at smaller offsets."""
        store.claim([0, 1])
        store.apply(batch(change("a", 1, 50), change("b", 1, 51), change("c", 1, 52)))
        store.claim([2, 3])
        store.apply(batch(change("a", 2, 0, partition=2), change("b", None, 0, partition=3)))
        store.apply(batch(change("a", 3, 1, partition=2), change("b", 4, 1, partition=3)))
        store.apply(batch(change("c", None, 2, partition=2)))

        assert self.totals(place) == {"a": 3, "b": 4}

    def test_reset_forgets_rows_and_offsets(self, place, store):
        store.claim([0])
        store.apply(batch(change("a", 1, 0), change("b", 1, 1)))
        store.reset()

        assert self.totals(place) == {}
        assert dict(store.claim([0])) == {}
        store.apply(batch(change("b", 3, 0)))
        assert self.totals(place) == {"b": 3}

    @pytest.fixture
    def hurried(self, place: Place, monkeypatch):
        """Who waits for a lock that a suspended process holds does not wait for long."""
        module = sys.modules[type(place.target).__module__]
        for name in ("BUSY_S", "LOCK_S"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 0.2)

    @pytest.mark.usefixtures("hurried")
    def test_a_suspended_reset_deletes_nothing_that_its_successor_has_written(self, place):
        """It is suspended at each of its lines.

        A reset that has not begun may also come late and whole: the successor is superseded, and fills again.
        """
        if not self.empties:
            pytest.skip("removes nothing")
        old = [change("a", 1, 0), change("b", 2, 1), change("c", 3, 2)]
        new = [change("a", 7, 0), change("n", 8, 1), change("c", 9, 2)]

        def begun() -> Store:
            store = place.target.open(feed())
            filled(store, old)
            return store

        def reset(store: Store) -> None:
            try:
                store.reset()
            finally:
                store.close()

        probe = begun()
        file = sys.modules[type(probe).__module__].__file__
        lines = lines_run(probe.reset, file)
        probe.close()
        successor = place.target.open(feed())
        for line in range(1, lines + 1, -(-lines // self.suspensions)):
            successor.reset()
            resetting = Suspended(begun, reset, file, line)
            resetting.wait()
            with contextlib.suppress(UnavailableError):  # a lock shuts it out until the other continues
                if successor.claim([0]):  # the reset has not begun: the next process does it
                    successor.reset()
                filled(successor, new)
            resetting.resume()

            assert isinstance(resetting.error, Superseded | None), resetting.error
            at = successor.claim([0]).get(0, 0)
            assert self.totals(place) == {c.key: json.loads(c.value)["total"] for c in new[:at]}, line
            filled(successor, new)
            assert self.totals(place) == {"a": 7, "n": 8, "c": 9}, line
        successor.close()

    def test_a_row_that_was_deleted_and_comes_back_takes_the_place_of_a_greater_version(self, place):
        """Whether the deletion and the new row come in one batch or in two."""
        if not self.versions:
            pytest.skip("does not choose between versions")
        of = msgspec.structs.replace(feed(), versioned=True)
        store = place.target.open(of)
        store.claim([0])
        store.apply(batch(version("a", 10, 0), version("b", 10, 1), version("c", 10, 2)))
        store.apply(batch(version("a", 9, 3), change("b", None, 4), version("b", 3, 5), change("c", None, 6)))
        store.apply(batch(version("c", 4, 7), version("b", 2, 8)))

        assert self.totals(place, of) == {"a": 10, "b": 3, "c": 4}
        store.close()

    def test_two_sinks_do_not_know_of_each_other(self, place, store):
        other = feed("clicks.store", "clicks")
        second = place.target.open(other)
        store.claim([0])
        second.claim([0])
        store.apply(batch(change("a", 1, 0)))
        second.apply(batch(change("z", 5, 99)))

        assert dict(store.claim([0])) == {0: 1}
        assert dict(second.claim([0])) == {0: 100}
        second.close()
