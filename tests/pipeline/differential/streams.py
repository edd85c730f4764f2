"""Programs over streams with late rows: windows, sessions, sliding windows, rows that held, matches. SQL is asked about the rows that were in time."""

from pipeline.differential.programs import Draw, Program

__all__ = ["streamed"]

AGGREGATES = ["count(*)", "count(n)", "sum(n)", "min(n)", "max(n)", "avg(n)", "min(item)", "max(item)", "count(w)", "max(w)", "min(at)"]  # fmt: skip
HOWS = ["inner", "left", "right", "full"]


def streamed(draw: Draw) -> Program:
    """A view of streams."""
    kinds = [_window, _window, _sessions, _sessions, _sliding, _as_of, _as_of, _as_of_in_sql, _match, _match, _match_groups, _unmatched, _distinct, _latest, _versions]  # fmt: skip
    return draw.choose.choice(kinds)(draw)


def _minutes(draw: Draw, *choices: int) -> int:
    return draw.choose.choice(choices)


def _late(draw: Draw) -> int:
    return draw.choose.choice([0, 0, 10, 20])


def _aggregates(draw: Draw) -> list[str]:
    return [draw.choose.choice(AGGREGATES) for _ in range(draw.choose.randint(1, 3))]


def _window(draw: Draw) -> Program:
    """Tumbling and hopping windows, in Python or in SQL; Spark's own, over what we let through."""
    size = _minutes(draw, 5, 10, 20)
    hop = draw.choose.choice(["", f", '{size // 5} minutes'"])
    by = draw.choose.choice(["user", "item"])
    aggregates = _aggregates(draw)
    listed = ", ".join(f"{each} AS s{n}" for n, each in enumerate(aggregates))
    condition = draw.where({"n": "whole", "item": "text"})
    sql = f"SELECT {by}, window, {listed} FROM clicks{condition} GROUP BY {by}, window(at, '{size} minutes'{hop})"
    code, inputs = "", ()
    if draw.choose.random() < 0.5 and not condition:
        columns = ", ".join(f"F.expr({aggregate!r}).alias('s{n}')" for n, aggregate in enumerate(aggregates))
        code, inputs = (
            f"clicks.groupBy({by!r}, F.window('at', '{size} minutes'{hop})).agg({columns})",
            ("clicks",),
        )
    return Program(sql, (by, "window"), "window", code=code, inputs=inputs, correct=_late(draw))


def _arguments(aggregates: list[str]) -> str:
    return ", ".join(f"s{n}=F.expr({each!r})" for n, each in enumerate(aggregates))


def _sessions(draw: Draw) -> Program:
    gap, by, aggregates = _minutes(draw, 2, 5, 7), draw.choose.choice(["user", "item"]), _aggregates(draw)
    listed = ", ".join(f"{each} AS s{n}" for n, each in enumerate(aggregates))
    code = f"hw.sessions(clicks, {by!r}, time='at', gap='{gap} minutes', {_arguments(aggregates)})"
    sql = f"SELECT {by}, session_window AS window, {listed} FROM clicks WHERE at IS NOT NULL GROUP BY {by}, session_window(at, '{gap} minutes')"
    return Program(sql, (by, "window"), "hw.sessions", code=code, inputs=("clicks",), correct=_late(draw))


def _sliding(draw: Draw) -> Program:
    size, by, aggregates = _minutes(draw, 3, 10), draw.choose.choice(["user", "item"]), _aggregates(draw)
    listed = ", ".join(f"{each.replace('(', '(e.').replace('e.*', '*')} AS s{n}" for n, each in enumerate(aggregates))  # fmt: skip
    code = f"hw.sliding(clicks, {by!r}, time='at', size='{size} minutes', {_arguments(aggregates)})"
    sql = (
        f"SELECT t.{by} AS {by}, named_struct('start', t.at - INTERVAL {size} MINUTES, 'end', t.at) AS window, {listed} "
        f"FROM (SELECT DISTINCT {by}, at FROM clicks WHERE at IS NOT NULL) t JOIN clicks e "
        f"ON e.{by} <=> t.{by} AND e.at > t.at - INTERVAL {size} MINUTES AND e.at <= t.at GROUP BY t.{by}, t.at"
    )
    return Program(sql, (by, "window"), "hw.sliding", code=code, inputs=("clicks",), correct=_late(draw))


def _as_of(draw: Draw) -> Program:
    """Rates that held at the time of a click, whose item is a land."""
    missing = draw.choose.choice(["keep", "drop", "wait", "final"])
    correct, late = draw.choose.choice([0, 0, 12]), _late(draw)
    more, hold = "", 0
    if missing == "wait":
        hold = _minutes(draw, 3, 6)
        more = f", missing='wait', wait='{hold} minutes'"
    elif missing == "final":
        hold = _minutes(draw, 2, 8)
        more = f", final='{hold} minutes'"
    elif missing == "drop":
        more = ", missing='drop'"
    if correct and missing != "final":
        more += f", correct='{correct} minutes'"
    code = f"hw.enrich(clicks, rates, on={{'item': 'land'}}, as_of='at', valid='since'{more}).select('id', 'item', 'n', 'percent', 'since')"
    options = (("missing", missing), ("hold", hold), ("correct", 0 if missing == "final" else correct))
    return Program("", ("id",), "hw.enrich", code=code, inputs=("clicks", "rates"), correct=late, oracle="as_of", options=options)  # fmt: skip


