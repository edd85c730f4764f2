"""Tables with every type, and values that are seldom tried."""

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import headwater as hw

__all__ = [
    "BEGIN",
    "STREAMS",
    "TABLES",
    "Click",
    "Hit",
    "Inner",
    "Land",
    "Order",
    "Rate",
    "User",
    "event",
    "row",
]


class Inner(hw.Event):
    a: int | None
    b: str | None


class User(hw.Row):
    id: int
    name: str | None
    land: str | None
    age: int | None
    score: hw.AnyFloat | None
    balance: Decimal | None
    born: date | None
    seen: datetime | None
    active: bool | None
    tags: list[str] | None
    inner: Inner | None
    raw: bytes | None


class Order(hw.Row):
    code: str
    user: int | None
    item: str | None
    cents: int | None
    weight: hw.AnyFloat | None
    price: Decimal | None
    due: date | None
    at: datetime | None
    paid: bool | None


class Land(hw.Row):
    land: str
    part: int
    name: str | None
    rate: hw.AnyFloat | None


class Rate(hw.Row):
    land: str
    since: datetime
    percent: int | None


class Click(hw.Event):
    id: int
    user: int | None
    item: str | None
    n: int | None
    w: hw.AnyFloat | None
    at: datetime | None


class Hit(hw.Event):
    hit: int
    who: int | None
    page: str | None
    m: int | None
    seen_at: datetime | None


TABLES: dict[str, tuple[type[hw.Event], tuple[str, ...]]] = {
    "users": (User, ("id",)),
    "orders": (Order, ("code",)),
    "lands": (Land, ("land", "part")),
    "rates": (Rate, ("land", "since")),
}
STREAMS: dict[str, tuple[type[hw.Event], str, str]] = {
    "clicks": (Click, "id", "at"),
    "hits": (Hit, "hit", "seen_at"),
}
"""Their key and their time."""
BEGIN = datetime(2026, 1, 5, 9, tzinfo=UTC)
TEXTS = ["", "a", "b", "A", "a, b", "[null]", '["a"]', "null", "ä", "ä", "z\u0000y", "\u2028", "😀", "O'Hara", 'say "x"', "back\\slash", "%", " a ", "x" * 300]  # fmt: skip
WHOLE = [0, 1, 2, 3, -1, 7, 40, 10**12, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, -0.0, 1.5, -1.5, 0.25, 1e300, math.inf, -math.inf, math.nan, 3.0]
DECIMALS = ["0", "1", "1.5", "-1.50", "99999999999999999999999999999.999999999", "0.000000001", "-0.1"]
DATES = [date(2026, 1, 5), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(1582, 10, 15)]  # fmt: skip
TIMES = [BEGIN, BEGIN + timedelta(microseconds=1), datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]  # fmt: skip
LISTS = [[], ["a"], ["a", "b"], ["a, b"], ["b", "a"], [""], ["[null]"]]
RAW = [b"", b"\x00", b"\xff\xfe", b"abc"]


def row(table: str, key: tuple[Any, ...], choose: random.Random) -> hw.Event:
    """A row of a table with a key."""

    def some(values: list[Any]) -> Any:
        return None if choose.random() < 0.2 else choose.choice(values)

    if table == "rates":
        return Rate(*key, some([0, 7, 16, 19]))
    few = TEXTS[:8] if choose.random() < 0.7 else TEXTS
    if table == "lands":
        return Land(*key, some(few), some(DOUBLES))
    if table == "orders":
        price = some(DECIMALS)
        return Order(
            *key,
            some([0, 1, 2, 3, 4]),
            some(few),
            some(WHOLE[:8]),
            some(DOUBLES),
            price if price is None else Decimal(price),
            some(DATES),
            some(TIMES),
            some([True, False]),
        )
    balance = some(DECIMALS)
    inner = some([Inner(1, "a"), Inner(1, None), Inner(None, "a"), Inner(None, None), Inner(2, "a, b")])
    return User(
        *key,
        some(few),
        some(TEXTS[:6]),
        some(WHOLE),
        some(DOUBLES),
        balance if balance is None else Decimal(balance),
        some(DATES),
        some(TIMES),
        some([True, False]),
        some(LISTS),
        inner,
        some(RAW),
    )


def event(stream: str, number: int, at: datetime, choose: random.Random) -> hw.Event:
    """An event of a stream; a few have no time, no user or no text."""
    when = None if choose.random() < 0.05 else at
    user = choose.choice([None, 0, 1, 2, 3])
    text = choose.choice([None, *TEXTS[:6]])
    some = choose.choice([None, -5, 0, 1, 2, 3, 10**12])
    if stream == "hits":
        return Hit(number, user, text, some, when)
    return Click(number, user, text, some, choose.choice([None, -2.5, 0.0, 0.25, 1.5, math.inf]), when)
