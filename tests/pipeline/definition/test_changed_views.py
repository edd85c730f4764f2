"""Changed views: whether old state may be used is decided on plans, and must agree with what happens.

A seed is a view and a changed view. Decided on plans: refused exactly where the changed view would have made other state of the same records. Run: a history
that spans the change; a view that continues has the rows that it should, and those that are refused are let through once, to see that they would be
wrong. VERSIONS_SEED is the first seed, VERSIONS_SEEDS their number, VERSIONS_TALLY a file for what became of each kind of change.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.clock import SystemClock
from headwater.declare.schema import key_text
from headwater.declare.spec import View as Declared
from headwater.errors import HeadwaterError
from headwater.follow.results import newest
from headwater.pipeline.build.prepare import prepare
from headwater.pipeline.definition.definition import Definition, refusal
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.run.runner import Runner
from headwater.pipeline.topics import Topics
from pipeline.queries import TABLES, Row, View, state
from pipeline.view_pairs import EVENTS, Happening, Pair, pair, telling
from support.ordershop import Shop

FIRST = int(os.environ.get("VERSIONS_SEED", "0"))
SEEDS = int(os.environ.get("VERSIONS_SEEDS", "26"))
TOGETHER = 26
"""Pairs that share a run."""
RUN = "VERSIONS_SEEDS" in os.environ
"""Whether all pairs are run; otherwise a few are, which decide most."""
ALWAYS = 6


def declared(shop: Shop, views: dict[str, View]) -> hw.App:
    app = hw.App("versions")
    for name, kind in EVENTS.items():
        if name in TABLES:
            app.table(name, kind, key="id", topic=shop.name(name))
        else:
            app.stream(name, kind, key="id", time="at", delay="1 day", topic=shop.name(name))
    for name, view in views.items():
        view.declare(app, shop.name(name))
    return app


def defined(spark: SparkSession, shop: Shop, view: View) -> Definition:
    graph = declared(shop, {"v": view}).graph()
    (made,) = graph.views.values()
    assert isinstance(made, Declared)
    topics = dict.fromkeys(map(shop.name, EVENTS), 2)
    return prepare(spark, shop.settings, graph, made, 2, partitions=topics).definition


def refused(parts: dict[str, str], now: Definition) -> bool:
    return refusal("v", parts, now) is not None


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, TOGETHER))
def test_a_changed_view_is_refused_exactly_where_it_would_have_made_other_state(shop, spark, first):
    wrong = []
    for seed in range(first, min(first + TOGETHER, FIRST + SEEDS)):
        changed = pair(seed)
        other = any(state(changed.old, each) != state(changed.new, each) for each in telling(seed))
        before, again, now = (defined(spark, shop, each) for each in (changed.old, changed.old, changed.new))
        if refused(before.parts, again) or before.digest != again.digest:
            wrong.append(f"{seed}: the same view is another: {changed.old}")
        if refused(before.parts, now) != other:
            wrong.append(f"{seed}: {'continues' if other else 'is refused'}: {changed.kind}: {changed}")
    assert wrong == []


# ---- what happens --------------------------------------------------------------------------------------


def is_right(changed: Pair, happening: Happening, rows: dict[tuple, Row]) -> bool:
    """Whether a view that was changed between two eras has the rows that it should."""
    whole = happening.history(2)
    if changed.rule == "mixed" and changed.mixed is not None:
        return rows == changed.mixed.rows(whole)
    wanted = changed.new.rows(whole)
    if changed.rule == "new" or rows == wanted:
        return rows == wanted
    first = happening.history(1)
    old, new = changed.old.rows(first), changed.new.rows(first)
    return all(
        rows.get(key) == wanted.get(key)
        or (rows.get(key) == old.get(key) and new.get(key) == wanted.get(key))
        for key in {*rows, *wanted}
    )


def published(shop: Shop, name: str, view: View) -> dict[tuple, Row]:
    rows = shop.table(shop.name(name)).values()
    return {tuple(row[each] for each in view.key): row for row in rows}


def send(shop: Shop, happening: Happening, era: int) -> None:
    shop.send_records((topic, key_text([n]), event, at) for topic, n, event, at in happening.events(era))


def let_through(shop: Shop, name: str) -> None:
    """Takes what it says of its definition out of the last result of a view, as one of before had nothing of it."""
    topics = Topics(shop.log)
    last = newest(topics, shop.name(name))
    assert last is not None
    progress = RunResults(topics, shop.name(name), last.run, SystemClock())
    progress.take_over()
    progress.revise([msgspec.structs.replace(last, parts={}, definition="")])
    progress.close()


def ended_well(shop: Shop, views: dict[str, View]) -> set[str]:
    """Runs some views; the names of those that did not fail."""
    try:
        Runner(declared(shop, views), shop.settings).once()
    except HeadwaterError:
        if len(views) == 1:
            return set()
        return {found for name, view in views.items() for found in ended_well(shop, {name: view})}
    return set(views)


def spanned(shop: Shop, seed: int, pairs: dict[str, Pair]) -> dict[str, tuple[bool, bool]]:
    """Runs pairs over one history; of each whether it was refused, and whether its rows are right in the end."""
    happening = Happening(seed)
    shop.make(*EVENTS)
    send(shop, happening, 1)
    Runner(declared(shop, {name: each.old for name, each in pairs.items()}), shop.settings).once()
    for name, each in pairs.items():
        assert published(shop, name, each.old) == each.old.rows(happening.history(1)), each.old
    send(shop, happening, 2)
    new = {name: each.new for name, each in pairs.items()}
    spark, topics = SparkSession.active(), Topics(shop.log)
    verdicts = {}
    for name, view in new.items():
        last = newest(topics, shop.name(name))
        assert last is not None
        verdicts[name] = refused(last.parts, defined(spark, shop, view))
    Runner(declared(shop, {n: v for n, v in new.items() if not verdicts[n]}), shop.settings).once()
    turned_away = {name: view for name, view in new.items() if verdicts[name]}
    for name in turned_away:
        let_through(shop, name)
    fine = ended_well(shop, turned_away) if turned_away else set()
    return {
        name: (
            verdicts[name],
            (not verdicts[name] or name in fine)
            and is_right(each, happening, published(shop, name, each.new)),
        )
        for name, each in pairs.items()
    }


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, TOGETHER))
def test_a_view_that_continues_is_right_and_one_that_is_refused_would_be_wrong(shop, first):
    seeds: Sequence[int] = range(first, min(first + TOGETHER, FIRST + SEEDS))
    if not RUN:
        seeds = seeds[:ALWAYS]
    pairs = {f"v{seed}": pair(seed) for seed in seeds}
    found = spanned(shop, first, pairs)
    wrong = [
        f"{name}: {pairs[name]}"
        for name, (is_refused, right) in found.items()
        if not is_refused and not right
    ]
    assert wrong == [], "continues, and is wrong"
    turned_away = [right for is_refused, right in found.values() if is_refused]
    assert turned_away.count(False) > turned_away.count(True) or len(found) < TOGETHER, (
        "refused, and mostly right"
    )
    tally_verdicts(first, pairs, found)


def tally_verdicts(first: int, pairs: dict[str, Pair], found: dict[str, tuple[bool, bool]]) -> None:
    """What became of each kind of change, in the file VERSIONS_TALLY."""
    if file := os.environ.get("VERSIONS_TALLY"):
        counts = Counter((pairs[name].kind, *verdict) for name, verdict in found.items())
        with Path(file).open("a") as lines:
            for (kind, is_refused, right), count in sorted(counts.items()):
                line = {"first": first, "kind": kind, "refused": is_refused, "right": right, "pairs": count}
                lines.write(json.dumps(line) + "\n")
