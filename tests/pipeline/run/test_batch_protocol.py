"""What the batch protocol refuses, in one clear line: a checkpoint and a log that are not of one history."""

import gc
import json
import shutil
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

import headwater as hw
from clients.kcat import kcat
from headwater.client.client import Client, admin
from headwater.errors import UsageError
from headwater.operate.log.topic import describe
from headwater.operate.views.check import check
from headwater.operate.views.reset import reset
from headwater.pipeline.engine.lag_offsets import group
from headwater.pipeline.run.runner import Runner
from support.ordershop import Shop, orders
from support.servers import both_logs, wait_until

pytestmark = pytest.mark.spark

SUMS = "SELECT country, sum(cents) AS cents, count(*) AS orders FROM orders GROUP BY country"


@pytest.fixture
def view(shop: Shop) -> str:
    """A view after two batches."""
    shop.make("orders")
    name = shop.name("totals")
    for start in (0, 30):
        shop.send(orders(30, start=start))
        Runner(app(shop, name), shop.settings).once()
    return name


def app(shop: Shop, view: str) -> hw.App:
    declared = shop.app()
    declared.sql(view, SUMS, key="country")
    return declared


def checkpoint(shop: Shop, view: str) -> Path:
    (metadata,) = (shop.settings.data / "checkpoints" / view).glob("*/metadata")
    return metadata.parent


def refusal(shop: Shop, view: str) -> str:
    """What a start says; it publishes nothing."""
    before = len(shop.records(view))
    shop.send(orders(10, start=60))
    with pytest.raises(UsageError) as refused:
        Runner(app(shop, view), shop.settings).once()
    assert len(shop.records(view)) == before
    assert f"headwater view reset {view}" in str(refused.value)
    return str(refused.value)


@both_logs
def test_a_deleted_checkpoint_is_refused(shop, view):
    shutil.rmtree(checkpoint(shop, view))
    assert "was written by another run" in refusal(shop, view)


def test_a_view_that_was_reset_is_computed_again(shop, view):
    published = shop.table(view)
    shutil.rmtree(checkpoint(shop, view))
    reset(shop.settings, view)
    Runner(app(shop, view), shop.settings).once()
    assert shop.table(view) == published
    with pytest.raises(UsageError, match="there is no view 'unknown' with results"):
        reset(shop.settings, "unknown")


def test_a_checkpoint_from_an_earlier_time_is_refused(shop, view):
    for folder in ("offsets", "commits"):
        for file in (checkpoint(shop, view) / folder).glob("*1*"):
            file.unlink()
    (checkpoint(shop, view) / "commits" / "0").unlink()
    assert "the checkpoint is from an earlier time" in refusal(shop, view)


@both_logs
def test_missing_results_are_refused(shop, view):
    asked = admin(shop.bootstrap)
    asked.delete_topics([f"{view}.progress"])[f"{view}.progress"].result(60)
    assert "results are missing" in refusal(shop, view)


def cut_to_the_last(shop: Shop, topic: str) -> None:
    *_, last = Client(shop.log).read([topic])
    place = TopicPartition(topic, last.partition(), last.offset())
    asked = admin(shop.bootstrap)
    policy = ConfigEntry(
        "cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET
    )  # of a topic that is compacted alone nothing can be deleted
    named = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[policy])
    asked.incremental_alter_configs([named])[named].result(60)
    asked.delete_records([place])[place].result(60)
    assert len(shop.records(topic)) == 1


def test_results_that_are_cut_to_the_last_one_are_enough_to_continue(shop, view):
    cut_to_the_last(shop, f"{view}.progress")
    shop.send(orders(30, start=60))
    Runner(app(shop, view), shop.settings).once()
    assert {row["orders"] for row in shop.table(view).values()} == {30}
    assert [row["_revision"] for _, row, _ in shop.records(view) if row["country"] == "de"] == [1, 2, 3]


def test_a_batch_is_not_run_once_more_without_the_result_before_it(shop, view):
    """It would be run from nothing, and Spark's own state downstream of our operators would take what comes out."""
    cut_to_the_last(shop, f"{view}.progress")
    shop.lose_commit(view)
    assert "results are missing" in refusal(shop, view)


@both_logs
def test_more_partitions_of_a_keyed_topic_are_refused(shop, view):
    asked = admin(shop.bootstrap)
    asked.create_partitions([NewPartitions(view, 3)])[view].result(60)
    assert "keys would move to other partitions" in refusal(shop, view)


def test_another_application_with_a_view_of_that_name_is_refused(shop, view, tmp_path):
    elsewhere = Shop(shop.bootstrap, tmp_path / "elsewhere")
    elsewhere.prefix = shop.prefix
    assert "does another application use the name" in refusal(elsewhere, view)


def test_a_batch_that_was_cut_differently_is_refused(shop, view):
    """The commit of the last batch is gone, and the offsets that it is to repeat are others."""
    shop.lose_commit(view)
    for crc in (checkpoint(shop, view) / "offsets").glob(".*.crc"):
        crc.unlink()
    offsets = checkpoint(shop, view) / "offsets" / "1"
    version, about, *sources = offsets.read_text().splitlines()
    ends = json.loads(sources[0])
    ends[shop.name("orders")] = {p: offset - 1 for p, offset in ends[shop.name("orders")].items()}
    offsets.write_text("\n".join([version, about, json.dumps(ends)]))
    assert "was made from other records" in refusal(shop, view)


