"""Pairs of a view and a changed view, and histories that span the change, by seed."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import headwater as hw
from pipeline.queries import (
    TABLES,
    Binary,
    Code,
    Compare,
    Explode,
    Expression,
    Field,
    Group,
    Join,
    Lambda,
    Mixed,
    Number,
    Query,
    Row,
    Select,
    Source,
    Union,
    View,
    Where,
    weighted,
)

__all__ = ["EVENTS", "Happening", "Pair", "pair", "telling"]

BEGIN = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
TEXTS = ("a b,c", "b c", "a,b c", "c,a")
COUNTRIES = ("de", "fr", "us")


class User(hw.Row):
    id: int
    country: str
    age: int
    score: int
    text: str


class Order(hw.Row):
    id: int
    user: int
    cents: int
    kilos: int


class Click(hw.Event):
    id: int
    user: int
    n: int
    m: int
    text: str
    at: datetime
    era: int


EVENTS: dict[str, type[hw.Event]] = {"users": User, "orders": Order, "clicks": Click, "seens": Click}
NUMBERS = {
    "users": ("id", "age", "score"),
    "orders": ("id", "user", "cents", "kilos"),
    "clicks": ("id", "user", "n", "m"),
    "seens": ("id", "user", "n", "m"),
}
RANGES = {"age": (15, 40), "score": (50, 90), "cents": (100, 140), "kilos": (200, 240), "n": (300, 340), "m": (400, 440)}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    kind: str
    """What was changed."""
    old: View
    new: View
    rule: str
    """By what rows must be right that the changed view has: new, mixed (filters of streams), shown (columns that are only shown)."""
    mixed: View | None = None


# ---- histories -----------------------------------------------------------------------------------------


class Happening:
    """Two eras: records by topic and id, without a row where it is deleted."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(f"history {seed}")
        self.records: tuple[list[tuple[str, int, Row | None]], ...] = ([], [])
        for era in (1, 2):
            self._happen(era)

    def _happen(self, era: int) -> None:
        made = self.records[era - 1]
        for topic, most in (("users", 12), ("orders", 16)):
            ids = range(1, most + 1) if era == 1 else self.choose.sample(range(1, most + 3), most // 2)
            made += [
                (
                    topic,
                    n,
                    None if era > 1 and self.choose.random() < 1 / 3 else row(self.choose, topic, n, era),
                )
                for n in ids
            ]
        for topic in ("clicks", "seens"):
            made += [(topic, n, row(self.choose, topic, n, era)) for n in range(100 * era, 100 * era + 15)]
        self.choose.shuffle(made)

    def events(self, era: int) -> Iterator[tuple[str, int, hw.Event | None, datetime]]:
        for topic, number, given in self.records[era - 1]:
            yield topic, number, EVENTS[topic](**given) if given is not None else None, BEGIN

    def history(self, eras: int) -> dict[str, list[Row]]:
        """Tables as they are after so many eras, and all of the streams."""
        found: dict[str, dict[int, Row | None]] = {topic: {} for topic in EVENTS}
        for topic, number, given in (each for era in self.records[:eras] for each in era):
            found[topic].pop(number, None)
            found[topic][number] = given
        return {
            topic: [given for given in rows.values() if given is not None] for topic, rows in found.items()
        }


def row(choose: random.Random, topic: str, number: int, era: int) -> Row:
    given: Row = {name: choose.randint(*RANGES[name]) for name in NUMBERS[topic] if name in RANGES}
    given["id"] = number
    if topic != "users":
        given["user"] = choose.randint(1, 10)
    if topic != "orders":
        given["text"] = choose.choice(TEXTS)
    if topic == "users":
        given["country"] = choose.choice(COUNTRIES)
    if topic not in TABLES:
        given |= {"at": BEGIN + timedelta(seconds=number), "era": era}
    return given


def telling(seed: int) -> Iterator[dict[str, list[Row]]]:
    """Histories, one of many rows and some of few, of which queries that are not the same do not all say the same."""
    choose = random.Random(f"telling {seed}")
    for most in (200, 20, 15, 10, 8, 6):
        yield {topic: [row(choose, topic, n, 1) for n in range(1, most)] for topic in EVENTS}


# ---- views ---------------------------------------------------------------------------------------------


class _Making:
    def __init__(self, choose: random.Random) -> None:
        self.choose = choose

    def expression(self, names: tuple[str, ...]) -> Expression:
        field, number = Field(self.choose.choice(names)), self.choose.randint(2, 5)
        return self.choose.choice(
            [
                field,
                Binary("+", field, Number(number)),
                Binary("*", field, Number(number)),
                Binary("*", Binary("+", field, Number(number)), Field(self.choose.choice(names))),
                Code(False, number, field),
                Code(True, number, field),
                Lambda(number, field),
            ]
        )

    def filtered(self, name: str) -> Query:
        """The rows of a topic, mostly through a filter that lets half of them through."""
        if self.choose.random() < 1 / 4:
            return Source(name)
        names = tuple(n for n in NUMBERS[name] if n in RANGES)
        once = Where(Source(name), self.condition(names))
        return Where(once, self.condition(names)) if self.choose.random() < 1 / 4 else once

    def condition(self, names: tuple[str, ...]) -> Compare:
        name = self.choose.choice(names)
        low, high = RANGES[name]
        return Compare(
            self.choose.choice([">=", "<"]), Field(name), Number(self.choose.randint(low + 10, high - 10))
        )

    def selected(self, query: Query, topic: str, prefix: str, *, on: str = "", key: str = "") -> Select:
        """Two columns of a topic, with what rows are joined on and what is their key."""
        first = [(f"{prefix}_key", Field(key))] if key else []
        first += [("on", Field(on))] if on else []
        made = [(f"{prefix}{n}", self.expression(NUMBERS[topic])) for n in (1, 2)]
        return Select(query, (*first, *made))

    def keyed(self, topic: str, query: Query | None = None) -> Select:
        """Rows with ``k``, which has few values, and two numbers."""
        by = Binary("%", self.expression(NUMBERS[topic]), Number(self.choose.randint(3, 5)))
        of = self.filtered(topic) if query is None else query
        return Select(of, (("k", by), *((f"v{n}", self.expression(NUMBERS[topic])) for n in (1, 2))))

    def grouped(self, query: Query, by: tuple[str, ...], values: tuple[str, ...], *, ours: bool) -> Group:
        functions = [
            (f"f{n}", self.choose.choice(["sum", "min", "max"]), self.choose.choice(values)) for n in (1, 2)
        ]
        return Group(query, by, (("n", "count", values[0]), *functions), ours)

    def shown(self, query: Query, key: tuple[str, ...], names: tuple[str, ...]) -> View:
        """A last select over numbers; at times with a filter of counts before it."""
        if isinstance(query, Group) and self.choose.random() < 1 / 3:
            query = Where(query, Compare(">=", Field("n"), Number(2)))
        made = [(f"s{n}", self.expression(names)) for n in (1, 2)]
        return View(Select(query, (*((name, Field(name)) for name in key), *made)), key)


GROUPED = ("n", "f1", "f2")


def _plain(make: _Making) -> View:
    return make.shown(make.filtered("users"), ("id",), ("age", "score"))


def _group(make: _Making) -> View:
    return make.shown(make.grouped(make.keyed("users"), ("k",), ("v1", "v2"), ours=True), ("k",), GROUPED)


def _joined(make: _Making, left: str) -> Join:
    one = make.selected(make.filtered(left), left, "l", on="user", key="id")
    return Join(one, make.selected(make.filtered("users"), "users", "r", on="id"))


def _join(make: _Making) -> View:
    return make.shown(_joined(make, "orders"), ("l_key",), ("l1", "l2", "r1", "r2"))


def _stream_join(make: _Making) -> View:
    return make.shown(_joined(make, "clicks"), ("l_key",), ("l1", "l2", "r1", "r2"))


def _join_group(make: _Making) -> View:
    rows = Select(_joined(make, "orders"), (("k", Field("on")), ("v1", Field("l1")), ("v2", Field("r1"))))
    return make.shown(make.grouped(rows, ("k",), ("v1", "v2"), ours=True), ("k",), GROUPED)


def _stream(make: _Making) -> View:
    return make.shown(make.filtered("clicks"), ("id",), ("n", "m", "user"))


def _aggregate(make: _Making) -> View:
    return make.shown(make.grouped(make.keyed("clicks"), ("k",), ("v1", "v2"), ours=False), ("k",), GROUPED)


def _stream_group(make: _Making) -> View:
    return make.shown(make.grouped(make.keyed("clicks"), ("k",), ("v1", "v2"), ours=True), ("k",), GROUPED)


def _words(make: _Making, topic: str, *, ours: bool) -> View:
    rows = Explode(make.filtered(topic), make.choose.choice([" ", ","]))
    values = [(f"v{n}", make.expression(NUMBERS[topic])) for n in (1, 2)]
    made = make.grouped(Select(rows, (("k", Field("word")), *values)), ("k",), ("v1", "v2"), ours=ours)
    return replace(make.shown(made, ("k",), GROUPED), texts=True)


def _both(make: _Making, *topics: str, ours: bool) -> View:
    rows = Union(*(make.keyed(topic) for topic in topics))
    return make.shown(make.grouped(rows, ("k",), ("v1", "v2"), ours=ours), ("k",), GROUPED)


FORMS: tuple[Callable[[_Making], View], ...] = (
    _plain,
    _group,
    _join,
    _stream_join,
    _join_group,
    _stream,
    _aggregate,
    _stream_group,
    lambda make: _words(make, "users", ours=True),
    lambda make: _words(make, "clicks", ours=False),
    lambda make: _both(make, "clicks", "seens", ours=False),
    lambda make: _both(make, "users", "orders", ours=True),
    lambda make: _both(make, "users", "clicks", ours=True),
)


# ---- changes -------------------------------------------------------------------------------------------

Change = tuple[str, Any, Any]
"""What is changed, what is there then, and for filters of streams what is there in both eras."""


def pair(seed: int) -> Pair:
    """A view, and one of the changes that can be made in it."""
    choose = random.Random(f"pair {seed}")
    view = FORMS[seed % len(FORMS)](_Making(choose))
    found = [*_changes(view.query), *_last(view)]
    by_kind: dict[str, list[Change]] = {}
    for each in found:
        by_kind.setdefault(each[0], []).append(each)
    kind, query, mixed = choose.choice(by_kind[choose.choice(sorted(by_kind))])
    rules = {"a filter of a stream": "mixed", "a filter of counts of a stream": "shown", "shown": "shown"}
    new = replace(view, query=query)
    return Pair(
        kind, view, new, rules.get(kind, "new"), replace(view, query=mixed) if mixed is not None else None
    )


def _last(view: View) -> Iterator[Change]:
    """What is only shown, and the key."""
    top = view.query
    assert isinstance(top, Select)
    for n, (name, each) in enumerate(top.columns):
        if name in view.key and isinstance(each, Field) and view.texts:
            continue
        for _, changed in _other(each):
            columns = (*top.columns[:n], (name, changed), *top.columns[n + 1 :])
            yield "the key" if name in view.key else "shown", replace(top, columns=columns), None


def _changes(query: Query, *, top: bool = True) -> Iterator[Change]:
    """Every change of a query below its last select."""
    match query:
        case Source():
            table = query.name in TABLES
            condition = Compare(">=", Field("id"), Number(6 if table else 106))
            kind = "a filter of a table" if table else "a filter of a stream"
            yield kind, Where(query, condition), None if table else Mixed(query, None, condition)
        case Where():
            yield from _filters(query)
            yield from _inside(query, "of")
        case Select():
            yield "nothing: a select in two steps", replace(query, steps=3 - query.steps), None
            yield from () if top else _columns(query)
            yield from _inside(query, "of")
        case Explode():
            yield "what explode makes", replace(query, separator="," if query.separator == " " else " "), None
            yield from _inside(query, "of")
        case Union() | Join():
            yield from _swapped(query)
            yield from _inside(query, "left")
            yield from _inside(query, "right")
        case Group():
            yield from _groups(query)
            yield from _inside(query, "of")


def _columns(query: Select) -> Iterator[Change]:
    for n, (name, each) in enumerate(query.columns):
        for kind, changed in _other(each):
            columns = (*query.columns[:n], (name, changed), *query.columns[n + 1 :])
            yield kind, replace(query, columns=columns), None


def _swapped(query: Union | Join) -> Iterator[Change]:
    if isinstance(query, Union):
        yield "the order of a union", Union(query.right, query.left), None


def _inside(query: Any, name: str) -> Iterator[Change]:
    for kind, changed, mixed in _changes(getattr(query, name), top=False):
        both = replace(query, **{name: mixed}) if mixed is not None else None
        yield kind, replace(query, **{name: changed}), both


def _filters(query: Where) -> Iterator[Change]:
    right = query.condition.right
    assert isinstance(right, Number)
    of = query.of
    counts = isinstance(of, Group)
    if weighted(of):
        kind = "a filter of counts of a table" if counts else "a filter of a table"
    else:
        kind = "a filter of counts of a stream" if counts else "a filter of a stream"
    for condition in (
        replace(query.condition, right=Number(right.number + (1 if counts else 5))),
        replace(query.condition, sign="<" if query.condition.sign == ">=" else ">="),
        None,
    ):
        plain = not weighted(of) and not counts
        mixed = Mixed(of, query.condition, condition) if plain else None
        yield kind, Where(of, condition) if condition is not None else of, mixed
    if isinstance(of, Where):
        yield "nothing: the order of filters", Where(Where(of.of, query.condition), of.condition), None


def _groups(query: Group) -> Iterator[Change]:
    first, one, two = query.aggregates
    if one[1:] != two[1:]:
        yield "the order of aggregates", replace(query, aggregates=(first, two, one)), None
    for other in ("sum", "min", "max"):
        if other != one[1]:
            yield "an aggregate", replace(query, aggregates=(first, (one[0], other, one[2]), two)), None
    column = "v2" if two[2] == "v1" else "v1"
    yield "what is aggregated", replace(query, aggregates=(first, one, (two[0], two[1], column))), None


def _other(each: Expression) -> Iterator[tuple[str, Expression]]:
    """Every change of an expression."""
    match each:
        case Field() if each.name != "word":
            yield "a column", Binary("+", each, Number(1))
        case Number():
            yield "a number", Number(each.number + 1)
        case Binary():
            if each.sign != "%":
                yield "a sign", replace(each, sign="*" if each.sign == "+" else "+")
            yield from ((kind, replace(each, left=changed)) for kind, changed in _other(each.left))
            yield from ((kind, replace(each, right=changed)) for kind, changed in _other(each.right))
        case Code():
            yield "the code of a function", replace(each, number=each.number + 1)
            yield from ((kind, replace(each, of=changed)) for kind, changed in _other(each.of))
        case Lambda():
            yield "the code of a lambda", replace(each, number=each.number + 1)
            yield from ((kind, replace(each, of=changed)) for kind, changed in _other(each.of))
