"""The three ways back to a view's state: its checkpoint, a backup, and the log. The view is right after each."""

import shutil
from pathlib import Path

import pytest

import headwater as hw
from headwater.errors import StorageError, UsageError
from headwater.operate.views.backup import backup, restore
from headwater.operate.views.reset import reset
from headwater.pipeline.engine.checkpoint_sync import Durable
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.spark import session
from support.ordershop import Shop, orders

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


@pytest.fixture
def view(shop: Shop) -> tuple[hw.App, str]:
    """A view with state of Spark's and of ours, that has read 100 orders and is stopped."""
    app, name = shop.app(), shop.name("by_customer")

    @app.view(name=name, key=["customer_id"])
    def _(orders):
        return (
            orders.groupBy("customer_id")
            .agg({"cents": "sum", "order_id": "count"})
            .toDF("customer_id", "cents", "n")
        )

    shop.make("orders")
    shop.send(orders(100))
    shop.run(app)
    return app, name


def expected(count: int) -> dict[str, dict]:
    rows: dict[str, dict] = {}
    for order in orders(count):
        key = order.customer_id
        row = rows.setdefault(str(key), {"customer_id": key, "cents": 0, "n": 0})
        row["cents"] += order.cents
        row["n"] += 1
    return rows


def folder(shop: Shop, name: str) -> Path:
    return shop.settings.data / "checkpoints" / name


def lose(shop: Shop, name: str) -> None:
    """Another machine: neither checkpoint nor copies are there."""
    shutil.rmtree(folder(shop, name))
    shutil.rmtree(session.copies(shop.settings), ignore_errors=True)


def continue_view(shop: Shop, app: hw.App, name: str) -> None:
    shop.send(orders(100, 100))
    shop.run(app)
    assert shop.table(name) == expected(200)


def test_a_checkpoint_continues_without_the_copies_of_its_state(shop, view):
    app, name = view
    shutil.rmtree(session.copies(shop.settings))
    continue_view(shop, app, name)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_machine_that_lacks_the_state_restores_it_and_continues(shop, view, tmp_path, scheme):
    app, name = view
    url = f"{scheme}{tmp_path / 'saved'}"
    saved = backup(shop.settings, name, url)
    lose(shop, name)
    restored = restore(shop.settings, name, url)

    assert restored == saved
    before = len(shop.records(name))
    continue_view(shop, app, name)
    assert len(shop.records(name)) == before + len(
        expected(200)
    )  # each row has changed once: nothing was done again


def test_a_view_is_computed_again_from_the_log_when_its_state_is_gone(shop, view):
    app, name = view
    lose(shop, name)
    shop.send(orders(100, 100))
    with pytest.raises(UsageError, match="headwater view reset"):
        shop.run(app)
    reset(shop.settings, name)
    shop.run(app)

    assert shop.table(name) == expected(200)


def test_a_backup_from_before_the_last_result_is_refused_and_a_new_one_replaces_it(shop, view, tmp_path):
    app, name = view
    url = str(tmp_path / "saved")
    old = backup(shop.settings, name, url)
    continue_view(shop, app, name)
    kept = folder(shop, name).rename(tmp_path / "kept")
    with pytest.raises(UsageError, match=r"older than the log.*headwater view reset"):
        restore(shop.settings, name, url)
    kept.rename(folder(shop, name))
    new = backup(shop.settings, name, url)

    assert new.batch > old.batch
    assert [path.name for path in (tmp_path / "saved" / name / new.run).iterdir()] == [str(new.batch)]


def test_what_cannot_be_backed_up_or_restored_is_refused(shop, view, tmp_path):
    _, name = view
    url = str(tmp_path / "saved")
    with pytest.raises(UsageError, match="already has the checkpoint"):
        restore(shop.settings, name, url)
    with pytest.raises(UsageError, match="no view 'nothing' with results"):
        backup(shop.settings, "nothing", url)
    with pytest.raises(UsageError, match=r"not a place for backups.*s3://bucket"):
        backup(shop.settings, name, "gopher://there")
    saved = backup(shop.settings, name, url)
    lose(shop, name)
    with pytest.raises(UsageError, match="there is no backup"):
        restore(shop.settings, name, str(tmp_path / "elsewhere"))
    with pytest.raises(UsageError, match="no checkpoint on this machine"):
        backup(shop.settings, name, url)
    next((tmp_path / "saved" / name / saved.run).glob("*/offsets/*")).unlink()
    with pytest.raises(StorageError, match="not complete"):
        restore(shop.settings, name, url)
    assert not folder(shop, name).exists()


def cut_power(checkpoint: Path, synced: set[str]) -> list[str]:
    """Leaves of what Spark has written only names, but for the files that were synced."""
    written = [file for file in checkpoint.rglob("*") if file.is_file() and "shards" not in file.parts]
    lost = [file for file in written if str(file) not in synced and file.name != "metadata"]
    for file in lost:
        file.write_bytes(b"")
    return [f"{file.parent.name}/{file.name}" for file in lost]


def test_a_view_continues_by_itself_after_a_power_cut_that_has_emptied_what_spark_had_not_synced(shop, view):
    app, name = view
    for start in (100, 150):
        shop.send(orders(50, start))
        runner = Runner(app, shop.settings)
        runner.once()
    (checkpoint,) = folder(shop, name).iterdir()
    last = max(int(file.name) for file in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "offsets" / str(last + 1)).touch()  # a batch had just begun
    lost = cut_power(checkpoint, runner.views[name].publisher._durable._synced)
    assert f"commits/{last}" in lost
    assert f"offsets/{last}" not in lost
    shop.send(orders(100, 200))
    shop.run(app)
    assert shop.table(name) == expected(300)


def test_what_spark_writes_is_synced_once_and_without_what_is_not_finished(tmp_path):
    durable = Durable(tmp_path)
    assert durable.sync() == []
    for path in ("offsets/0", "state/0/1/2.changelog", "shards/publish/a.delta", "offsets/.1.tmp"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    assert durable.sync() == [str(tmp_path / "offsets/0"), str(tmp_path / "state/0/1/2.changelog")]
    assert durable.sync() == []
    (tmp_path / "offsets/.1.tmp").rename(tmp_path / "offsets/1")
    assert durable.sync() == [str(tmp_path / "offsets/1")]
