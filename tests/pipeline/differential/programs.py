"""Programs: queries over the tables, drawn from a seed. What Spark's own SQL says of the tables is what the view must say."""

import random
from typing import Any, NamedTuple

__all__ = [
    "COLUMNS",
    "FIXED",
    "KEYS",
    "SAME",
    "TABLES",
    "TEXT_OF",
    "Draw",
    "Program",
    "grouped",
    "joined",
    "named",
    "queried",
]

COLUMNS = {
    "users": {
        "id": "whole", "name": "text", "land": "text", "age": "large", "score": "double", "balance": "decimal", "born": "date", "seen": "time",
        "active": "bool", "tags": "list", "inner": "struct", "raw": "binary",
    },
    "orders": {
        "code": "text", "user": "whole", "item": "text", "cents": "whole", "weight": "double", "price": "decimal", "due": "date", "at": "time", "paid": "bool",
    },
    "lands": {"land": "text", "part": "whole", "name": "text", "rate": "double"},
    "clicks": {"id": "whole", "user": "whole", "item": "text", "n": "whole", "w": "double", "at": "time"},
}  # fmt: skip
TABLES = ("users", "orders", "lands")
KEYS = {"users": ["id"], "orders": ["code"], "lands": ["land", "part"], "clicks": ["id"]}
SAME = [("users", "id", "orders", "user"), ("users", "land", "lands", "land"), ("users", "name", "orders", "item"), ("users", "score", "orders", "weight"), ("users", "balance", "orders", "price"), ("users", "born", "orders", "due"), ("users", "seen", "orders", "at"), ("orders", "item", "lands", "name"), ("lands", "rate", "orders", "weight"), ("lands", "part", "orders", "user"), ("clicks", "user", "users", "id"), ("clicks", "item", "orders", "item")]  # fmt: skip
"""Columns of two tables that a join may compare."""
TEXT_OF = {
    "double": "CAST({} AS STRING)",
    "list": "to_json({})",
    "struct": "to_json(struct({}))",
    "binary": "hex({})",
}
"""How a value is shown in a view's key, which has no exact text of its own."""


class Program(NamedTuple):
    """A query, the columns that make the view's key, and what kind of query it is.

    ``sql`` is what Spark's own SQL is asked, and the view's query too unless ``code`` or ``query`` is given.
    """

    sql: str
    key: tuple[str, ...]
    kind: str
    code: str = ""
    """The view in Python."""
    query: str = ""
    """The view in SQL, where Spark's own has no word for it."""
    inputs: tuple[str, ...] = ()
    """What the view in Python reads."""
    below: "tuple[tuple[str, Program], ...]" = ()
    """Views that it reads, by the names that it has for them; to Spark's SQL they are subqueries."""
    correct: int = 0
    """For how many minutes stragglers still count."""
    oracle: str = "sql"
    """Who is asked: SQL, or one of the oracles in plain Python."""
    options: tuple[tuple[str, Any], ...] = ()
    """What the oracle has to know."""
    refusable: bool = False
    """Whether it may be refused."""

    @property
    def text(self) -> str:
        """The program as a reader wants to see it."""
        below = [f"{name}: {each.text}; " for name, each in self.below]
        return "".join(below) + (self.code or self.query or self.sql)

    @property
    def whole(self) -> str:
        """What Spark's own SQL is asked."""
        parts = ", ".join(f"{name} AS ({each.whole})" for name, each in self.below)
        return f"WITH {parts} {self.sql}" if parts else self.sql


