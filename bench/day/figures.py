"""Report: a line a minute while the day lasts, and its figures in the end."""

import json
import re
import time
from collections import Counter
from datetime import timedelta

import feed
from headwater.demo.traffic import START
from results import Figure, save
from samples import UNITS, Judgement

COMPACTED = re.compile(r"headwater\.log\.retention: (\S+): compacted (\d+) bytes to (\d+)")
LINE_S = 60.0


def say(day) -> None:
    """Prints what a stranger wants to know, every minute until the day closes."""
    while not (day.folder / "closing").exists():
        print(line(day), flush=True)
        time.sleep(LINE_S)


def line(day) -> str:
    elapsed, sent = day.elapsed(), feed.read(day.folder)
    clock = START + timedelta(seconds=min(elapsed, day.plan.seconds) * day.plan.speed)
    newest = day.sampler.newest
    spark, broker = (newest.get((thing, "memory"), 0) for thing in ("Spark's JVM", "broker"))
    gone = len(day.sampler.segments) - len(day.sampler.alive)
    return (
        f"{elapsed / 60:5.1f} of {day.plan.minutes:g} min, {clock:%H:%M} in the shop: "
        f"{sum(sent.acknowledged.values()):,} of {sent.sent:,} records acknowledged; "
        f"memory: broker {broker:,.0f} MB, Spark {spark:,.0f} MB; "
        f"disk: {day.sampler.total('bytes'):,.0f} MB in {day.sampler.total('files'):,.0f} files, {gone:,} segments gone; "
        f"{len(day.installation.starts)} measured restarts; last: {day.timeline.last}"
    )


def passes(day) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """By kind of topic: compactions, segments that were ever there, and segments that are gone."""
    kinds = day.scaled.policies
    compacted: Counter[str] = Counter()
    for log in day.installation.kept_logs.glob("broker-*.log"):
        for found in COMPACTED.finditer(log.read_text(errors="replace")):
            compacted[kinds.get(found[1].rpartition("-")[0], "topics on the side")] += 1
    made = Counter(_kind(kinds, each) for each in day.sampler.segments)
    gone = Counter(_kind(kinds, each) for each in day.sampler.segments - day.sampler.alive)
    return compacted, made, gone


def _kind(kinds: dict[str, str], segment: str) -> str:
    return kinds.get(segment.partition("/")[0], "topics on the side")


def keep_samples(day) -> None:
    """All that was measured, for a closer look."""
    raw = {
        "seconds": day.plan.seconds,
        "starts": [each._asdict() for each in day.installation.starts],
        "series": [each._asdict() for each in day.sampler.series()],
    }
    (day.folder / "samples.json").write_text(json.dumps(raw))


def store(day, judged: list[Judgement]) -> None:
    """Prints what was measured; a run that can be compared is kept."""
    compacted, made, gone = passes(day)
    for kind in sorted(made):
        print(
            f"  {kind}: {made[kind]:,} segments, {gone[kind]:,} of them gone, {compacted[kind]:,} compactions"
        )
    for each in judged if day.plan.acts > 1 else ():
        print(f"  {'flat' if each.flat else 'NOT FLAT'}  {each}")
    for start in day.installation.starts:
        print(
            f"  start of {start.what} at {start.at_s / 60:.1f} min: {start.wall_s:.1f} s, {start.cpu_s:.1f} CPU-s"
        )
    if day.plan.acts > 1 and not day.plant:
        save("day", figures(day, judged))


def figures(day, judged: list[Judgement]) -> list[Figure]:
    minutes = f"{day.plan.minutes:g} minutes"
    return [
        Figure(
            f"{each.thing}: {each.measure}, last third of {minutes}",
            round(each.last, 2) or 0.01,
            round(each.middle, 2) or 0.01,
            "middle third",
            UNITS[each.measure],
            round(each.middle / each.allowed, 3) if each.middle else 0.0,
            higher_is_better=False,
        )
        for each in judged
    ]
