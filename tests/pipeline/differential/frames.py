"""Programs in Python: DataFrames with the operators for tables, and the SQL that says the same of plain tables."""

from typing import NamedTuple

from pipeline.differential.programs import COLUMNS, KEYS, SAME, TABLES, TEXT_OF, Draw, Program

__all__ = ["framed"]

HOWS = ["inner", "left", "right", "full"]
AGGREGATES = {
    "count": "F.count({!r})",
    "sum": "F.sum({!r})",
    "avg": "F.avg({!r})",
    "min": "F.min({!r})",
    "max": "F.max({!r})",
}


class Made(NamedTuple):
    """Rows, in Python and in SQL."""

    code: str
    sql: str
    columns: dict[str, str]
    keys: tuple[str, ...]
    inputs: tuple[str, ...]


def framed(draw: Draw) -> Program:
    """A view in Python."""
    kinds = [_select, _union, _join, _join, _group, _group, _group_of_join, _group_of_group, _joins, _newest]
    return draw.choose.choice(kinds)(draw)


def _table(draw: Draw, name: str, prefix: str) -> Made:
    """A table with all of its columns under names of their own, and often a condition."""
    listed = [f"{column} AS {prefix}_{column}" for column in COLUMNS[name]]
    where = draw.condition(draw.columns(name)) if draw.choose.random() < 0.4 else ""
    code = name + (f".where({where!r})" if where else "") + f".selectExpr({', '.join(map(repr, listed))})"
    sql = f"SELECT {', '.join(listed)} FROM {name}" + (f" WHERE {where}" if where else "")
    columns = {f"{prefix}_{column}": kind for column, kind in COLUMNS[name].items()}
    return Made(code, sql, columns, tuple(f"{prefix}_{key}" for key in KEYS[name]), (name,))


def _joined(draw: Draw, left: Made, right: Made, one: str, two: str) -> Made:
    how = draw.choose.choice(HOWS)
    code = f"hw.join({left.code}, {right.code}, on={{{one!r}: {two!r}}}, how={how!r})"
    sql = f"SELECT * FROM ({left.sql}) {how.upper()} JOIN ({right.sql}) ON {one} = {two}"
    return Made(
        code, sql, left.columns | right.columns, left.keys + right.keys, tuple(dict.fromkeys(left.inputs + right.inputs))
    )  # fmt: skip


def _pair(draw: Draw) -> Made:
    left, one, right, two = draw.choose.choice(SAME)
    if draw.choose.random() < 0.5:
        left, one, right, two = right, two, left, one
    return _joined(draw, _table(draw, left, "l"), _table(draw, right, "r"), f"l_{one}", f"r_{two}")


def _shown(draw: Draw, made: Made, kind: str) -> Program:
    """The rows with their keys and a few expressions."""
    listed = [*made.keys, *draw.shown(made.columns)]
    where = draw.condition(made.columns) if draw.choose.random() < 0.4 else ""
    code = (
        made.code + (f".where({where!r})" if where else "") + f".selectExpr({', '.join(map(repr, listed))})"
    )
    sql = f"SELECT {', '.join(listed)} FROM ({made.sql})" + (f" WHERE {where}" if where else "")
    return Program(sql, made.keys, kind, code=code, inputs=made.inputs)


def _grouped(draw: Draw, made: Made, kind: str) -> Program:
    """Groups by one or two expressions."""
    by = []
    for number in range(draw.choose.choice([1, 1, 2])):
        each, kind_of = draw.value(made.columns)
        by.append(f"{TEXT_OF.get(kind_of, '{}').format(each)} AS g{number}")
    listed = [*by, *made.columns]
    chosen = []
    for _ in range(draw.choose.randint(1, 3)):
        name, kind_of = draw.choose.choice(list(made.columns.items()))
        forms = ["count"] + (["sum", "avg"] if kind_of == "whole" else []) + (["min", "max"] if kind_of not in {"struct", "list", "binary"} else [])  # fmt: skip
        form = draw.choose.choice(forms)
        chosen.append((form, "*" if form == "count" and draw.choose.random() < 0.5 else name))
    keys = tuple(f"g{number}" for number in range(len(by)))
    calls = ", ".join(f"s{n}={AGGREGATES[form].format(name)}" for n, (form, name) in enumerate(chosen))
    asked = ", ".join(f"{form}({name}) AS s{n}" for n, (form, name) in enumerate(chosen))
    code = f"hw.group({made.code}.selectExpr({', '.join(map(repr, listed))}), {list(keys)}, {calls})"
    sql = f"SELECT {', '.join(keys)}, {asked} FROM (SELECT {', '.join(listed)} FROM ({made.sql})) GROUP BY {', '.join(keys)}"
    return Program(sql, keys, kind, code=code, inputs=made.inputs)