class Draw:
    """Draws parts of a query. ``columns`` are those in scope, by what they are called in it."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose

    def columns(self, table: str, alias: str = "") -> dict[str, str]:
        dot = f"{alias}." if alias else ""
        return {f"{dot}{name}": kind for name, kind in COLUMNS[table].items()}

    def value(self, columns: dict[str, str]) -> tuple[str, str]:
        """An expression, and its kind."""
        name, kind = self.choose.choice(list(columns.items()))
        forms = {
            "whole": ["{}", "{} + 1", "{} % 3", "coalesce({}, 7)", "-{}", "nullif({}, 2)"],
            "large": ["{}", "{} % 5", "coalesce({}, -1)"],
            "text": ["{}", "upper({})", "coalesce({}, 'none')", "concat({}, '!')", "substr({}, 1, 1)", "trim({})"],
            "double": ["{}", "coalesce({}, 0.5D)", "-{}"],
            "decimal": ["{}", "coalesce({}, 1.5BD)"],
            "date": ["{}", "coalesce({}, DATE'2026-01-05')"],
            "time": ["{}", "date_trunc('DAY', {})"],
            "bool": ["{}", "NOT {}", "coalesce({}, true)"],
            "list": ["{}", "coalesce({}, array())"],
            "struct": ["{}"],
            "binary": ["{}"],
        }[kind]  # fmt: skip
        form = self.choose.choice(forms) if self.choose.random() < 0.5 else "{}"
        if self.choose.random() < 0.1:
            return f"CASE WHEN {self.condition(columns)} THEN {name} END", kind
        return form.format(name), kind

    def condition(self, columns: dict[str, str]) -> str:
        name, kind = self.choose.choice(list(columns.items()))
        forms = {
            "whole": ["{} > 1", "{} IN (1, 2, 7)", "{} BETWEEN 1 AND 3", "{} IS NULL", "{} % 2 = 0"],
            "large": ["{} > 1", "{} IS NOT NULL"],
            "text": ["{} = 'a'", "{} <> 'b'", "{} LIKE '%a%'", "{} IS NULL", "{} IN ('a', 'A', '[null]')", "length({}) < 2"],
            "double": ["{} > 0", "{} = 0", "isnan({})", "{} IS NULL", "{} < 2 OR {} IS NULL"],
            "decimal": ["{} > 1", "{} <= 1.5"],
            "date": ["{} > DATE'2000-01-01'", "year({}) = 2026"],
            "time": ["{} >= TIMESTAMP'2026-01-05 09:00:00Z'", "{} IS NOT NULL"],
            "bool": ["{}", "NOT {}", "{} IS NULL"],
            "list": ["size({}) > 1", "array_contains({}, 'a')", "{} IS NULL"],
            "struct": ["{}.a = 1", "{} IS NOT NULL"],
            "binary": ["{} = X'00'", "length({}) = 0"],
        }[kind]  # fmt: skip
        first = self.choose.choice(forms).replace("{}", name)
        if self.choose.random() < 0.25:
            return f"({first} {self.choose.choice(['AND', 'OR'])} {self.condition(columns)})"
        return first

    def where(self, columns: dict[str, str]) -> str:
        return f" WHERE {self.condition(columns)}" if self.choose.random() < 0.5 else ""

    def shown(self, columns: dict[str, str], first: int = 0) -> list[str]:
        """A few columns of a select."""
        found = [self.value(columns)[0] for _ in range(self.choose.randint(1, 3))]
        return [f"{each} AS v{first + n}" for n, each in enumerate(found)]

    def aggregates(self, columns: dict[str, str]) -> list[str]:
        forms = ["count(*)"]
        for name, kind in columns.items():
            forms += [f"count({name})"]
            if kind == "whole":
                forms += [f"sum({name})", f"avg({name})"]
            if kind not in {"struct", "list", "binary"}:
                forms += [f"min({name})", f"max({name})"]
        chosen = [self.choose.choice(forms) for _ in range(self.choose.randint(1, 3))]
        if self.choose.random() < 0.3:
            chosen[0] += f" FILTER (WHERE {self.condition(columns)})"
        return [f"{each} AS s{n}" for n, each in enumerate(chosen)]


def queried(draw: Draw) -> Program:
    """A query of one view in SQL."""
    kinds = [_select, _join, _join, _group, _group, _group_of_join, _distinct, _union, _chain, _groups_of_groups, _join_of_groups, _explode]  # fmt: skip
    return draw.choose.choice(kinds)(draw)


def _select(draw: Draw) -> Program:
    table = draw.choose.choice(TABLES)
    columns = draw.columns(table)
    listed = ", ".join([*KEYS[table], *draw.shown(columns)])
    return Program(f"SELECT {listed} FROM {table}{draw.where(columns)}", tuple(KEYS[table]), "select")


class Joined(NamedTuple):
    text: str
    columns: dict[str, str]
    keys: list[str]


def joined(draw: Draw) -> Joined:
    """A join of two tables of any kind."""
    left, one, right, two = draw.choose.choice(SAME)
    if draw.choose.random() < 0.5:
        left, one, right, two = right, two, left, one
    how = draw.choose.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
    on = f"l.{one} = r.{two}"
    if how == "JOIN" and draw.choose.random() < 0.3:
        on += f" AND {draw.condition(draw.columns(left, 'l') | draw.columns(right, 'r'))}"
    elif how == "LEFT JOIN" and draw.choose.random() < 0.3:
        on += f" AND {draw.condition(draw.columns(right, 'r'))}"
    elif how == "RIGHT JOIN" and draw.choose.random() < 0.3:
        on += f" AND {draw.condition(draw.columns(left, 'l'))}"
    keys = [f"l.{name} AS l_{name}" for name in KEYS[left]] + [
        f"r.{name} AS r_{name}" for name in KEYS[right]
    ]
    return Joined(
        f"{left} l {how} {right} r ON {on}", draw.columns(left, "l") | draw.columns(right, "r"), keys
    )


def named(keys: list[str]) -> tuple[str, ...]:
    """What columns of a select are called."""
    return tuple(each.rsplit(" AS ", 1)[1] for each in keys)


def _join(draw: Draw) -> Program:
    found = joined(draw)
    listed = ", ".join([*found.keys, *draw.shown(found.columns)])
    return Program(f"SELECT {listed} FROM {found.text}{draw.where(found.columns)}", named(found.keys), "join")


def _by(draw: Draw, columns: dict[str, str]) -> tuple[list[str], list[str], tuple[str, ...]]:
    """What is grouped by, what is shown of it, and the names of that."""
    by, shown = [], []
    for n in range(draw.choose.choice([1, 1, 2])):
        each, kind = draw.value(columns)
        by.append(each)
        shown.append(f"{TEXT_OF.get(kind, '{}').format(each)} AS g{n}")
    return by, shown, tuple(f"g{n}" for n in range(len(by)))


def grouped(draw: Draw, text: str, columns: dict[str, str], kind: str) -> Program:
    """A group of a table or a join."""
    by, shown, key = _by(draw, columns)
    having = " HAVING count(*) > 1" if draw.choose.random() < 0.3 else ""
    sql = f"SELECT {', '.join([*shown, *draw.aggregates(columns)])} FROM {text}{draw.where(columns)} GROUP BY {', '.join(by)}{having}"
    return Program(sql, key, kind)


def _group(draw: Draw) -> Program:
    table = draw.choose.choice(TABLES)
    return grouped(draw, table, draw.columns(table), "group")


def _group_of_join(draw: Draw) -> Program:
    found = joined(draw)
    return grouped(draw, found.text, found.columns, "group of a join")


def _distinct(draw: Draw) -> Program:
    table = draw.choose.choice(TABLES)
    columns = draw.columns(table)
    _, shown, key = _by(draw, columns)
    return Program(f"SELECT DISTINCT {', '.join(shown)} FROM {table}{draw.where(columns)}", key, "distinct")


def _union(draw: Draw) -> Program:
    parts = []
    for table in draw.choose.sample(TABLES, 2):
        keys = " || '/' || ".join(f"CAST({name} AS STRING)" for name in KEYS[table])
        columns = {name: kind for name, kind in draw.columns(table).items() if kind == "text"}
        parts.append(f"SELECT '{table}' AS kind, {keys} AS id, {draw.value(columns)[0]} AS v FROM {table}")
    return Program(" UNION ALL ".join(parts), ("kind", "id"), "union")


def _chain(draw: Draw) -> Program:
    hows = [draw.choose.choice(["JOIN", "LEFT JOIN"]) for _ in range(2)]
    columns = draw.columns("orders", "o") | draw.columns("users", "u") | draw.columns("lands", "l")
    keys = ["o.code AS o_code", "u.id AS u_id", "l.land AS l_land", "l.part AS l_part"]
    sql = (
        f"SELECT {', '.join([*keys, *draw.shown(columns)])} FROM orders o {hows[0]} users u ON o.user = u.id "
        f"{hows[1]} lands l ON u.land = l.land{draw.where(columns)}"
    )
    return Program(sql, named(keys), "chain")


def _groups_of_groups(draw: Draw) -> Program:
    table = draw.choose.choice(TABLES)
    columns = draw.columns(table)
    by, _ = draw.value(columns)
    inner = f"SELECT {by} AS g, count(*) AS n FROM {table}{draw.where(columns)} GROUP BY {by}"
    return Program(
        f"SELECT n, count(*) AS groups, count(g) AS known FROM ({inner}) GROUP BY n",
        ("n",),
        "group of groups",
    )


def _join_of_groups(draw: Draw) -> Program:
    how = draw.choose.choice(["JOIN", "LEFT JOIN", "FULL JOIN"])
    inner = f"SELECT user, {', '.join(draw.aggregates(draw.columns('orders')))} FROM orders GROUP BY user"
    sql = f"SELECT u.id AS id, u.name, t.* FROM users u {how} ({inner}) t ON t.user = u.id"
    return Program(sql, ("id", "user"), "join of groups")


def _explode(draw: Draw) -> Program:
    columns = draw.columns("users")
    sql = f"SELECT tag, count(*) AS n, max(id) AS latest FROM users LATERAL VIEW explode(tags) AS tag{draw.where(columns)} GROUP BY tag"
    return Program(sql, ("tag",), "explode")


FIXED = [
    Program("SELECT coalesce(land, 'none') AS g, count(*) AS n FROM users GROUP BY coalesce(land, 'none')", ("g",), "group by what cannot be null"),
    Program("SELECT 'all' AS g, count(*) AS n FROM users GROUP BY 'all'", ("g",), "group by a literal"),
    Program("SELECT word, count(*) AS n FROM users LATERAL VIEW explode(split(name, ' ')) AS word GROUP BY word", ("word",), "words"),
    Program("SELECT CAST(score AS STRING) AS g, count(*) AS n FROM users GROUP BY score", ("g",), "group by doubles"),
    Program("SELECT to_json(tags) AS g, count(*) AS n FROM users GROUP BY tags", ("g",), "group by arrays"),
    Program("SELECT to_json(inner) AS g, count(*) AS n FROM users GROUP BY inner", ("g",), "group by structs"),
    Program("SELECT land AS g, count(*) AS n FROM users GROUP BY land", ("g",), "group by texts that look like null"),
    Program("SELECT u.id AS u, o.code AS o FROM users u JOIN orders o ON u.score = o.weight", ("u", "o"), "join by doubles"),
    Program("SELECT o.code, coalesce(u.name, '-') AS n FROM orders o LEFT JOIN users u ON o.user = u.id", ("code",), "what cannot be null after a join"),
]  # fmt: skip
"""Queries that were wrong once."""
