"""The folder of checkpoints on a disk without room, or that can only be read: a view stops with one line, and continues without an error when it can write."""

import pytest

import headwater as hw
from headwater.errors import StorageError
from support.ordershop import Shop, orders
from support.servers import wait_until
from support.smalldisk import small_disk

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

DISK_BYTES = 64 << 20


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "checkpoints", DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def shop(spark, bootstrap, disk) -> Shop:
    return Shop(bootstrap, disk.folder.parent)


def counted(shop: Shop) -> tuple[hw.App, str]:
    """Orders by customer, in state of ours and of Spark's."""
    app, name = shop.app(), shop.name("by_customer")
    app.sql(
        name,
        "SELECT customer_id, count(*) AS n, sum(cents) AS cents FROM orders GROUP BY customer_id",
        key=["customer_id"],
    )
    return app, name


def expected(count: int) -> dict[str, dict]:
    rows: dict[str, dict] = {}
    for order in orders(count):
        row = rows.setdefault(str(order.customer_id), {"customer_id": order.customer_id, "n": 0, "cents": 0})
        row["n"] += 1
        row["cents"] += order.cents
    return rows


def stopped(shop: Shop, app: hw.App, begin) -> StorageError:
    """The error of a running view when it cannot continue."""

    def run() -> None:
        with shop.running(app) as runner:
            begin()
            wait_until(lambda: runner.wait(0.1), 60, "the end of the view")

    with pytest.raises(StorageError) as found:
        run()
    return found.value


def test_a_view_whose_checkpoints_have_no_room_stops_with_a_line_and_continues_right(shop, disk):
    app, name = counted(shop)
    shop.make("orders")
    shop.send(orders(100))
    shop.run(app)

    def fill():
        disk.fill()
        shop.send(orders(100, 100))

    said = stopped(shop, app, fill)
    assert "No space left on device" in str(said)
    assert str(disk.folder.parent) in str(said)
    assert "\n" not in str(said)
    before = shop.table(name)
    disk.empty()
    shop.run(app)

    assert before in (expected(100), expected(200))
    assert shop.table(name) == expected(200)


def test_a_new_view_whose_checkpoints_can_only_be_read_is_not_begun(shop, disk):
    app, name = counted(shop)
    shop.make("orders")
    shop.send(orders(100))
    disk.forbid()

    said = stopped(shop, app, lambda: None)
    assert "Read-only file system" in str(said)
    disk.allow()
    shop.run(app)

    assert shop.table(name) == expected(100)


def test_a_view_whose_checkpoints_can_only_be_read_stops_with_a_line_and_continues_right(shop, disk):
    app, name = counted(shop)
    shop.make("orders")
    shop.send(orders(100))
    shop.run(app)
    disk.forbid()
    shop.send(orders(100, 100))

    said = stopped(shop, app, lambda: None)
    assert "Read-only file system" in str(said)
    assert "\n" not in str(said)
    assert shop.table(name) == expected(100)
    disk.allow()
    shop.run(app)

    assert shop.table(name) == expected(200)
