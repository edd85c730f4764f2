"""Runs programs as views over changing tables and streams, and compares them after each batch with what oracles say.

The programs of a run share the tables, their history and one application. Before each batch the pipeline is started again; plans are
kept from start to start, unless a run asks for new ones.
"""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import headwater as hw
from headwater.client.client import producer
from headwater.config import Settings
from headwater.declare.graph import Graph
from headwater.declare.schema import encode, key_text
from headwater.declare.spec import View
from headwater.errors import HeadwaterError, UsageError
from headwater.follow.results import results
from headwater.pipeline.build.prepare import Prepared
from headwater.pipeline.engine.spark_engine import Spark
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.topics import Topics
from pipeline.differential.oracles import Batch, Record, expected, plain_spark, tables
from pipeline.differential.programs import Program
from pipeline.differential.values import STREAMS, TABLES
from support.ordershop import Shop

__all__ = ["Compared", "Difference", "compared"]

DELAY = "5 minutes"
History = list[list[Record]]


class Difference(NamedTuple):
    """What a view and an oracle do not agree about."""

    program: Program
    batch: int
    view: list[str]
    expected: list[str]

    def __str__(self) -> str:
        mine, theirs = set(self.view), set(self.expected)
        lines = [f"{self.program.kind}, after batch {self.batch}: {self.program.text}"]
        lines += [f"  late by up to {self.program.correct} minutes"] if self.program.correct else []
        lines += [f"  only the view has   {each}" for each in sorted(mine - theirs)[:4]]
        lines += [f"  only the batch has  {each}" for each in sorted(theirs - mine)[:4]]
        return "\n".join(lines)


class Compared(NamedTuple):
    """What differs after each batch, and what was refused, with the reason."""

    differences: list[Difference]
    refused: dict[str, str]


