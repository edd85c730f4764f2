"""Another number of shards: nothing is lost, everything is where Spark's tasks look for it, and the view continues as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import headwater as hw
from headwater.client.client import Client
from headwater.errors import FencedError, StorageError, UsageError
from headwater.follow.results import results
from headwater.operate.views.scale import scale
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.output import expiry
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.state.files import Place
from headwater.pipeline.state.layouts import FORGETTING, PLAIN, layout, shard_of
from headwater.pipeline.state.reshard import scaled
from headwater.pipeline.state.shard import Shard, size_of
from headwater.pipeline.time.watermark import Moment
from headwater.pipeline.topics import Topics
from headwater.result import Result
from headwater.testing import SettableClock
from support.memorystate import Memory, extended
from support.ordershop import Shop, orders
from support.servers import wait_until

keys = st.one_of(st.text(max_size=8).map(str.encode), st.sampled_from([b"t" * 600, b"k", b"t", b""]))


def forgetting(values: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The entries of such values with a time to live, as the operator itself writes them."""
    import pyarrow as pa

    from headwater.pipeline.output.changed_rows import ChangedRows

    rows_of = pa.table(
        {"_key": pa.array(list(values), pa.binary()), "_value": pa.array(list(values.values()), pa.binary())}
    )
    applied = expiry.Expiry(logic=ChangedRows(), after="1 hour").apply(rows_of, Memory(), Moment(0, 7))
    return {key: value for key, value in applied.changes.items() if value is not None}


@settings(max_examples=25, deadline=None)
@given(
    values=st.dictionaries(
        keys, st.binary(max_size=9).map(lambda b: b'{"v":"%b"}' % b.hex().encode()), max_size=40
    ),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    form=st.sampled_from([PLAIN, FORGETTING]),
)
def test_any_sequence_of_shard_counts_keeps_every_entry_in_the_shard_of_its_key(
    tmp_path_factory, values, counts, form
):
    folder = tmp_path_factory.mktemp("scale")
    entries = dict(values) if form == PLAIN else forgetting(values)
    first = extended(Shard(Place(str(folder / "files"), str(folder / "first")), 0, ()), 3, "1", entries)
    known = Result(
        run="r", batch=3, inputs={}, partitions=1, changed=9,
        state={"op": [first]}, layouts={"op": form} if form else {}, opens={"op": [5]},
    )  # fmt: skip
    for number, count in enumerate(counts):
        place = Place(str(folder / "files"), str(folder / f"copies-{number}"))
        known = scaled(known, {"op": place}, count, f"s{number}")
        found = [dict(Shard(place, shard, chain).items()) for shard, chain in enumerate(known.state["op"])]
        assert sum(map(len, found)) == len(entries)
        assert {key: value for each in found for key, value in each.items()} == entries
        for shard, each in enumerate(found):
            assert {shard_of(layout(form).owner(key, value), count) for key, value in each.items()} <= {shard}
            assert size_of(known.state["op"][shard]) == (
                len(each),
                sum(len(k) + len(v) for k, v in each.items()),
            )
        assert known.opens == {"op": [5] * count}
        assert (known.batch, known.changed, known.generation) == (3, 9, f"s{number}")
    assert {layout(form).owner(key, value) for key, value in entries.items()} == set(values)


def test_a_large_state_is_moved_in_small_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.pipeline.state.reshard.ROWS_HELD_MAX", 100)
    monkeypatch.setattr("headwater.pipeline.state.files.READ_BYTES", 1000)
    place = Place(str(tmp_path / "files"), str(tmp_path / "copies"))
    entries = {b"%d" % n: b"value" for n in range(5_000)}
    known = Result(
        run="r",
        batch=0,
        inputs={},
        partitions=1,
        state={"op": [extended(Shard(place, 0, ()), 0, "1", entries)]},
    )
    after = scaled(known, {"op": Place(place.files, str(tmp_path / "others"))}, 3, "s")
    found = [
        Shard(Place(place.files, str(tmp_path / "read")), n, chain).items()
        for n, chain in enumerate(after.state["op"])
    ]
    assert dict(entry for each in found for entry in each) == entries


# ---- through Spark -------------------------------------------------------------------------------------


