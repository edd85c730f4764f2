"""make bench-logic: CPU of the operators of a join, without Spark: Arrow rows in, Arrow rows out, state in the real store.

The records of ``bench/joins.py`` go through every operator of ours that a view has for them, in batches, as a task would take them: its shards
one after the other, the copy of each brought up to date, a delta file written and synced. What Spark does in between, to parse, to shuffle and to write
JSON, is done here too and not counted. Prints records a second of CPU, and what each operator took: the best of ``ROUNDS``.
``PROFILE=1`` shows where the time of a round goes.
"""

import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.pipeline.asof.lookup_as_of import LookupAsOf
from headwater.pipeline.operator.logic import Logic
from headwater.pipeline.operator.messages import Plan, Written
from headwater.pipeline.operator.shell import FILE, answers
from headwater.pipeline.operator.two_inputs import LEFT, RIGHT
from headwater.pipeline.output.changed_rows import PUBLISH, ChangedRows
from headwater.pipeline.state.files import Place
from headwater.pipeline.tables.changelog import DELETED, OFFSET, PARTITION
from headwater.pipeline.tables.join_by_key import ON, ROUTED, KeyedJoin, Route
from headwater.pipeline.wire.wire import WEIGHT
from headwater.result import Chain

EVENTS = int(os.environ.get("EVENTS", "400000"))
BATCHES = int(os.environ.get("BATCHES", "4"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SHARDS = 2
BEGIN_US = 1_767_603_600_000_000
DELAY_US = 4_000_000
TIME = pa.timestamp("us", "UTC")
ORDER = pa.schema([("order_id", pa.int64()), ("customer_id", pa.int64()), ("cents", pa.int64()), ("status", pa.string())])  # fmt: skip
CUSTOMER = pa.schema([("customer_id", pa.int64()), ("name", pa.string()), ("city", pa.string())])
TRADE = pa.schema([("trade_id", pa.int64()), ("account", pa.int64()), ("cents", pa.int64()), ("at", TIME)])
RATE = pa.schema([("account", pa.int64()), ("rate", pa.int64()), ("since", TIME), ("_gone", pa.bool_()), ("_offset", pa.int64()), ("_arrival", TIME)])  # fmt: skip
NOTHING = pa.schema([])


class Steps:
    """The operators of a view, their state, and the CPU that each has taken."""

    def __init__(self, folder: Path, profile: cProfile.Profile | None) -> None:
        self.folder, self.profile = folder, profile
        self.chains: dict[str, list[Chain]] = {}
        self.seconds: dict[str, float] = {}
        self.rows: dict[str, int] = {}

    def run(
        self, name: str, logic: Logic, rows: pa.Table, kind: pa.Schema, batch: int, *, watermark: int = 0
    ) -> pa.Table:
        """One operator over one batch, in as many tasks as there are shards."""
        place = Place(str(self.folder / name), str(self.folder / f"{name}.copies"))
        chains = self.chains.setdefault(name, [()] * SHARDS)
        plan = Plan(batch, {name: place}, {name: chains}, watermark)
        keys = rows.column("_key").cast(pa.binary()).to_pylist()
        shards = np.fromiter((crc32(key) % SHARDS for key in keys), np.int32, len(keys))
        parts = []
        for shard in range(SHARDS):
            mine = rows.filter(pa.array(shards == shard))
            mine = mine.append_column("_shard", pa.array(np.full(mine.num_rows, shard, np.int32)))
            found = mine.combine_chunks().to_batches(max_chunksize=10_000)
            if self.profile:
                self.profile.enable()
            begun = time.process_time()
            parts += list(answers(name, logic, found, plan, kind))
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - begun
            if self.profile:
                self.profile.disable()
        self.rows[name] = self.rows.get(name, 0) + rows.num_rows
        out = pa.Table.from_batches(parts)
        for note in out.column(FILE).drop_null().to_pylist():
            written = msgspec.json.decode(note, type=Written)
            chains[written.shard] = written.chain
        return out.filter(pc.is_null(out.column(FILE))).drop_columns([FILE])


def text(values: Any) -> pa.Array:
    return pc.cast(values, pa.string())


def paired(left: pa.Table, right: pa.Table, on: str) -> pa.Table:
    """Both inputs as ``pair.py`` puts them into one frame."""

    def side(rows: pa.Table, mine: str, other: pa.Schema) -> pa.Table:
        shown = rows.drop_columns([WEIGHT]) if WEIGHT in rows.column_names else rows
        columns = [each.combine_chunks() for each in shown.columns]
        struct = pa.StructArray.from_arrays(columns, fields=list(shown.schema))
        nulls = pa.nulls(rows.num_rows, pa.struct(list(other)))
        weight = (
            rows.column(WEIGHT) if WEIGHT in rows.column_names else pa.array(np.ones(rows.num_rows, np.int32))
        )
        pair = (struct, nulls) if mine == LEFT else (nulls, struct)
        key = rows.column(on)
        return pa.table([key, *pair, weight, text(key)], names=["_on1", LEFT, RIGHT, WEIGHT, "_key"])

    def bare(schema: pa.Schema) -> pa.Schema:
        return pa.schema([each for each in schema if each.name != WEIGHT])

    return pa.concat_tables([side(left, LEFT, bare(right.schema)), side(right, RIGHT, bare(left.schema))])


def published(rows: pa.Table, key: str) -> pa.Table:
    """Rows as JSON, for the publication."""
    names = [name for name in rows.column_names if name != WEIGHT]
    pieces: list[Any] = ["{"]
    for n, name in enumerate(names):
        quote = "" if pa.types.is_integer(rows.column(name).type) else '"'
        value = pc.fill_null(text(rows.column(name)), "null")
        pieces += [f'{"," if n else ""}"{name}":{quote}', value, quote]
    values = pc.binary_join_element_wise(*pieces, "}", "")
    return pa.table([values, text(rows.column(key)), rows.column(WEIGHT)], names=["_value", "_key", WEIGHT])


def weighted(kind: pa.Schema) -> pa.Schema:
    return kind.append(pa.field(WEIGHT, pa.int32()))


def changes(rows: pa.Table, key: str, deleted: Any, first: int) -> pa.Table:
    """Changes of a table as ``source.py`` hands them to ``current.py``."""
    count = rows.num_rows
    own = {
        DELETED: pa.array(deleted),
        PARTITION: pa.array(np.zeros(count, np.int32)),
        OFFSET: pa.array(np.arange(first, first + count)),
        "_key": text(rows.column(key)),
    }
    for name, column in own.items():
        rows = rows.append_column(name, column)
    return rows


# ---- the join of two tables ----------------------------------------------------------------------------


def orders() -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Of ten records one is a customer's, who has nine orders and moves once; an order comes and changes, and one of fifty goes."""
    customers, every = EVENTS // 20, EVENTS * 9 // 20
    size = EVENTS // BATCHES
    for batch in range(BATCHES):
        n = np.arange(batch * size, (batch + 1) * size)
        who, what = n[n % 10 == 0], n[n % 10 != 0]
        number = who // 10 % customers
        names = pc.binary_join_element_wise("customer", text(pa.array(number)), " ")
        cities = pc.binary_join_element_wise("city", text(pa.array(who % 97)), " ")
        customer = pa.table([pa.array(number), names, cities], schema=CUSTOMER)
        order = what - what // 10 - 1
        number, again = order % every, order >= every
        gone = again & (number % 50 == 0)
        status = np.where(again, "paid", "open")
        columns = [number, number * 7_919 % customers, what % 9973, status]
        made = pa.table([pa.array(each) for each in columns], schema=ORDER)
        yield (
            batch,
            changes(made, "order_id", gone, batch * size),
            changes(customer, "customer_id", np.zeros(len(who), bool), batch * size),
        )


def both_changes(left: pa.Table, right: pa.Table, on: str) -> pa.Table:
    """The changes of both tables as ``join_by_key.py`` puts them into one frame."""

    def side(rows: pa.Table, mine: int) -> pa.Table:
        shown = rows.select([ORDER, CUSTOMER][mine].names)
        struct = pa.StructArray.from_arrays(
            [each.combine_chunks() for each in shown.columns], fields=list(shown.schema)
        )
        nulls = pa.nulls(rows.num_rows, pa.struct(list([CUSTOMER, ORDER][mine])))
        place = pc.if_else(rows.column(DELETED), None, text(rows.column(on))).cast(pa.binary())
        pair = (nulls, struct) if mine else (struct, nulls)
        columns = [*pair, place, *(rows.column(name) for name in (PARTITION, OFFSET, "_key"))]
        return pa.table(columns, names=[LEFT, RIGHT, ON, PARTITION, OFFSET, "_key"])

    return pa.concat_tables([side(left, 0), side(right, 1)])


def joined(steps: Steps) -> None:
    sides = (from_arrow_schema(each) for each in (ORDER, CUSTOMER))
    own = KeyedJoin(key=(ON,), shared=("customer_id",), left=next(sides), right=next(sides), single=(False, True))  # fmt: skip
    both = pa.schema([*ORDER, *list(CUSTOMER)[1:]])
    for batch, order, customer in orders():
        sent = steps.run("route", Route(), both_changes(order, customer, "customer_id"), ROUTED, batch)
        rows = steps.run("join", own, sent, weighted(both), batch)
        steps.run(PUBLISH, ChangedRows(weighted=True), published(rows, "order_id"), NOTHING, batch)


# ---- as-of enrichment ----------------------------------------------------------------------------------


def trades() -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Of twenty records one is a new rate of an account, the others are trades; there are a hundred for each account."""
    accounts, size = EVENTS // 100, EVENTS // BATCHES
    for batch in range(BATCHES):
        n = np.arange(batch * size, (batch + 1) * size)
        at = pa.array(BEGIN_US + n * 1000).cast(TIME)
        is_rate = n % 20 == 0
        account = np.where(is_rate, n // 20, n) * 7_919 % accounts
        trade = pa.table([pa.array(n), pa.array(account), pa.array(n % 9973), at], schema=TRADE)
        gone = pa.array(np.zeros(len(n), bool))
        rate = pa.table([pa.array(account), pa.array(n), at, gone, pa.array(n), at], schema=RATE)
        yield batch, trade.filter(pa.array(~is_rate)), rate.filter(pa.array(is_rate))


def enriched(steps: Steps) -> None:
    own = LookupAsOf(key=("_on1",), as_of="at", valid="since", columns=("rate", "since"))
    kind = pa.schema([*TRADE, ("rate", pa.int64()), ("since", TIME), ("version", pa.string())])
    heard = -(1 << 62)
    for batch, trade, rate in trades():
        rows = steps.run(
            "enrich", own, paired(trade, rate, "account"), weighted(kind), batch, watermark=heard
        )
        shown = rows.select(["trade_id", "account", "cents", "at", "rate", WEIGHT])
        steps.run(PUBLISH, ChangedRows(weighted=True), published(shown, "trade_id"), NOTHING, batch)
        heard = pc.max(trade.column("at")).cast(pa.int64()).as_py() - DELAY_US


CASES: dict[str, Callable[[Steps], None]] = {
    "as-of enrichment": enriched,
    "join of two tables": joined,
}


def main() -> None:
    pa.set_cpu_count(1)  # as in a worker of Spark
    profile = cProfile.Profile(time.process_time) if os.environ.get("PROFILE") else None
    for what, case in CASES.items():
        if len(sys.argv) > 1 and sys.argv[1] not in what:
            continue
        found = []
        for _ in range(1 if profile else ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                steps = Steps(Path(folder), profile)
                case(steps)
                found.append(steps)
        best = min(found, key=lambda steps: sum(steps.seconds.values()))
        total = sum(best.seconds.values())
        print(f"{what:20} {EVENTS / total:10,.0f} records/s and core")
        for name, seconds in best.seconds.items():
            print(
                f"    {name:16} {best.rows[name]:10,} rows {seconds / best.rows[name] * 1e6:8.2f} µs each {seconds:8.2f} s"
            )
        if profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
            profile.clear()


if __name__ == "__main__":
    main()
