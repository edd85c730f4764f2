"""Operators: the same rows give the same answer in a stream and in batch, in any order and any cut, and after a restart."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.errors import UsageError
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.operator.count_latest import Count, Latest
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.time.watermark import Moment
from support.ordershop import orders

BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
LOGICS = [Count(("word",)), Latest(("word",), "at")]
SCHEMA = pa.schema(
    [("word", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("_key", pa.string())]
)

events = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.none() | st.integers(0, 5)),
    min_size=1,
    max_size=30,
)


def table(rows_of: list[tuple]) -> pa.Table:
    made = [
        {"word": w, "n": n, "at": None if at is None else BEGIN + timedelta(seconds=at), "_key": w}
        for w, n, at in rows_of
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


class Memory:
    """State as a dict, and the last row that went out for each key."""

    def __init__(self, logic) -> None:
        self.logic, self.state, self.out = logic, {}, {}

    def get(self, keys):
        return {key: self.state[key] for key in keys if key in self.state}

    def each(self, keys):
        return list(map(self.state.get, keys))

    def take(self, rows_of: list[tuple]) -> None:
        applied = self.logic.apply(table(rows_of), self, Moment(0, 0))
        self.state |= applied.changes
        self.out |= {row["word"]: row for row in applied.rows.to_pylist()}


@pytest.mark.parametrize("logic", LOGICS, ids=lambda logic: logic.kind)
@settings(max_examples=60, deadline=None)
@given(rows_of=events, cut=st.integers(0, 30), seed=st.integers(0, 99))
def test_any_cut_and_any_order_give_the_batch_answer(logic, rows_of, cut, seed):
    whole, parts = Memory(logic), Memory(logic)
    whole.take(rows_of)
    shuffled = random.Random(seed).sample(rows_of, len(rows_of))
    for part in (shuffled[:cut], shuffled[cut:]):
        if part:
            parts.take(part)

    assert parts.state == whole.state
    assert parts.out == whole.out


@pytest.mark.parametrize("logic", LOGICS, ids=lambda logic: logic.kind)
@settings(max_examples=60, deadline=None)
@given(rows_of=events, seed=st.integers(0, 99))
def test_shuffled_input_gives_the_same_bytes(logic, rows_of, seed):
    one = logic.apply(table(rows_of), Nothing(), Moment(0, 0))
    two = logic.apply(table(random.Random(seed).sample(rows_of, len(rows_of))), Nothing(), Moment(0, 0))

    assert list(one.changes.items()) == list(two.changes.items())
    assert one.rows == two.rows


@pytest.mark.spark
def test_in_a_stream_and_in_batch_with_a_restart_between(shop):
    app = shop.app()

    @app.view(key="country", name=shop.name("counted"))
    def counted(orders):
        return hw.count(orders, "country", column="n")

    @app.view(key="customer_id", name=shop.name("newest"))
    def newest(orders):
        return hw.latest(orders, "customer_id", time="at")

    @app.view(key="country", name=shop.name("after"))
    def after(orders):
        return hw.latest(orders, "order_id", time="at").groupBy("country").count()

    everything = orders(90)
    shuffled = random.Random(1).sample(everything, 90)
    shop.make("orders")
    for part in (shuffled[:30], shuffled[30:60], shuffled[60:]):
        shop.send(part)
        Runner(app, shop.settings).once()

    assert {key: row["n"] for key, row in shop.table(shop.name("counted")).items()} == Counter(
        order.country for order in everything
    )
    assert {row["customer_id"]: row["order_id"] for row in shop.table(shop.name("newest")).values()} == {
        order.customer_id: order.order_id for order in everything
    }
    answer = rows(app, shop.settings)
    for view in (shop.name("counted"), shop.name("newest")):
        assert answer[view] == shop.table(view)


@pytest.mark.spark
def test_a_view_whose_operators_change_is_refused(shop):
    shop.make("orders")
    shop.send(orders(10))
    view = shop.name("v")

    def declared(function) -> hw.App:
        app = shop.app()
        app.view(key="country", name=view)(function)
        return app

    Runner(declared(lambda orders: hw.count(orders, "country")), shop.settings).once()
    shop.send(orders(10))
    with pytest.raises(UsageError, match=r"its steps changed.*Aggregate.*Count"):
        Runner(declared(lambda orders: orders.groupBy("country").count()), shop.settings).once()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("key", "said"), [("nothing", "the key 'nothing' is not a column"), ([], "the key is empty")]
)
def test_a_key_that_is_not_a_column_is_refused(shop, key, said):
    app = shop.app()

    @app.view(key="country", name=shop.name("wrong"))
    def wrong(orders):
        return hw.count(orders, key)

    shop.make("orders")
    with pytest.raises(UsageError, match=said):
        Runner(app, shop.settings).once()