def app(shop: Shop, **options: str) -> hw.App:
    declared = shop.app()

    @declared.view(key="country", name=shop.name("counted"), **options)
    def counted(orders):
        return hw.count(orders, "country", column="n")

    @declared.view(key="customer_id", name=shop.name("grouped"))
    def grouped(orders):
        return orders.groupBy("customer_id").count()

    @declared.view(key="country", name=shop.name("both"))
    def both(orders):
        return hw.latest(orders, "order_id", time="at").groupBy("country").count()

    return declared


VIEWS = ("counted", "grouped", "both")


def published(shop: Shop, view: str) -> list[str]:
    """The records of a view, in an order of their own: partitions are read in any."""
    return sorted(map(str, shop.records(shop.name(view))))


def shards(shop: Shop, view: str) -> set[int]:
    last = results(Client(shop.bootstrap), shop.name(view))[-1]
    return {len(chains) for chains in last.state.values()}


@pytest.mark.spark
def test_views_continue_right_with_more_and_fewer_shards(shop):
    shop.make("orders")
    for n, count in enumerate((5, 1, 3, None)):
        shop.send(orders(40, start=40 * n))
        Runner(app(shop), shop.settings).once()
        if count is not None:
            for view in VIEWS:
                before = published(shop, view)
                scale(shop.settings, shop.name(view), count)
                assert shards(shop, view) == {count}
                assert published(shop, view) == before

    answer = rows(app(shop), shop.settings)
    for view in VIEWS:
        assert shop.table(shop.name(view)) == answer[shop.name(view)]
    assert {row["n"] for row in shop.table(shop.name("counted")).values()} == set(
        Counter(order.country for order in orders(160)).values()
    )
    revisions = [row["_revision"] for key, row, _ in shop.records(shop.name("counted")) if key == "de"]
    assert revisions == [1, 2, 3, 4]


@pytest.mark.spark
def test_a_batch_that_spark_has_not_closed_is_repeated_on_the_new_shards(shop):
    shop.make("orders")
    for n in range(2):
        shop.send(orders(40, start=40 * n))
        Runner(app(shop), shop.settings).once()
    before = {view: published(shop, view) for view in VIEWS}
    for view in VIEWS:
        for file in (shop.settings.data / "checkpoints" / shop.name(view)).glob("*/commits/*1*"):
            file.unlink()
        scale(shop.settings, shop.name(view), 3)
    Runner(app(shop), shop.settings).once()
    assert {view: published(shop, view) for view in VIEWS} == before

    shop.send(orders(40, start=80))
    Runner(app(shop), shop.settings).once()
    answer = rows(app(shop), shop.settings)
    for view in VIEWS:
        assert shop.table(shop.name(view)) == answer[shop.name(view)]


@pytest.mark.spark
def test_time_outs_are_kept(shop):
    """Some rows are due soon, some later: they go when they would have gone."""
    shop.make("orders")
    clock = SettableClock()
    view = shop.name("newest")
    declared = shop.app()
    declared.view(key="order_id", name=view, forget="1 hour")(lambda orders: orders)

    def publish(first: int) -> None:
        shop.send(orders(20, start=first))
        Runner(declared, shop.settings, clock).once()

    publish(0)
    clock.advance(3_000)
    publish(20)
    scale(shop.settings, view, 7)
    assert len(results(Client(shop.bootstrap), view)[-1].opens["publish"]) == 7
    runner = Runner(declared, shop.settings, clock)
    runner.start()
    try:
        clock.advance(1_000)
        wait_until(
            lambda: set(shop.table(view)) == {str(n) for n in range(20, 40)}, 60, "the older rows' end"
        )
        clock.advance(3_000)
        wait_until(lambda: shop.table(view) == {}, 60, "the newer rows' end")
    finally:
        runner.stop()
    assert results(Client(shop.bootstrap), view)[-1].opens == {"publish": [None] * 7}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("point", "after"),
    [
        ("state delta is written", 2),
        ("state delta is synced#2", 2),
        ("before commit", 2),
        ("after commit", 5),
    ],
)
def test_a_kill_leaves_the_old_shards_or_the_new_ones(shop, tmp_path, point, after):
    shop.make("orders")
    shop.send(orders(40))
    Runner(app(shop), shop.settings).once()
    view = shop.name("counted")
    crash_file = tmp_path / "crash"
    crash_file.write_text(point)
    environment = os.environ | shop.settings.environ() | {"CRASH_FILE": str(crash_file)}
    command = [sys.executable, "-m", "headwater", "view", "scale", view, "--shards", "5"]
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=400, check=False)
    assert killed.returncode == -signal.SIGKILL
    run = results(Client(shop.bootstrap), view)[-1].run
    with closing(RunResults(Topics(shop.bootstrap), view, run, SettableClock())) as progress:
        progress.open(lambda: 0)
    assert shards(shop, "counted") == {after}

    shop.send(orders(40, start=40))
    Runner(app(shop), shop.settings).once()
    assert shards(shop, "counted") == {after}
    assert shop.table(view) == rows(app(shop), shop.settings)[view]
    (files,) = (shop.settings.data / "checkpoints" / view).glob("*/shards/publish")
    scaled_files = list(files.glob("*.scaled"))
    assert bool(scaled_files) == (after == 5)