def _select(draw: Draw) -> Program:
    return _shown(draw, _table(draw, draw.choose.choice(TABLES), "t"), "frame")


def _union(draw: Draw) -> Program:
    """Rows of two tables under each other."""
    parts = []
    for name in draw.choose.sample(TABLES, 2):
        made = _table(draw, name, "t")
        key = " || '/' || ".join(f"CAST({each} AS STRING)" for each in made.keys)
        texts = {each: kind for each, kind in made.columns.items() if kind == "text"}
        listed = [f"'{name}' AS kind", f"{key} AS id", f"{draw.value(texts)[0]} AS v"]
        parts.append((f"{made.code}.selectExpr({', '.join(map(repr, listed))})", f"SELECT {', '.join(listed)} FROM ({made.sql})", name))  # fmt: skip
    code = f"{parts[0][0]}.unionByName({parts[1][0]})"
    sql = f"{parts[0][1]} UNION ALL {parts[1][1]}"
    return Program(sql, ("kind", "id"), "frame of a union", code=code, inputs=(parts[0][2], parts[1][2]))


def _join(draw: Draw) -> Program:
    return _shown(draw, _pair(draw), "hw.join")


def _joins(draw: Draw) -> Program:
    """Three tables."""
    first = _joined(draw, _table(draw, "orders", "o"), _table(draw, "users", "u"), "o_user", "u_id")
    return _shown(draw, _joined(draw, first, _table(draw, "lands", "l"), "u_land", "l_land"), "hw.join of hw.join")  # fmt: skip


def _group(draw: Draw) -> Program:
    return _grouped(draw, _table(draw, draw.choose.choice([*TABLES, "clicks"]), "t"), "hw.group")


def _group_of_join(draw: Draw) -> Program:
    return _grouped(draw, _pair(draw), "hw.group of hw.join")


def _group_of_group(draw: Draw) -> Program:
    inner = _grouped(draw, _table(draw, draw.choose.choice(TABLES), "t"), "")
    code = f"hw.group({inner.code}, 's0', n=F.count('*'), known=F.count('g0'))"
    sql = f"SELECT s0, count(*) AS n, count(g0) AS known FROM ({inner.sql}) GROUP BY s0"
    made = Program(sql, ("s0",), "hw.group of hw.group", code=code, inputs=inner.inputs)
    if any(word in inner.code.rsplit("selectExpr", 1)[1] for word in ("s0=F.min", "s0=F.max", "s0=F.avg")):
        text = "CAST(s0 AS STRING) AS t"  # a value that has no exact text in a view's key
        code = f"hw.group({inner.code}.selectExpr({text!r}, 'g0'), 't', n=F.count('*'), known=F.count('g0'))"
        sql = f"SELECT t, count(*) AS n, count(g0) AS known FROM (SELECT {text}, g0 FROM ({inner.sql})) GROUP BY t"
        made = made._replace(sql=sql, code=code, key=("t",))
    return made


def _newest(draw: Draw) -> Program:
    """The newest rows of each group, by a key that no two rows have."""
    made = _table(draw, "users", "t")
    by = draw.choose.choice(["t_land", "t_name", "t_active", "t_born"])
    shown = draw.choose.choice(["t_name", "t_age", "t_id", "t_active"])
    limit = draw.choose.choice([1, 2, 3])
    code = f"hw.group({made.code}, {by!r}, rows=hw.newest_of({shown!r}, order='t_id', limit={limit}), n=F.count('*'))"
    sql = (
        f"SELECT {by}, transform(slice(sort_array(collect_list(struct(t_id, {shown} AS v)), false), 1, {limit}), e -> e.v) AS rows, "
        f"count(*) AS n FROM ({made.sql}) GROUP BY {by}"
    )
    return Program(sql, (by,), "hw.newest_of", code=code, inputs=made.inputs)