def test_a_batch_whose_commit_was_lost_is_run_and_thrown_away(shop, view):
    published = shop.records(view)
    shop.lose_commit(view)
    Runner(app(shop, view), shop.settings).once()
    assert shop.records(view) == published

    shop.send(orders(30, start=60))
    Runner(app(shop, view), shop.settings).once()
    assert {row["orders"] for row in shop.table(view).values()} == {30}
    assert [row["_revision"] for _, row, _ in shop.records(view) if row["country"] == "de"] == [1, 2, 3]


def test_a_view_continues_without_the_group_that_lag_tools_see(shop, view):
    asked, name = admin(shop.bootstrap), group(view)
    wait_until(lambda: shop.committed(view), 20, "the group")
    asked.delete_consumer_groups([name])[name].result(60)
    shop.send(orders(30, start=60))
    Runner(app(shop, view), shop.settings).once()
    assert {row["orders"] for row in shop.table(view).values()} == {30}
    assert len(shop.records(view)) == 9
    wait_until(lambda: sum(shop.committed(view)[shop.name("orders")].values()) == 90, 20, "the group again")


def test_kcat_sees_ordinary_records_and_tombstones_only(shop):
    """In each batch every country has ten orders more; from 15 on it is in the view no longer."""
    shop.make("orders")
    name, declared = shop.name("small"), shop.app()
    declared.sql(name, f"{SUMS} HAVING count(*) < 15", key="country")
    for start in (0, 30):
        shop.send(orders(30, start=start))
        Runner(declared, shop.settings).once()
    lines = kcat(shop.bootstrap, "-C", "-t", name, "-e", "-f", "%k|%S|%h|%s\\n").splitlines()
    found = sorted(line.split("|", 3) for line in lines)
    assert [(key, size == "-1", headers) for key, size, headers, _ in found] == [
        (key, gone, "") for key in ("de", "fr", "us") for gone in (True, False)
    ]
    rows = [json.loads(text) for _, size, _, text in found if size != "-1"]
    assert [(row["country"], row["orders"], row["_revision"]) for row in rows] == [
        ("de", 10, 1),
        ("fr", 10, 1),
        ("us", 10, 1),
    ]


def test_a_damaged_state_file_is_named(shop, view):
    files = checkpoint(shop, view) / "shards" / "publish"
    for file in files.glob("*.delta"):
        file.write_bytes(file.read_bytes()[:-1])
    shutil.rmtree(shop.settings.data / "copies")
    shop.send(orders(10, start=60))
    before = len(shop.records(view))
    with pytest.raises(hw.errors.HeadwaterError, match=r"state file .*\.delta is damaged"):
        Runner(app(shop, view), shop.settings).once()
    assert len(shop.records(view)) == before


def test_of_the_rows_of_a_key_the_newest_is_published_however_the_log_is_cut_into_batches(shop):
    """As text, order 9 comes after order 10."""
    shop.make("orders")
    name = shop.name("last_order")
    declared = shop.app()
    declared.sql(name, "SELECT customer_id, order_id FROM orders WHERE cents >= 0", key="customer_id")
    for start in (0, 60):
        shop.send(orders(60, start=start))
        Runner(declared, shop.settings).once()
    newest = {str(order.customer_id): order.order_id for order in orders(120)}
    assert {key: row["order_id"] for key, row in shop.table(name).items()} == newest
    assert check(declared, shop.settings, name).first is None


def test_an_append_view_has_each_row_once_and_nothing_replaces_it(shop):
    shop.make("orders")
    name = shop.name("paid")
    declared = shop.app()
    declared.sql(name, "SELECT country, cents FROM orders WHERE cents >= 10", key="country", append=True)
    for start in (0, 60):
        shop.send(orders(60, start=start))
        Runner(declared, shop.settings).once()
    shop.lose_commit(name)
    Runner(declared, shop.settings).once()
    found = sorted((row["country"], row["cents"]) for _, row, _ in shop.records(name))
    assert found == sorted((order.country, order.cents) for order in orders(120) if order.cents >= 10)
    topic = describe(shop.log, name)
    assert topic.config.get("cleanup.policy", "delete") == "delete"


def clients() -> int:
    """Threads of the Kafka library in this process."""
    names = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("rdk:") for name in names)


def test_a_runner_that_has_ended_leaves_no_clients(shop, view):
    gc.collect()
    before = clients()
    shop.send([*orders(10, start=60), b"nonsense"])
    Runner(app(shop, view), shop.settings).once()
    gc.collect()
    wait_until(lambda: clients() <= before, 20, "the end of the runner's clients")


def test_state_files_that_came_to_nothing_are_removed(shop, view):
    files = checkpoint(shop, view) / "shards" / "publish"
    (files / "0-2-deadbeef.delta").write_bytes(b"an attempt that was killed")
    shop.send(orders(10, start=60))
    Runner(app(shop, view), shop.settings).once()
    assert not (files / "0-2-deadbeef.delta").exists()
