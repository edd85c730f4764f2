"""Views that end with a groupBy: their rows are published where Spark has grouped them, without a difference."""

from collections import Counter

import msgspec
import pytest

import headwater as hw
from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.follow.results import results
from headwater.operate.views.inspect_state import entry
from headwater.operate.views.scale import scale
from headwater.pipeline.batch.batch import rows
from headwater.pipeline.build import plan_edits
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.state.files import Place
from headwater.pipeline.state.layouts import GROUPS
from headwater.pipeline.state.shard import Shard
from headwater.result import Result
from support.ordershop import Shop, orders

pytestmark = pytest.mark.spark

YES = {
    "one column": ("SELECT a, count(*) AS n FROM t GROUP BY a", "a"),
    "another name": ("SELECT a AS b, count(*) AS n FROM t GROUP BY a", "b"),
    "several": ("SELECT a, c, count(*) AS n FROM t GROUP BY a, c", "a c"),
    "more than that": ("SELECT a, max(c) AS c FROM t GROUP BY a", "a c"),
    "an expression": ("SELECT a + 1 AS b, count(*) AS n FROM t GROUP BY a + 1", "b"),
    "downstream of others": ("SELECT b, n * 2 AS n FROM (SELECT a AS b, count(*) AS n FROM t GROUP BY a) WHERE b > 1", "b"),
    "having": ("SELECT a, count(*) AS n FROM t GROUP BY a HAVING count(*) > 1", "a"),
    "windows": ("SELECT window, a, count(*) AS n FROM t GROUP BY a, window(at, '1 minute')", "window a"),
}  # fmt: skip
NO = {
    "no groupBy": ("SELECT a, c FROM t", "a"),
    "less than it groups by": ("SELECT a, c, count(*) AS n FROM t GROUP BY a, c", "a"),
    "something else": ("SELECT a, max(c) AS c FROM t GROUP BY a", "c"),
    "made of the group": ("SELECT a % 2 AS b, count(*) AS n FROM t GROUP BY a", "b"),
    "changed afterwards": ("SELECT b % 2 AS b, n FROM (SELECT a AS b, count(*) AS n FROM t GROUP BY a)", "b"),
    "everything": ("SELECT 1 AS b, count(*) AS n FROM t", "b"),
    "moved again": ("SELECT /*+ REPARTITION(3) */ a, count(*) AS n FROM t GROUP BY a", "a"),
    "several rows of a group": ("SELECT a, explode(array(1, 2)) AS b FROM (SELECT a, count(*) FROM t GROUP BY a)", "a b"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*YES, *NO])
def test_only_a_groupby_of_nothing_but_the_key_keeps_the_rows_of_a_key_together(spark, name):
    text, key = (YES | NO)[name]
    spark.sql("SELECT 1 AS a, 2 AS c, timestamp '2026-01-01' AS at").createOrReplaceTempView("t")

    assert plan_edits.grouped_by(spark.sql(text), tuple(key.split())) is (name in YES)


KEYS = {
    "decimals": "CAST(cents AS DECIMAL(20, 3)) / 7",
    "nulls": "nullif(country, 'de')",
    "windows": "window(at, '2 minutes')",
    "dates": "date_add(DATE '2026-01-01', CAST(order_id % 5 AS INT))",
    "times": "timestamp_micros(order_id % 7)",
}


def app(shop: Shop) -> hw.App:
    declared = shop.app()
    for name, key in KEYS.items():
        query = f"SELECT {key} AS k, count(*) AS n, sum(cents) AS cents FROM orders GROUP BY {key}"
        declared.sql(shop.name(name), query, key="k")
    return declared


def test_every_row_is_in_one_shard_and_what_a_batch_says_through_restarts_and_other_shards(shop):
    shop.make("orders")
    for n in range(2):
        shop.send(orders(40, start=40 * n))
        Runner(app(shop), shop.settings).once()
        for name in KEYS:
            last = _last(shop, name)
            assert last.layouts == {PUBLISH: GROUPS}
            _check_shards(shop, name, last)
    answer = rows(app(shop), shop.settings)
    assert {name: shop.table(shop.name(name)) for name in KEYS} == {
        name: answer[shop.name(name)] for name in KEYS
    }

    for name in KEYS:
        scale(shop.settings, shop.name(name), 3)
        assert _last(shop, name).layouts == {}
    shop.send(orders(40, start=80))
    Runner(app(shop), shop.settings).once()
    answer = rows(app(shop), shop.settings)
    for name in KEYS:
        assert shop.table(shop.name(name)) == answer[shop.name(name)]
        records = shop.records(shop.name(name))
        newest = {key: row["_revision"] for key, row, _ in records}
        assert newest == Counter(key for key, _, _ in records)


def test_a_session_with_another_number_of_partitions_moves_rows_to_their_shards(shop):
    settings = msgspec.structs.replace(shop.settings, partitions=3)
    shop.make("orders")
    for start in (0, 40):
        shop.send(orders(40, start=start))
        Runner(app(shop), settings).once()
    answer = rows(app(shop), settings)
    for name in KEYS:
        assert _last(shop, name).layouts == {}
        assert shop.table(shop.name(name)) == answer[shop.name(name)]


def test_a_query_that_no_longer_ends_so_is_refused(shop, monkeypatch):
    shop.make("orders")
    shop.send(orders(10))
    Runner(app(shop), shop.settings).once()

    monkeypatch.setattr(plan_edits, "grouped_by", lambda *_: False)
    with pytest.raises(UsageError, match="its rows are stored where Spark has grouped them"):
        Runner(app(shop), shop.settings).once()


def _last(shop: Shop, name: str) -> Result:
    return results(Client(shop.bootstrap), shop.name(name))[-1]


def _check_shards(shop: Shop, name: str, last: Result) -> None:
    """Every key is in one shard, and found there by who looks for it."""
    folder = shop.settings.data / "checkpoints" / shop.name(name)
    files = str(folder.absolute() / last.run / "shards" / PUBLISH)
    place = Place(files, str(folder / "copies"))
    found = [dict(Shard(place, n, chain).items()) for n, chain in enumerate(last.state[PUBLISH])]
    keys = Counter(key for each in found for key in each)
    assert set(keys.values()) == {1}
    assert len(keys) == len(shop.table(shop.name(name)))
    for number, entries in enumerate(found):
        for key, value in list(entries.items())[:3]:
            looked = entry(folder, shop.name(name), last, PUBLISH, key)
            assert (looked.shard, looked.value) == (number, value)
