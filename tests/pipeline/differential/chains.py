"""Programs in SQL with several joins, with views that read views, and such as may be refused."""

from pipeline.differential.programs import KEYS, SAME, TEXT_OF, Draw, Program, grouped, joined, named

__all__ = ["chained"]

HOWS = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]


def chained(draw: Draw) -> Program:
    """A query of several joins, or several views."""
    kinds = [_several_joins, _several_joins, _group_of_several, _view_of_group, _view_of_join, _join_of_views, _may_be_refused]  # fmt: skip
    return draw.choose.choice(kinds)(draw)


def _several(draw: Draw) -> tuple[str, dict[str, str], list[str]]:
    """Two or three joins of any kind, each on a column that two of the tables have in common."""
    aliases = {"users": "u", "orders": "o", "lands": "l", "clicks": "c"}
    left, one, right, two = draw.choose.choice(SAME)
    text = f"{left} {aliases[left]} {draw.choose.choice(HOWS)} {right} {aliases[right]} ON {aliases[left]}.{one} = {aliases[right]}.{two}"
    there = [left, right]
    for _ in range(draw.choose.choice([1, 1, 2])):
        more = [(a, x, b, y) for a, x, b, y in [*SAME, *((b, y, a, x) for a, x, b, y in SAME)] if a in there and b not in there]  # fmt: skip
        if not more:
            break
        near, x, new, y = draw.choose.choice(more)
        text += (
            f" {draw.choose.choice(HOWS)} {new} {aliases[new]} ON {aliases[near]}.{x} = {aliases[new]}.{y}"
        )
        there.append(new)
    columns: dict[str, str] = {}
    for name in there:
        columns |= draw.columns(name, aliases[name])
    keys = [f"{aliases[name]}.{key} AS {aliases[name]}_{key}" for name in there for key in KEYS[name]]
    return text, columns, keys


def _several_joins(draw: Draw) -> Program:
    text, columns, keys = _several(draw)
    listed = ", ".join([*keys, *draw.shown(columns)])
    return Program(f"SELECT {listed} FROM {text}{draw.where(columns)}", named(keys), "several joins")


def _group_of_several(draw: Draw) -> Program:
    text, columns, _ = _several(draw)
    return grouped(draw, text, columns, "group of several joins")


def _view_of_group(draw: Draw) -> Program:
    """Counts of the groups of a view, by one of its aggregates."""
    table = draw.choose.choice(["users", "orders", "lands"])
    by, kind = draw.value(draw.columns(table))
    shown = TEXT_OF.get(kind, "{}").format(by)
    where = draw.where(draw.columns(table))
    below = Program(
        f"SELECT {shown} AS g, count(*) AS n, max({KEYS[table][-1]}) AS top FROM {table}{where} GROUP BY {by}",
        ("g",),
        "group",
    )
    sql = "SELECT n, count(*) AS s0, count(g) AS s1, min(top) AS s2 FROM inner_view GROUP BY n"
    return Program(sql, ("n",), "view of a group", below=(("inner_view", below),))


def _view_of_join(draw: Draw) -> Program:
    found = joined(draw)
    below = Program(
        f"SELECT {', '.join([*found.keys, *draw.shown(found.columns)])} FROM {found.text}{draw.where(found.columns)}",
        named(found.keys),
        "join",
    )
    key = draw.choose.choice(below.key)
    how = draw.choose.choice(["select", "group"])
    if how == "select":
        sql = f"SELECT {', '.join(below.key)}, v0 FROM inner_view WHERE {key} IS NOT NULL OR v0 IS NULL"
        return Program(sql, below.key, "view of a join", below=(("inner_view", below),))
    sql = f"SELECT {key} AS g, count(*) AS s0, count(v0) AS s1 FROM inner_view GROUP BY {key}"
    return Program(sql, ("g",), "view of a join", below=(("inner_view", below),))


def _join_of_views(draw: Draw) -> Program:
    """A table with a view of another, and that view made of a view."""
    orders = draw.columns("orders")
    first = Program(f"SELECT code, user, cents, item FROM orders{draw.where(orders)}", ("code",), "select")
    second = Program(
        "SELECT user, count(*) AS n, max(cents) AS most FROM first_view GROUP BY user", ("user",), "group"
    )._replace(below=(("first_view", first),))
    how = draw.choose.choice(HOWS)
    sql = f"SELECT u.id AS u_id, t.user AS t_user, u.name AS name, t.n AS n, t.most AS s0 FROM users u {how} second_view t ON u.id = t.user"
    return Program(sql, ("u_id", "t_user"), "join of views", below=(("second_view", second),))


def _may_be_refused(draw: Draw) -> Program:
    """What we may say no to, and may not get wrong."""
    condition = draw.condition(draw.columns("users", "u"))
    other = draw.condition(draw.columns("orders"))
    forms = [
        f"SELECT u.id, u.name AS v0 FROM users u WHERE u.id IN (SELECT user FROM orders WHERE {other})",
        f"SELECT u.id, u.name AS v0 FROM users u WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.user = u.id) AND {condition}",
        "SELECT u.id, u.name AS v0 FROM users u LEFT ANTI JOIN orders o ON o.user = u.id",
        "SELECT u.id, count(DISTINCT o.item) AS s0 FROM users u JOIN orders o ON o.user = u.id GROUP BY u.id",
        f"SELECT u.id, o.code AS v0 FROM users u LEFT JOIN orders o ON o.user = u.id AND {condition}",
        "SELECT u.id, o.code AS v0 FROM users u JOIN orders o ON o.user < u.id",
        "SELECT id, row_number() OVER (PARTITION BY land ORDER BY id) AS v0 FROM users",
        "SELECT id, name AS v0 FROM users ORDER BY id LIMIT 3",
        "SELECT u.id AS id, m.name AS v0 FROM users u JOIN users m ON u.age = m.id",
        f"SELECT id, name AS v0 FROM users u WHERE {condition} EXCEPT SELECT id, name FROM users WHERE id > 2",
        "SELECT id, (SELECT max(cents) FROM orders) AS v0 FROM users",
    ]
    key = ("id",) if draw.choose.random() < 0.9 else ("id", "v0")
    sql = draw.choose.choice(forms)
    if "o.code" in sql or "s0" in sql:
        key = ("id", "v0") if "o.code" in sql else ("id",)
    return Program(sql, key, "may be refused", refusable=True)
