"""Runs programs as views over changing tables, and compares them with Spark's own SQL over what the tables hold.

The programs of a run share the tables, their history and one application; before each batch the pipeline is started anew.
"""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import headwater as hw
from headwater.client import producer
from headwater.errors import UsageError
from headwater.pipeline import prepare
from headwater.pipeline.runner import Runner
from headwater.schema import ddl, encode, key_text, wire
from ordershop import Shop
from pipeline.differential.programs import Program
from pipeline.differential.values import TABLES, row

__all__ = ["Compared", "Difference", "History", "compared"]

BATCHES = 3
KEYS = {
    "users": [(n,) for n in (0, 1, 2, 3, 4, 5, -7, 2**63 - 1)],
    "orders": [(text,) for text in ("o1", "o2", "o3", "[null]", "", '["x"]', "ö", "o 8", 'q"')],
    "lands": [(land, part) for land in ("a", "b", "[null]", "a, b") for part in (0, 1)],
}
Rows = dict[str, dict[tuple[Any, ...], hw.Event]]


class Change(NamedTuple):
    table: str
    key: tuple[Any, ...]
    row: hw.Event | None


class Difference(NamedTuple):
    """What a view and a batch do not agree about."""

    program: Program
    batch: int
    view: list[str]
    expected: list[str]

    def __str__(self) -> str:
        mine, theirs = set(self.view), set(self.expected)
        lines = [f"{self.program.kind}, after batch {self.batch}: {self.program.sql}"]
        lines += [f"  only the view has   {each}" for each in sorted(mine - theirs)[:4]]
        lines += [f"  only the batch has  {each}" for each in sorted(theirs - mine)[:4]]
        return "\n".join(lines)


class Compared(NamedTuple):
    """What differs after each batch, and what was refused, with the reason."""

    differences: list[Difference]
    refused: dict[str, str]


class History:
    """What happens to the tables, batch by batch, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._choose = random.Random(seed)
        self.rows: Rows = {name: {} for name in TABLES}

    def batches(self) -> Iterator[list[Change]]:
        for number in range(BATCHES):
            changes = [self._change() for _ in range(30 if number == 0 else 14)]
            for each in changes:
                if each.row is None:
                    self.rows[each.table].pop(each.key, None)
                else:
                    self.rows[each.table][each.key] = each.row
            yield changes

    def _change(self) -> Change:
        table = self._choose.choice(list(TABLES))
        key = self._choose.choice(KEYS[table])
        gone = self._choose.random() < 0.25
        return Change(table, key, None if gone else row(table, key, self._choose))


def accepted(
    spark: SparkSession, shop: Shop, programs: Sequence[Program]
) -> tuple[hw.App, dict[str, Program], dict[str, str]]:
    """An application with a view for each program that is not refused, by name; and the reasons of those that are, by their text."""
    app, views, reasons = _tables(shop), {}, {}
    for number, each in enumerate(programs):
        name = shop.name(f"v{number}")
        alone = _tables(shop)
        alone.sql(name, each.sql, key=each.key)
        try:
            graph = alone.graph()
            prepare.planned(spark, shop.settings, graph, graph.views[name], 2)
        except UsageError as error:
            reasons[each.sql] = str(error)
            continue
        app.sql(name, each.sql, key=each.key)
        views[name] = each
    return app, views, reasons


def _tables(shop: Shop) -> hw.App:
    app = hw.App("differential")
    for name, (event, key) in TABLES.items():
        app.table(name, event, key=key, topic=shop.name(name))
    return app


def compared(spark: SparkSession, shop: Shop, programs: Sequence[Program], seed: int) -> Compared:
    """Lives through a history with these programs."""
    shop.make(*TABLES)
    app, views, reasons = accepted(spark, shop, programs)
    history, differences = History(seed), []
    out = producer(shop.log)
    for number, changes in enumerate(history.batches()):
        for each in changes:
            out.produce(
                shop.name(each.table), encode(each.row) if each.row is not None else None, key_text(each.key)
            )
        assert out.flush(30) == 0
        Runner(app, shop.settings).once()
        said = expected(spark, views, history.rows)
        for name, each in views.items():
            mine = sorted(text(found) for found in shop.table(name).values())
            if mine != said[name]:
                differences.append(Difference(each, number, mine, said[name]))
    return Compared(differences, reasons)


def expected(spark: SparkSession, views: dict[str, Program], rows: Rows) -> dict[str, list[str]]:
    """What Spark says of the tables, by plain SQL."""
    for name, (event, _) in TABLES.items():
        held = [json.dumps(wire(each)) for each in rows[name].values()]
        frame = spark.createDataFrame([(each,) for each in held], "json STRING")
        options = "map('mode', 'FAILFAST')"
        frame.selectExpr(
            f"inline(array(from_json(json, '{ddl(event)}', {options})))"
        ).createOrReplaceTempView(name)
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    try:
        return {name: sorted(map(text, _answers(spark, each))) for name, each in views.items()}
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        for name in TABLES:
            spark.catalog.dropTempView(name)


def _answers(spark: SparkSession, program: Program) -> list[dict[str, Any]]:
    return [_plain(each.asDict(recursive=True)) for each in spark.sql(program.sql).collect()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytearray):
        value = bytes(value)
    return wire(value)


def text(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, ensure_ascii=False)
