"""A task that is tried again, runs twice or is cut otherwise changes nothing: only files that a result names count."""

import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from pyspark import TaskContext

import headwater as hw
from headwater.client.client import Client
from headwater.follow.results import results
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.state.files import Place, contents
from headwater.pipeline.state.shard import Shard
from headwater.result import File, Result, files_of
from pipeline.published import run_folder
from support.ordershop import Shop, orders

pytestmark = pytest.mark.spark


ATTEMPT = """
    import sys
    import msgspec
    from headwater.pipeline.state.delta import Delta
    from headwater.pipeline.state.shard import Shard
    from headwater.pipeline.state.files import Place, contents
    from headwater.result import Chain, File

    place, number, chain, won = msgspec.json.decode(sys.argv[1], type=tuple[Place, int, Chain, File])
    shard = Shard(place, number, chain)
    changes = Delta.of(dict(contents(place, won)), shard)
    written = shard.extended(won.version, sys.argv[2], changes)
    print(msgspec.json.encode(written[-1]).decode())
"""
"""What another worker does that was given the same shard of the same batch."""


def counting(shop: Shop, marker: Path) -> hw.App:
    """Orders by customer; after the count, each first attempt of a task dies while there is a marker."""
    app, dies = shop.app(), str(marker)

    def mortal(batches):
        for batch in batches:
            if TaskContext.get().attemptNumber() == 0 and Path(dies).exists():
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    @app.view(key="customer_id", name=shop.name("counted"))
    def counted(orders):
        return hw.count(orders, "customer_id", column="n").mapInArrow(mortal, "customer_id long, n long")

    return app


def counts(shop: Shop) -> dict[int, int]:
    return {row["customer_id"]: row["n"] for row in shop.table(shop.name("counted")).values()}


def expected(sent: int) -> Counter[int]:
    return Counter(order.customer_id for order in orders(sent))


def known(shop: Shop, view: str) -> list[Result]:
    return results(Client(shop.bootstrap), view)


def files(shop: Shop, result: Result, view: str, operator: str) -> set[str]:
    folder = run_folder(shop, view, result.run) / "shards" / operator
    return {file.name for file in folder.iterdir()}


def strays(shop: Shop, view: str, operator: str) -> set[str]:
    """Files that no result names."""
    found = known(shop, view)
    named = {name for result in found for each, name in files_of(result.state) if each == operator}
    return files(shop, found[-1], view, operator) - named


def test_a_task_that_died_after_writing_its_file_is_tried_again_and_its_file_is_removed(shop, tmp_path):
    marker, view = tmp_path / "marker", shop.name("counted")
    shop.make("orders")
    for start in (0, 30):
        shop.send(orders(30, start=start))
        Runner(counting(shop, marker), shop.settings).once()
        marker.touch()

    assert counts(shop) == expected(60)
    assert strays(shop, view, "count1")
    marker.unlink()
    shop.send(orders(30, start=60))
    Runner(counting(shop, marker), shop.settings).once()
    assert counts(shop) == expected(90)
    assert not strays(shop, view, "count1")


@pytest.mark.parametrize("operator", ["count1", "publish"])
def test_of_two_attempts_at_a_time_only_the_one_that_the_result_names_counts(shop, tmp_path, operator):
    view, app = shop.name("counted"), counting(shop, tmp_path / "marker")
    shop.make("orders")
    for start in (0, 30):
        shop.send(orders(30, start=start))
        Runner(app, shop.settings).once()
    before, last = known(shop, view)
    place = Place(str(run_folder(shop, view, last.run) / "shards" / operator), str(tmp_path / "copies"))
    number = next(n for n, chain in enumerate(last.state[operator]) if chain[-1].version == last.batch)
    won = last.state[operator][number][-1]
    changes = dict(contents(place, won))

    argument = msgspec.json.encode([place, number, before.state[operator][number], won]).decode()
    command = [sys.executable, "-c", textwrap.dedent(ATTEMPT), argument]
    both = [subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in ("second", "third")]
    late = [msgspec.json.decode(each.communicate(timeout=400)[0], type=File) for each in both]

    assert {(file.size_bytes, file.checksum) for file in late} == {(won.size_bytes, won.checksum)}
    assert strays(shop, view, operator) == {file.name for file in late}
    state = dict(Shard(place, number, last.state[operator][number]).items())
    assert state.items() >= changes.items()
    shop.send(orders(30, start=60))
    Runner(app, shop.settings).once()
    assert counts(shop) == expected(90)
    assert not strays(shop, view, operator)


def test_a_batch_is_restarted_with_another_number_of_tasks(shop, tmp_path):
    """Its commit is lost, so it runs again, and the settings ask for more shards: those of the run stay."""
    view, app = shop.name("totals"), shop.app()
    app.sql(view, "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")
    shop.make("orders")
    shop.send(orders(30))
    Runner(app, shop.settings).once()
    published = shop.records(view)
    for file in (run_folder(shop, view, known(shop, view)[-1].run) / "commits").glob("*0*"):
        file.unlink()
    wider = msgspec.structs.replace(shop.settings, partitions=5)

    Runner(app, wider).once()
    assert shop.records(view) == published
    shop.send(orders(30, start=30))
    Runner(app, wider).once()
    assert {row["n"] for row in shop.table(view).values()} == {20}
    assert [row["_revision"] for _, row, _ in shop.records(view)] == [1, 1, 1, 2, 2, 2]