class Planned(Spark):
    """Spark, with plans that outlive a start."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.plans: dict[str, Prepared] = {}

    def prepare(
        self, graph: Graph, view: View, shards: int, *, partitions: Mapping[str, int], in_groups: bool
    ) -> Prepared:
        if view.name not in self.plans:
            self.plans[view.name] = super().prepare(
                graph, view, shards, partitions=partitions, in_groups=in_groups
            )
        return self.plans[view.name]


class Run:
    """Programs, as views of one application."""

    def __init__(self, spark: SparkSession, shop: Shop, programs: Sequence[Program]) -> None:
        self.spark, self.shop = spark, shop
        self.topics = Topics(shop.log)
        self.engine = Planned(shop.settings)
        self.views: dict[str, Program] = {}
        self.refused: dict[str, str] = {}
        self.log: list[Record] = []
        self._engines_started()
        for number, each in enumerate(programs):
            self._accept(shop.name(f"v{number}"), each)

    def _engines_started(self) -> None:
        shards = self.shop.settings.partitions
        self.topics.ensure([self.shop.name(name) for name in [*TABLES, *STREAMS]], shards, compact=False)
        self.engine.start(0, None)
        self.partitions = self.topics.partitions()

    def _accept(self, name: str, program: Program) -> None:
        """Plans a view, or keeps the reason why it is refused."""
        try:
            graph = self._app({name: program}).graph()
            shards = self.shop.settings.partitions
            for view in graph.views.values():
                options = {"partitions": self.partitions, "in_groups": shards == self.engine.partitions()}
                self.engine.prepare(graph, view, shards, **options)
        except UsageError as error:
            self.refused[program.text] = str(error)
            return
        self.views[name] = program

    def _app(self, programs: dict[str, Program]) -> hw.App:
        app = hw.App("differential")
        for name, (event, key) in TABLES.items():
            app.table(name, event, key=key, topic=self.shop.name(name))
        for name, (event, key, time) in STREAMS.items():
            app.stream(name, event, key=key, time=time, topic=self.shop.name(name), delay=DELAY)
        for name, each in programs.items():
            _declare(app, name, each)
        return app

    def batch(self, records: Sequence[Record], *, plan_again: bool = False) -> None:
        """Writes what happens, starts the application and lets it take all of it."""
        out = producer(self.shop.log)
        sent: list[Record] = []
        for each in records:

            def done(_: Any, message: Any, each: Record = each) -> None:
                sent.append(each._replace(partition=message.partition(), offset=message.offset()))

            value = encode(each.row) if each.row is not None else None
            out.produce(self.shop.name(each.topic), value, key_text(each.key), on_delivery=done)
        assert out.flush(30) == 0
        self.log += sorted(sent, key=lambda each: each.offset)
        engine = Spark(self.shop.settings) if plan_again else self.engine
        Runner(self._app(self.views), self.shop.settings, engine=engine).once()

    def taken(self, view: str) -> list[Batch]:
        """The batches of a view that read streams, from its results."""
        found, before = [], dict[tuple[str, int], int]()
        for each in results(self.topics, view):
            reached = {(topic, n): end for topic, ends in each.inputs.items() for n, end in ends.items()}
            taken = [record for record in self.log if before.get(self._place(record), 0) <= record.offset < reached.get(self._place(record), 0)]  # fmt: skip
            found.append(Batch(each.watermark, taken))
            before |= reached
        return found

    def _place(self, record: Record) -> tuple[str, int]:
        return self.shop.name(record.topic), record.partition

    def differences(self, number: int, *, last: bool) -> list[Difference]:
        """Every view beside its oracle."""
        rows: dict[str, dict[Any, hw.Event]] = {name: {} for name in [*TABLES, *STREAMS]}
        for each in self.log:
            rows[each.topic].pop(each.key, None)
            if each.row is not None:
                rows[each.topic][each.key] = each.row
        found, all_rows = [], {name: list(held.values()) for name, held in rows.items()}
        with plain_spark(self.spark):
            tables(self.spark, all_rows)
            for name, program in self.views.items():
                batches = self.taken(name) if _judged(program) else []
                said = sorted(text(each) for each in expected(self.spark, program, batches))
                if any(each.watermark is not None for each in batches):
                    tables(self.spark, {stream: all_rows[stream] for stream in STREAMS})
                mine = sorted(text(each) for each in self.shop.table(name).values())
                early = program.oracle == "unmatched" and not last and set(mine) <= set(said)
                if mine != said and not early:
                    found.append(Difference(program, number, mine, said))
        return found


def _judged(program: Program) -> bool:
    """Whether what it says depends on how its records were cut into batches."""
    return program.oracle != "sql" or any(stream in program.text for stream in STREAMS)


def _declare(app: hw.App, name: str, program: Program) -> None:
    below = {alias: f"{name}.{alias}" for alias, _ in program.below}
    for alias, each in program.below:
        _declare(app, below[alias], each)
    late = hw.late.correct(f"{program.correct} minutes") if program.correct else None
    if not program.code:
        query = program.query or program.sql
        inputs = None
        if below:
            inputs = below | {table: table for table in [*TABLES, *STREAMS] if f" {table} " in f"{query} "}
        app.sql(name, query, key=program.key, inputs=inputs, late=late)
        return
    known: dict[str, Any] = {"hw": hw, "F": F}
    exec(f"def view({', '.join(program.inputs)}):\n    return {program.code}", known)  # noqa: S102
    app.view(key=program.key, name=name, late=late)(known["view"])


def compared(
    spark: SparkSession,
    shop: Shop,
    programs: Sequence[Program],
    batches: History,
    seed: int = 0,
    *,
    first_only: bool = False,
) -> Compared:
    """Lives through a history with these programs. With ``first_only`` it ends with the first batch after which something differs."""
    run = Run(spark, shop, programs)
    choose, found = random.Random(seed), list[Difference]()
    waits = any(each.oracle == "unmatched" for each in run.views.values())
    again = [[]] if waits else []
    for number, records in enumerate([*batches, *again] if run.views else []):
        if number and choose.random() < 0.3:
            for name in choose.sample(list(run.views), len(run.views) // 3):
                shop.lose_commit(name)
        plan_again = number == len(batches) - 1 and choose.random() < 0.1
        try:
            run.batch(records, plan_again=plan_again)
        except HeadwaterError as error:
            programs_left = list(run.views.values())
            found.append(Difference(_blamed(run.views, error) or programs_left[0], number, [str(error)], []))
            break
        found += run.differences(number, last=number == len(batches))
        if found and first_only:
            break
    return Compared(found, run.refused)


def _blamed(views: dict[str, Program], error: HeadwaterError) -> Program | None:
    """The program that an error names."""
    return next(
        (each for name, each in views.items() if f"'{name}'" in str(error) or f"'{name}." in str(error)), None
    )


def text(row: dict[str, Any]) -> str:
    """A row as text. Of a zero that is the smallest or the greatest Spark may show either sign, as its rows come."""
    shown = {name: 0.0 if name[0] == "s" and value == 0 and isinstance(value, float) else value for name, value in row.items()}  # fmt: skip
    return json.dumps(shown, sort_keys=True, ensure_ascii=False)
