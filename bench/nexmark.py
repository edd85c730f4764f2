"""make bench-time, make bench-joins: Nexmark's queries as views beside Flink SQL, on the same two cores and the same embedded log.

Both are exactly once: each batch of ours is a transaction, Flink has a transactional sink and a checkpoint every second. Both stay up
between queries, and their runs take turns. CPU-seconds are those of all processes but the log's. QUERIES=q0,q17 takes some,
ROUNDS= and EVENTS= say how much; figures are added to those that are there.
"""

import hashlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from confluent_kafka.admin import AdminClient

import auctions
from beside import Flink, Ours, cpu_seconds
from embedded import embedded
from headwater.client.client import Client
from headwater.pipeline.spark import session
from nexmark_joins import JOINS, fill_side
from nexmark_joins import tables as joined_tables
from nexmark_queries import QUERIES, Query, app, job, tables
from results import FOLDER, Figure, save
from support.servers import BrokerProcess

EVENTS = int(os.environ.get("EVENTS", "5000000"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
RUNS = FOLDER.parent / "nexmark-runs.json"
"""The medians of each query; a run adds its own."""
LONG_S = 300.0
"""A query of which one run takes longer, with either, has one round besides the first."""
CPU_GOAL, TIME_GOAL, WORST_GOAL = 1.1, 1.0, 0.7


# ---- whether both say the same -------------------------------------------------------------------------


def canonical(query: Query, row: dict[str, Any]) -> tuple[Any, ...]:
    """The columns of a result in a form of their own, for both."""
    kinds = {
        name.strip("`"): kind
        for name, kind in re.findall(r"(`?\w+`?) (BIGINT|STRING|DOUBLE|DECIMAL|TIMESTAMP)", query.columns)
    }
    return tuple(_plain(kind, row[name]) for name, kind in kinds.items() if name not in query.approximate)


def _plain(kind: str, value: Any) -> Any:
    if kind == "TIMESTAMP":
        return datetime.fromisoformat(value.replace("Z", "")).isoformat()
    if kind == "DECIMAL":
        return str(Decimal(str(value)).normalize())
    return f"{value:.9e}" if kind == "DOUBLE" else value


def content(bootstrap: str, query: Query, topic: str, *, append: bool) -> tuple[int, int, dict[Any, Any]]:
    """How many rows a result has, the sum of their hashes, and the estimates in it by the other columns."""
    client = Client(bootstrap)
    rows: Iterator[tuple[Any, bytes]]
    if append:
        rows = ((number, record.value()) for number, record in enumerate(client.read([topic])))
    else:
        last = {record.key(): record.value() for record in client.read([topic])}
        rows = iter((key, value) for key, value in last.items() if value is not None)
    count, total, estimates = 0, 0, {}
    for _, value in rows:
        row = json.loads(value)
        exact = canonical(query, row)
        if query.approximate:
            estimates[exact] = [row[name] for name in query.approximate]
        count += 1
        total += int.from_bytes(hashlib.blake2b(repr(exact).encode(), digest_size=8).digest())
    return count, total % (1 << 64), estimates


def compared(bootstrap: str, query: Query, ours: str, theirs: str) -> str:
    mine = content(bootstrap, query, ours, append=query.append)
    other = content(bootstrap, query, theirs, append=query.append or query.closed)
    if mine[:2] != other[:2]:
        raise RuntimeError(f"{query.name}: results differ: {mine[0]:,} rows of ours, {other[0]:,} of Flink's")
    if not query.approximate:
        return f"{mine[0]:,} rows equal"
    errors = [
        abs(a - b) / b
        for key, found in mine[2].items()
        for a, b in zip(found, other[2][key], strict=True)
        if b
    ]
    return f"{mine[0]:,} rows equal, estimates {statistics.mean(errors):.1%} off on average, {max(errors):.1%} at most"


# ---- runs ----------------------------------------------------------------------------------------------


def measured(query: Query, ours: Ours, flink: Flink, broker: BrokerProcess) -> dict[str, Any]:
    """The medians of runs that take turns; the first round warms both up and checks that they agree."""
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "flink": []}
    equal, rounds, number = "", ROUNDS, 0
    while number <= rounds:
        topics = {}
        for who, system in (("ours", ours), ("flink", flink)):
            topics[who] = topic = f"{query.name}-{who}-{number}-{os.getpid()}"
            before = cpu_seconds(system.processes)
            seconds = (
                ours.run(app(query, topic), topic)
                if system is ours
                else flink.run(*_job(query, topic, broker.bootstrap))
            )
            cpu = cpu_seconds(system.processes) - before
            print(f"{query.name} round {number} {who:6} {cpu:7.1f} CPU-s {seconds:7.1f} s", flush=True)
            if number:
                found[who].append((cpu, seconds))
            elif seconds > LONG_S:
                rounds = 1
        if number == 0:
            equal = compared(broker.bootstrap, query, topics["ours"], topics["flink"])
            print(f"{query.name} {equal}", flush=True)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.delete_topics([*topics.values()]).values():
            done.result(30)
        number += 1
    middle = {
        who: {"cpu_s": statistics.median(c for c, _ in runs), "job_s": statistics.median(s for _, s in runs)}
        for who, runs in found.items()
    }
    return {**middle, "equal": equal, "rounds": rounds, "events": EVENTS, "at": time.strftime("%Y-%m-%d")}


def _job(query: Query, topic: str, bootstrap: str) -> tuple[str, str]:
    Client(bootstrap).ensure_topics([topic], 2)
    return job(query, topic, bootstrap)


def figures(known: dict[str, Any]) -> list[Figure]:
    """CPU-seconds and seconds of each query, and the geometric means of the ratios."""
    found: list[Figure] = []
    means: dict[str, list[float]] = {}
    for part, unit, goal in (("cpu_s", "CPU-s", CPU_GOAL), ("job_s", "s", TIME_GOAL)):
        for query in (*QUERIES, *JOINS):
            runs = known.get(query.name)
            if runs is None:
                continue
            about = ", ours estimates" if query.approximate else ""
            rounds = "1 round" if runs["rounds"] == 1 else f"{runs['rounds']} rounds"
            measure = f"{query.name}, {unit}: {runs['events'] / 1e6:g} million events, {rounds}{about}"
            ours, theirs = runs["ours"][part], runs["flink"][part]
            found.append(
                Figure(measure, ours, theirs, "Flink SQL 2.3.0", unit, WORST_GOAL, higher_is_better=False)
            )
            if not query.approximate:
                means.setdefault(unit, []).append(theirs / ours)
        exact = means.get(unit, [])
        if exact:
            mean = statistics.geometric_mean(exact)
            found.append(
                Figure(
                    f"geometric mean of {len(exact)} exact queries by {unit}",
                    mean,
                    1.0,
                    "Flink SQL 2.3.0",
                    "ratio",
                    goal,
                )
            )
    return found


def main() -> None:
    asked = [name for name in os.environ.get("QUERIES", "").split(",") if name]
    chosen = [query for query in (*QUERIES, *JOINS) if not asked or query.name in asked]
    known = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    with embedded(partitions=2) as (broker, settings), tempfile.TemporaryDirectory() as folder:
        for one_topic in {query.reads is not None for query in chosen}:
            print(auctions.fill(broker.bootstrap, EVENTS, 2, one_topic=one_topic), flush=True)
        fill_side(broker.bootstrap)
        flink = Flink(Path(folder), [*tables(broker.bootstrap), *joined_tables(broker.bootstrap)])
        ours = Ours(settings)
        print(f"started: ours {ours.started_s:.1f} s, flink {flink.started_s:.1f} s", flush=True)
        try:
            for query in chosen:
                known[query.name] = measured(query, ours, flink, broker)
                RUNS.write_text(json.dumps(known, indent=2) + "\n")
        finally:
            flink.end()
            session.start(settings).stop()
    save("nexmark", figures(known))


if __name__ == "__main__":
    main()