@pytest.mark.spark
def test_copies_of_other_shards_are_never_taken(shop):
    """Another machine still has its copies, of the same numbers and the same version: a batch that failed has brought them there."""
    shop.make("orders")
    view = shop.name("counted")
    declared = shop.app()
    declared.view(key="country", name=view)(lambda orders: hw.count(orders, "country", column="n"))
    shop.send(orders(3))
    Runner(declared, shop.settings).once()
    shop.send(orders(40, start=3))
    with pytest.raises(StorageError):
        Runner(declared, replace(shop.settings, state_bytes_max=1)).once()
    copies = shop.settings.data / "copies"
    shutil.copytree(copies, copies.with_name("kept"))
    scale(shop.settings, view, 3)  # fr moves from shard 0 to shard 1
    shutil.rmtree(copies)
    copies.with_name("kept").rename(copies)
    Runner(declared, shop.settings).once()
    assert shop.table(view) == rows(declared, shop.settings)[view]


@pytest.mark.spark
def test_a_driver_that_runs_all_the_same_is_fenced(shop):
    shop.make("orders")
    view = shop.name("counted")
    runner = Runner(app(shop), shop.settings)
    runner.start()
    try:
        shop.send(orders(40))
        wait_until(lambda: runner.wait(0) or runner.caught_up(), 60, "the first rows")
        scale(shop.settings, view, 3)
        shop.send(orders(40, start=40))
        with pytest.raises(FencedError):
            wait_until(lambda: runner.wait(0.1), 60, "its end")
    finally:
        runner.stop()
    Runner(app(shop), shop.settings).once()
    assert shop.table(view) == rows(app(shop), shop.settings)[view]


@pytest.mark.spark
def test_what_cannot_be_scaled_is_refused(shop):
    with pytest.raises(UsageError, match="there is no view 'unknown' with results"):
        scale(shop.settings, "unknown", 3)
    with pytest.raises(UsageError, match="number of shards is out of range; got 0"):
        scale(shop.settings, "unknown", 0)
    running = shop.settings.data / "run" / "pipeline.pid"
    running.parent.mkdir(parents=True)
    running.write_text(str(os.getpid()))
    with pytest.raises(UsageError, match="cannot be scaled while the pipeline runs"):
        scale(shop.settings, "unknown", 3)


@pytest.mark.spark
def test_state_beyond_its_limit_fails_the_batch_and_the_view_continues_when_there_is_room(shop):
    shop.make("orders")
    view = shop.name("listed")
    declared = shop.app()
    declared.sql(view, "SELECT order_id, country FROM orders", key="order_id")
    shop.send(orders(20))
    Runner(declared, shop.settings).once()
    before = published(shop, "listed")
    shop.send(orders(100, start=20))
    tight = replace(shop.settings, state_bytes_max=1_000)
    for _ in range(2):
        with pytest.raises(
            StorageError, match=rf"view '{view}': state of publish, shard \d of 2, grows beyond.*view scale"
        ) as refused:
            Runner(declared, tight).once()
    assert refused.value.exit_code == 5
    assert published(shop, "listed") == before

    scale(tight, view, 6)
    with pytest.raises(StorageError, match=r"shard \d of 6"):
        Runner(declared, tight).once()
    Runner(declared, shop.settings).once()
    assert len(shop.table(view)) == 120
    assert {row["_revision"] for _, row, _ in shop.records(view)} == {1}
