"""Joins on the stage: tasks that fail, state that is damaged, a rebuild, other shards. The rows are as if nothing had happened.

Kills are in test_stage_kill.py.
"""

import os
import random
import re
import shlex
import shutil
import signal
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.cli.main import main
from headwater.client.client import Client
from headwater.errors import HeadwaterError
from headwater.follow.results import results
from headwater.operate.views.rebuild import Rebuild
from headwater.operate.views.scale import scale
from headwater.pipeline.run.runner import Runner
from pipeline.driver import own_shop
from pipeline.published import run_folder
from pipeline.state.test_attempts import strays
from pipeline.tableload import Customer, Order, TableLoad
from support.ordershop import Shop
from support.servers import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(2400)]


class Stage:
    """All joins of a load, run batch by batch."""

    def __init__(self, shop: Shop, folder: Path) -> None:
        self.shop = shop
        self.load = TableLoad(shop)
        self.load.make()
        self.file = folder / "tables_app.py"
        self.file.write_text(textwrap.dedent(self.load.app))
        self._chance = random.Random(7)

    def app(self) -> hw.App:
        return hw.App.load(str(self.file))

    def take(self) -> None:
        """Sends some changes and takes them in."""
        for _ in range(3):
            self.load.send(self._chance)
        Runner(self.app(), self.shop.settings).once()

    def records(self) -> dict[str, list[str]]:
        """What each view has published, in an order of its own: partitions are read in any."""
        return {view: sorted(map(str, self.shop.records(view))) for view in self.load.views}

    def wrong(self) -> dict[str, object]:
        """The views whose rows are not the answer, with both."""
        answers = self.load.answers()
        assert all(answers.values())
        found = {view: self.shop.table(view) for view in self.load.views}
        return {
            view: (found[view], answers[view]) for view in self.load.views if found[view] != answers[view]
        }


@pytest.fixture
def stage(spark, own_broker: BrokerProcess, tmp_path: Path) -> Stage:
    """On a log of its own, after two batches."""
    made = Stage(own_shop(own_broker, tmp_path), tmp_path)
    for _ in range(2):
        made.take()
    return made


def test_other_shards_and_a_rebuild_leave_every_row_of_every_join_as_it_is(stage):
    own = stage.shop
    before = stage.records()
    for number, view in enumerate(stage.load.views):
        scale(own.settings, view, 3 + number % 2)
        assert Rebuild(stage.app(), own.settings, view).run().changed == 0
    assert stage.records() == before
    for number, view in enumerate(stage.load.views):
        scale(own.settings, view, 1 + number % 2)
    stage.take()
    assert stage.wrong() == {}


@pytest.mark.parametrize(
    "damaged",
    [("by_region", "join4", "rebuild"), ("sizes", "publish", "reset")],
)
def test_damaged_state_is_named_and_the_command_in_the_error_rebuilds_the_view(
    stage, monkeypatch, capsys, damaged
):
    own, (view, operator, remedy) = stage.shop, damaged
    last = results(Client(own.bootstrap), view)[-1]
    folder = run_folder(own, view, last.run) / "shards" / operator
    for file in folder.glob("*.delta"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    shutil.rmtree(own.settings.data / "copies")
    before = stage.records()[view]

    with pytest.raises(
        HeadwaterError, match=rf"state file {folder}/[\w-]+\.delta is damaged; got .*"
    ) as noticed:
        stage.take()
    assert stage.records()[view] == before
    command = re.search(r"headwater view \w+ [^;]*", str(noticed.value))
    assert command is not None
    assert shlex.split(command[0])[:4] == ["headwater", "view", remedy, view]

    for name, value in own.settings.environ().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        sys, "argv", [str(stage.file) if part == "APP" else part for part in command[0].split()]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, capsys.readouterr().err
    stage.take()
    assert stage.wrong() == {}


# ---- one join ------------------------------------------------------------------------------------------------


def joined(shop: Shop, marker: Path) -> hw.App:
    """Orders with the region of their customer; while there is a marker, each first attempt of a task dies after the join."""
    app, dies = hw.App("shop"), str(marker)

    @F.udf("string")
    def mortal(region):
        if TaskContext.get().attemptNumber() == 0 and Path(dies).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return region

    app.table("customers", Customer, key="customer_id", topic=shop.name("customers"))
    app.table("orders", Order, key="order_id", topic=shop.name("orders"))

    @app.view(key="order_id", name=shop.name("named"))
    def named(orders: DataFrame, customers: DataFrame) -> DataFrame:
        both = hw.join(orders, customers, on="customer_id")
        return both.withColumn("region", mortal("region"))

    return app


def send(shop: Shop, topic: str, *events: hw.Event) -> None:
    shop.send_to(shop.name(topic), events, f"{topic[:-1]}_id")


def regions(shop: Shop) -> dict[str, str]:
    return {key: row["region"] for key, row in shop.table(shop.name("named")).items()}


def test_a_task_of_a_join_that_died_after_writing_its_state_is_tried_again(shop, tmp_path):
    marker, view = tmp_path / "marker", shop.name("named")
    shop.make("customers", "orders")
    app = joined(shop, marker)
    customers = [Customer(f"c{n}", "de") for n in range(4)]
    send(shop, "customers", *customers)
    send(shop, "orders", *(Order(f"o{n}", f"c{n % 4}", n) for n in range(20)))
    Runner(app, shop.settings).once()
    marker.touch()
    send(shop, "customers", Customer("c1", "fr"), Customer("c2", None))
    send(shop, "orders", Order("o0", "c1", 5), Order("o1", None, 5), Order("o99", "c3", 5))
    Runner(app, shop.settings).once()

    assert strays(shop, view, "join4")
    expected = {f"o{n}": {1: "fr", 2: None}.get(n % 4, "de") for n in range(20)} | {"o0": "fr", "o99": "de"}
    del expected["o1"]
    assert regions(shop) == expected
    changed = {f"o{n}" for n in range(2, 20) if n % 4 in (1, 2)} | {"o0", "o1", "o99"}
    first = [f"o{n}" for n in range(20)]
    assert Counter(key for key, _, _ in shop.records(view)) == Counter([*first, *changed])  # each change once
    marker.unlink()
    send(shop, "customers", Customer("c2", "us"))
    Runner(app, shop.settings).once()
    assert regions(shop) == {key: region or "us" for key, region in expected.items()}
    assert not strays(shop, view, "join4")
