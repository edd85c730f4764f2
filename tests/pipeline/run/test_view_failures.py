"""Views fail alone: each way to fail ends one view, which is named, while the others continue; one application for all tests."""

from collections.abc import Iterator

import pytest

import headwater as hw
from headwater.health.condition import PartStatus
from headwater.operate.views.rebuild import Rebuild
from headwater.pipeline.run.runner import Runner
from support.ordershop import Order, Shop, orders
from support.servers import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

BEFORE = "SELECT country, count(*) AS n FROM orders GROUP BY country"
AFTER = "SELECT country, count(*) AS n, sum(cents) AS cents FROM orders GROUP BY country"
POISON = 999_999
VIEWS = ("good", "fragile", "flaky", "altered", "overtaken")


def declared(shop: Shop, folder: str, **queries: str) -> hw.App:
    """Five views of the same orders. ``fragile`` fails on one order, ``flaky`` while a file is there."""
    app = shop.app()

    @app.view(key="country", name=shop.name("fragile"), on_error="stop")
    def fragile(orders):
        from pyspark.sql import functions as F  # noqa: N812

        def checked(cents):
            if cents == POISON:
                raise ValueError("what an order")
            return cents

        checked_orders = orders.withColumn("cents", F.udf(checked, "long")("cents"))
        return checked_orders.groupBy("country").agg(F.sum("cents").alias("cents"), F.count("*").alias("n"))

    @app.view(key="country", name=shop.name("flaky"))
    def flaky(orders):
        from pyspark.sql import functions as F  # noqa: N812

        def looked_up(country):
            import pathlib

            if pathlib.Path(folder, "away").exists():
                raise ConnectionError("the directory of countries does not answer")
            return country

        named = orders.withColumn("country", F.udf(looked_up, "string")("country"))
        return named.groupBy("country").agg(F.count("*").alias("n"))

    for name in ("good", "altered", "overtaken"):
        app.sql(shop.name(name), queries.get(name, BEFORE), key="country")
    return app


class Pipeline:
    """A runner whose views fail alone, and what it says of them."""

    def __init__(self, shop: Shop, folder) -> None:
        self.shop, self.folder, self.sent = shop, folder, 0
        shop.make("orders")
        self.send(30)
        earlier = shop.app()
        earlier.sql(shop.name("altered"), BEFORE, key="country")
        Runner(earlier, shop.settings).once()
        self.runner = Runner(self.version(altered=AFTER), shop.settings, strict=False, forever=True)
        self.runner.start()

    def version(self, **queries: str) -> hw.App:
        return declared(self.shop, str(self.folder), **queries)

    def send(self, count: int) -> None:
        self.shop.send(orders(count, start=self.sent))
        self.sent += count

    def status(self, view: str) -> PartStatus:
        return next(part for part in self.runner.statuses() if part.name == self.shop.name(view))

    def becomes(self, view: str, state: str) -> None:
        wait_until(lambda: self.status(view).state == state, 60, f"{view} is {state}")
        assert not self.runner.wait(0)

    def count(self, view: str) -> int:
        return sum(row["n"] for row in self.shop.table(self.shop.name(view)).values())

    def reads_on(self, *views: str) -> None:
        """These views take in what is sent now."""
        self.send(30)
        for view in views:
            wait_until(lambda view=view: self.count(view) == self.sent, 60, f"new orders in {view}")


@pytest.fixture(scope="module")
def pipeline(spark, broker, tmp_path_factory) -> Iterator[Pipeline]:
    folder = tmp_path_factory.mktemp("alone")
    running = Pipeline(Shop(broker.bootstrap, folder), folder)
    try:
        yield running
    finally:
        running.runner.stop()


def test_a_view_with_another_definition_does_not_keep_the_others_from_starting(pipeline):
    pipeline.becomes("altered", "stopped")
    altered = pipeline.status("altered")
    assert "cannot continue: its steps changed" in altered.error
    assert (
        f"headwater view rebuild {pipeline.shop.name('altered')} {pipeline.version().file}" in altered.error
    )
    pipeline.reads_on("good", "fragile", "flaky", "overtaken")
    wait_until(lambda: pipeline.status("altered").lag_records == 30, 30, "its lag")
    assert pipeline.status("good").state == "running"


def test_it_starts_by_itself_once_the_command_that_its_error_names_has_rebuilt_it(pipeline):
    Rebuild(pipeline.version(altered=AFTER), pipeline.shop.settings, pipeline.shop.name("altered")).run()
    pipeline.becomes("altered", "running")
    pipeline.reads_on("altered", "good")
    assert "cents" in pipeline.shop.table(pipeline.shop.name("altered"))["de"]


def test_a_view_that_may_heal_is_failing_and_tried_again_until_it_works(pipeline):
    away = pipeline.folder / "away"
    away.touch()
    pipeline.reads_on("good")
    wait_until(lambda: pipeline.status("flaky").restarts >= 2, 60, "two tries")
    flaky = pipeline.status("flaky")
    assert flaky.state == "failing"
    assert "the directory of countries does not answer" in flaky.error
    away.unlink()
    pipeline.becomes("flaky", "running")
    pipeline.reads_on("flaky", "good")


def test_a_rebuild_by_another_version_stops_that_view_at_once_and_no_other(pipeline):
    """No record comes on which the old version could notice it."""
    name = pipeline.shop.name("overtaken")
    Rebuild(pipeline.version(overtaken=AFTER), pipeline.shop.settings, name).run()
    pipeline.becomes("overtaken", "stopped")
    assert "rebuilt by another version of the application" in pipeline.status("overtaken").error
    pipeline.reads_on("good", "altered", "flaky", "fragile")
    assert pipeline.count("overtaken") == pipeline.sent - 30


def test_it_continues_once_its_own_version_is_back(pipeline):
    name = pipeline.shop.name("overtaken")
    Rebuild(pipeline.version(overtaken=BEFORE), pipeline.shop.settings, name).back()
    pipeline.becomes("overtaken", "running")
    pipeline.reads_on("overtaken")


def test_a_view_whose_function_fails_on_a_record_is_stopped_and_named(pipeline):
    last = orders(1)[0]
    pipeline.shop.send([Order(0, 1, "de", POISON, last.at)])
    pipeline.sent += 1
    pipeline.becomes("fragile", "stopped")
    assert "what an order" in pipeline.status("fragile").error
    pipeline.reads_on("good", "altered", "flaky", "overtaken")
    assert [part.name for part in pipeline.runner.statuses() if part.state != "running"] == [
        pipeline.shop.name("fragile")
    ]


def test_a_runner_that_is_to_end_does_so_once_no_view_can_run(spark, bootstrap, tmp_path):
    shop = Shop(bootstrap, tmp_path)
    shop.make("orders")
    shop.send(orders(3))
    for query in (BEFORE, AFTER):
        app = shop.app()
        app.sql(shop.name("only"), query, key="country")
        if query == BEFORE:
            Runner(app, shop.settings).once()
    runner = Runner(app, shop.settings, strict=False)
    runner.start()
    try:
        with pytest.raises(hw.UsageError, match="cannot continue: its steps changed"):
            wait_until(lambda: runner.wait(0.1), 30, "its end")
    finally:
        runner.stop()
