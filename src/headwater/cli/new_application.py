"""A new application: a file with a stream and two views, and a test of it, for ``headwater init``."""

from pathlib import Path

from headwater.durable import make_folder
from headwater.errors import StorageError, UsageError

__all__ = ["APP", "TEST", "write"]

APP = """from datetime import datetime

import headwater as hw
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

app = hw.App("shop")


class Order(hw.Event):
    order_id: int
    country: str
    total: float
    at: datetime


app.stream("orders", Order, key="order_id", time="at", delay="10 minutes")


@app.view(key=["window", "country"])
def revenue(orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.window("at", "5 minutes"), "country").agg(F.sum("total").alias("revenue"))


app.sql(
    "orders_per_minute",
    "SELECT window, count(*) AS orders FROM orders GROUP BY window(at, '1 minute')",
    key=["window"],
)
"""
TEST = """from datetime import UTC, datetime

from app import Order, app
from headwater import testing


def test_orders_of_five_minutes_are_added_up() -> None:
    nine, ten_past = datetime(2026, 1, 5, 9, tzinfo=UTC), datetime(2026, 1, 5, 9, 10, tzinfo=UTC)
    with testing.views(app, "revenue") as t:
        t.send("orders", Order(1, "DE", 5.0, nine), Order(2, "DE", 2.5, nine), Order(3, "FR", 1.0, ten_past))
        assert [(row["country"], row["revenue"]) for row in t.rows("revenue")] == [("DE", 7.5), ("FR", 1.0)]
"""
FILES = {"app.py": APP, "test_app.py": TEST}


def write(folder: Path) -> list[Path]:
    """Writes the files of a new application. UsageError if one of them exists, or the folder is a file."""
    make_folder(folder)
    for name in FILES:
        if (folder / name).exists():
            raise UsageError(f"{folder / name} exists already", hint="headwater init FOLDER writes elsewhere")
    for name, text in FILES.items():
        try:
            (folder / name).write_text(text)
        except OSError as error:
            raise StorageError(
                f"{folder / name} cannot be written",
                got=error.strerror or str(error),
                hint="headwater init FOLDER writes elsewhere",
            ) from error
    return [folder / name for name in FILES]
