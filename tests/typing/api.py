"""What type checkers say of an application file; `make lint` runs mypy over it, nothing is executed."""

from datetime import datetime
from typing import Any, assert_type

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.declare.lateness import Late
from headwater.declare.spec import Capture, Sink, Stream, View
from headwater.node.running import Rows


class Order(hw.Event):
    order_id: int
    country: str
    total: float
    at: datetime


class User(hw.Row):
    id: int
    country: str | None = None


app = hw.App("shop")
assert_type(Order(1, "DE", 2.5, datetime.now()).total, float)  # noqa: DTZ005
assert_type(User(1).country, str | None)
assert_type(app.stream("orders", Order, key="order_id", time="at"), Stream)
assert_type(app.table("users", User, key="id"), Stream)
assert_type(app.sql("n", "SELECT count(*) FROM orders", key=[], late=hw.late.drop()), View)
assert_type(hw.late.correct("1 day"), Late)


@app.view(key="country", late=hw.late.correct("1 day"), emit="changes")
def revenue(orders: DataFrame, users: hw.Table) -> hw.Table:
    totals = hw.group(orders, "country", total=F.sum("total"))
    assert_type(totals, hw.Table)
    assert_type(users.where("country = 'DE'").select("id"), hw.Table)
    return totals.join(users, on="country", how="left")


assert_type(revenue, View)
assert_type(app.sink(revenue, hw.sink.Sqlite("revenue.db")), Sink)
assert_type(app.capture("shop", hw.capture.Postgres("postgresql://h/d", tables=["public.t"])), Capture)

with app.running() as running:
    position = running.send("orders", [Order(1, "DE", 2.5, datetime.now())])  # noqa: DTZ005
    assert_type(position, hw.Position)
    assert_type(running.rows("revenue", at_least=position), Rows)
    assert_type(running.rows(revenue)[0], dict[str, Any])
assert_type(hw.wait("revenue", position, timeout=5), hw.Position)

app.view(key="country", latency="fast")  # type: ignore[arg-type]
app.view(key="country", latancy="batch")  # type: ignore[call-arg]
Order("1", "DE", 2.5, datetime.now())  # type: ignore[arg-type]  # noqa: DTZ005
User(1).country = "DE"  # type: ignore[misc]