def _as_of_in_sql(draw: Draw) -> Program:
    how, late = draw.choose.choice(["JOIN", "LEFT JOIN"]), _late(draw)
    missing = "drop" if how == "JOIN" else "keep"
    query = f"SELECT c.id, c.item, c.n, r.percent, r.since FROM clicks c {how} rates FOR SYSTEM_TIME AS OF c.at AS r ON c.item = r.land"
    options: tuple[tuple[str, object], ...] = (("missing", missing), ("hold", 0), ("correct", 0))
    key: tuple[str, ...] = ("id",)
    if draw.choose.random() < 0.5:
        query = f"SELECT r.percent, count(*) AS s0, sum(c.n) AS s1 FROM clicks c {how} rates FOR SYSTEM_TIME AS OF c.at AS r ON c.item = r.land GROUP BY r.percent"
        options, key = (*options, ("grouped", True)), ("percent",)
    return Program("", key, "FOR SYSTEM_TIME", query=query, correct=late, oracle="as_of", options=options)


def _bound(draw: Draw) -> tuple[int, int]:
    return draw.choose.choice([(0, 4), (3, 0), (2, 2), (5, 1)])


def _matched(draw: Draw) -> tuple[str, str, str]:
    before, after = _bound(draw)
    how = draw.choose.choice(HOWS)
    bounds = (f", before='{before} minutes'" if before else "") + (
        f", after='{after} minutes'" if after else ""
    )
    code = f"hw.match(clicks, hits, on={{'user': 'who'}}, time=('at', 'seen_at'){bounds}, how={how!r})"
    near = f"user = who AND seen_at >= at - INTERVAL {before} MINUTES AND seen_at <= at + INTERVAL {after} MINUTES"
    return code, f"clicks {how.upper()} JOIN hits ON {near}", how


def _match(draw: Draw) -> Program:
    code, joined, _ = _matched(draw)
    columns = ["id", "user", "n", "at", "hit", "who", "m", "seen_at"]
    sql = f"SELECT {', '.join(columns)} FROM {joined}"
    code = f"{code}.select({', '.join(map(repr, columns))})"
    return Program(sql, ("id", "hit"), "hw.match", code=code, inputs=("clicks", "hits"), correct=_late(draw))


def _match_groups(draw: Draw) -> Program:
    code, joined, _ = _matched(draw)
    by = draw.choose.choice(["user", "who", "page"])
    sql = f"SELECT {by}, count(*) AS s0, count(hit) AS s1, max(m) AS s2 FROM {joined} GROUP BY {by}"
    code = f"hw.group({code}, {by!r}, s0=F.count('*'), s1=F.count('hit'), s2=F.max('m'))"
    return Program(sql, (by,), "hw.group of hw.match", code=code, inputs=("clicks", "hits"), correct=_late(draw))  # fmt: skip


def _unmatched(draw: Draw) -> Program:
    (before, after), late = _bound(draw), _late(draw)
    bounds = (f", before='{before} minutes'" if before else "") + (
        f", after='{after} minutes'" if after else ""
    )
    code = f"hw.unmatched(clicks, hits, on={{'user': 'who'}}, time=('at', 'seen_at'){bounds}).select('id', 'user', 'at')"
    options = (("before", before), ("after", after))
    return Program("", ("id",), "hw.unmatched", code=code, inputs=("clicks", "hits"), correct=late, oracle="unmatched", options=options)  # fmt: skip


def _distinct(draw: Draw) -> Program:
    by, within = draw.choose.choice(["user", "item"]), _minutes(draw, 2, 5)
    code = f"hw.distinct(clicks, {by!r}, time='at', within='{within} minutes').select({by!r}, 'at')"
    options = (("by", by), ("within", within))
    return Program("", (by, "at"), "hw.distinct", code=code, inputs=("clicks",), correct=_late(draw), oracle="distinct", options=options)  # fmt: skip


def _latest(draw: Draw) -> Program:
    by = draw.choose.choice(["user", "item"])
    code = f"hw.latest(clicks, {by!r}, time='at').select({by!r}, 'at')"
    sql = f"SELECT {by}, max(at) AS at FROM clicks WHERE at IS NOT NULL GROUP BY {by}"
    return Program(sql, (by,), "hw.latest", code=code, inputs=("clicks",))


def _versions(draw: Draw) -> Program:
    code = "hw.versions(rates, 'land', time='since').select('land', 'percent', 'valid_from', 'valid_to')"
    sql = "SELECT land, percent, since AS valid_from, lead(since) OVER (PARTITION BY land ORDER BY since) AS valid_to FROM rates"
    return Program(sql, ("land", "valid_from"), "hw.versions", code=code, inputs=("rates",))
