"""The outline of a SQL query: its result columns, its sources and its functions, without Spark.

It knows enough of the grammar to be sure of what it says, and says nothing of the rest.
"""

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import NamedTuple

from headwater.declare.sql_scan import COMMENT, CONDITIONS, ENDS, FUNCTIONS, QUERIES, QUOTED, TEXT, WORD
from headwater.errors import UsageError

__all__ = ["AGGREGATES", "PAIRS", "WORDS", "Item", "Outline", "Source", "Token", "place"]

TOKEN = re.compile(
    rf"""
      (?P<skip>\s+|{COMMENT})
    | (?P<text>{TEXT})
    | {QUOTED}
    | {WORD}
    | (?P<number>\d[\w.]*)
    | (?P<mark>\|>|->|.)
    """,
    re.VERBOSE | re.DOTALL,
)
PAIRS = {"(": ")", "[": "]"}
ADDING = {"identifier", "lateral", "pivot", "unpivot", "match_recognize", "table"}
"""Words with which a query may have columns that are not those of its tables."""
SHOWN_CHARACTERS = 40
AGGREGATES = frozenset(
    {"any_value", "approx_count_distinct", "approx_percentile", "avg", "bool_and", "bool_or", "collect_list"}
    | {"collect_set", "count", "count_if", "every", "first", "first_value", "last", "last_value", "max"}
    | {"max_by", "mean", "median", "min", "min_by", "percentile", "some", "stddev", "sum", "variance"}
)
WORDS = (ENDS - {"window"}) | {
    *("all", "and", "anti", "any", "as", "asc", "between", "by", "case", "cross", "desc", "distinct", "else"),
    *(
        "exists",
        "false",
        "for",
        "from",
        "full",
        "if",
        "ilike",
        "in",
        "inner",
        "interval",
        "into",
        "is",
        "join",
    ),
    *("left", "like", "minus", "natural", "not", "null", "of", "or", "outer", "over", "partition", "regexp"),
    *("right", "rlike", "rows", "semi", "set", "tablesample", "then", "true", "values", "when", "with"),
}
"""Words that are neither an alias nor a column where they follow an expression or a table."""
INFIX = {"collate", "div", "ignore", "respect", "to", "zone"}
"""Words after which another one belongs to the expression, and is not its alias."""
UNITS = frozenset(
    unit + plural
    for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
    for plural in ("", "s")
) | {"microsecond", "microseconds"}
COMBINING = {"union", "except", "intersect", "minus"}
"""Words between two queries."""


class Token(NamedTuple):
    """One token: its kind, its text without quotes, where it begins, and how many brackets are around it."""

    kind: str
    text: str
    at: int
    depth: int

    @property
    def lower(self) -> str:
        """A word in small letters; empty for anything else."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def is_name(self) -> bool:
        return self.kind == "quoted" or (self.kind == "word" and self.lower not in WORDS)


class Item(NamedTuple):
    """One expression of a SELECT or GROUP BY; ``name`` is empty if Spark makes a name of it."""

    name: str
    tokens: tuple[Token, ...]

    @property
    def column(self) -> tuple[str, str] | None:
        """Its table and column, if it is nothing but a column."""
        names = [token for token in self.tokens if token.is_name]
        dots = [token for token in self.tokens if token.text == "."]
        if len(names) + len(dots) != len(self.tokens) or len(names) != len(dots) + 1 or len(names) > 2:
            return None
        return (names[0].text, names[1].text) if dots else ("", names[0].text)

    @property
    def is_star(self) -> bool:
        return bool(self.tokens) and self.tokens[-1].text == "*"

    @property
    def call(self) -> str:
        """The function, if the expression is nothing but its call."""
        tokens = self.tokens
        is_call = len(tokens) > 2 and tokens[0].kind == "word" and tokens[1].text == "("
        inner = tokens[1:-1] if is_call else ()
        return (
            tokens[0].lower
            if inner and min(each.depth for each in inner[1:] or inner) > tokens[0].depth
            else ""
        )


class Source(NamedTuple):
    """A table in a FROM, and its name in the query; ``name`` is empty for a subquery and an operator."""

    name: str
    alias: str
    depth: int
    block: int = 0
    """Which query it belongs to, of those in brackets."""


def place(query: str, at: int) -> str:
    """A place in a query for a person: what is written there, and where that is."""
    line, column = query.count("\n", 0, at) + 1, at - (query.rfind("\n", 0, at) + 1) + 1
    text = " ".join(query[at : at + SHOWN_CHARACTERS].split()) or "the end"
    where = f"line {line}, column {column}" if "\n" in query.strip() else f"column {column}"
    return f"{text!r} at {where} of the query"


class Outline:
    """The outline of one query. UsageError, naming ``what``, for brackets and quotes that do not close."""

    def __init__(self, what: str, query: str, operators: Collection[str] = ()) -> None:
        self.query = query
        self.operators = operators
        self.tokens = _tokens(what, query)

    @cached_property
    def blocks(self) -> list[int]:
        """The query of each token: the place of the bracket around it, 0 for the outer query."""
        opened, blocks = [0], []
        for index, token in enumerate(self.tokens):
            if token.kind == "mark" and token.text == ")":
                opened.pop()
            blocks.append(opened[-1])
            if token.kind == "mark" and token.text == "(":
                is_query = index + 1 < len(self.tokens) and self.tokens[index + 1].lower in QUERIES
                opened.append(index if is_query else opened[-1])
        return blocks

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is one SELECT, so that a column is one of its tables', or a name that it gives."""
        begins = self.tokens[0].lower if self.tokens else ""
        selects = [token for token in self.tokens if token.depth == 0 and token.lower == "select"]
        return begins == "select" and len(selects) == 1 and not self.is_combined and not self.adds

    @cached_property
    def is_piped(self) -> bool:
        """Whether its result is that of steps like ``|> EXTEND``."""
        return any(token.kind == "mark" and token.text == "|>" for token in self.tokens)

    @cached_property
    def is_combined(self) -> bool:
        """Whether it is several queries, like those of a UNION."""
        return any(token.depth == 0 for token in self.combining())

    @cached_property
    def adds(self) -> bool:
        """Whether its tables may have columns that their declarations do not show."""
        return self.is_piped or not ADDING.isdisjoint(token.lower for token in self.tokens)

    @cached_property
    def bound(self) -> set[str]:
        """The parameters of lambdas, like ``p -> p.price`` or ``(k, v) -> v``, in small letters."""
        names: set[str] = set()
        for index, token in enumerate(self.tokens):
            if token.kind == "mark" and token.text == "->" and index:
                begin = index - 1
                while begin and self.tokens[index - 1].text == ")" and self.tokens[begin].text != "(":
                    begin -= 1
                names |= {each.text.lower() for each in self.tokens[begin:index] if each.kind != "mark"}
        return names

    def combining(self) -> Iterator[Token]:
        """The words between two queries, like UNION, at any depth."""
        for index, token in enumerate(self.tokens):
            if token.lower in COMBINING and not self._leaves_out(index):
                yield token

    def _leaves_out(self, index: int) -> bool:
        """Whether an EXCEPT is that of ``* EXCEPT (column)``."""
        before, after = self.tokens[index - 1 : index], self.tokens[index + 1 : index + 2]
        return bool(before and after) and before[0].text == "*" and after[0].text == "("

    def words(self, *wanted: str) -> Iterator[Token]:
        """The tokens at which some words begin, like ``ORDER BY``, outside of brackets."""
        for index, token in enumerate(self.tokens):
            following = self.tokens[index : index + len(wanted)]
            if token.depth == 0 and tuple(each.lower for each in following) == wanted:
                yield token

    def calls(self) -> Iterator[tuple[Token, tuple[Token, ...]]]:
        """The name of each function that is called, and the next two tokens after its bracket."""
        for index, token in enumerate(self.tokens[:-1]):
            if token.kind == "word" and self.tokens[index + 1].text == "(":
                yield token, tuple(self.tokens[index + 2 : index + 4])

    def bare_words(self) -> Iterator[Token]:
        """Words that may be a function without brackets or a column: not after AS, and without a dot."""
        for index, token in enumerate(self.tokens):
            before = self.tokens[index - 1] if index else None
            after = self.tokens[index + 1] if index + 1 < len(self.tokens) else None
            called = after is not None and after.text in {".", "("}
            named = before is not None and (before.lower == "as" or before.text == ".")
            if token.kind == "word" and not called and not named:
                yield token

    @cached_property
    def items(self) -> list[Item]:
        """The expressions of the SELECT that names the columns of the result; empty if that is not known."""
        start = next((i for i, token in enumerate(self.tokens) if token.lower == "select"), None)
        first = self.tokens[0] if self.tokens else None
        if start is None or first is None or first.lower not in {"select", "with"}:
            return []
        if first.lower == "with":
            outer = (i for i, token in enumerate(self.tokens) if token.depth == 0 and token.lower == "select")
            start = next(outer, None)
            if start is None:
                return []
        return self._list(start + 1, {"from", "where", "union", "except", "intersect", "minus", "lateral"})

    @cached_property
    def grouped(self) -> list[Item]:
        """The expressions of the outer GROUP BY."""
        begins = [i for i, token in enumerate(self.tokens) if token in set(self.words("group", "by"))]
        return self._list(begins[0] + 2, (ENDS - {"window"}) | {"with"}) if len(begins) == 1 else []

    def _list(self, start: int, ends: Collection[str]) -> list[Item]:
        """The expressions between commas up to one of these words."""
        parts: list[list[Token]] = [[]]
        for index, token in enumerate(self.tokens[start:], start):
            ends_here = token.lower in ends and not self._leaves_out(index)
            if token.lower == "from" and self.tokens[index - 1].lower == "distinct":
                ends_here = False  # IS DISTINCT FROM
            if token.depth == 0 and (ends_here or token.text in {";", "|>"}):
                break
            if token.depth == 0 and token.text == "," and token.kind == "mark":
                parts.append([])
            elif not (parts == [[]] and token.lower in {"distinct", "all"}):
                parts[-1].append(token)
        return [_item(tuple(part)) for part in parts if part]

    @cached_property
    def sources(self) -> list[Source]:
        """The tables after FROM and JOIN, at any depth."""
        return list(self._sources())

    def _sources(self) -> Iterator[Source]:
        expect = {0: False}
        opened: list[str] = [""]
        before = ""
        for index, token in enumerate(self.tokens):
            word = token.lower
            if token.text == "(" and token.kind == "mark":
                if expect.get(token.depth):
                    yield Source("", self._alias(self.after(index)), token.depth)
                opened.append(before)
                expect[token.depth], expect[token.depth + 1] = False, False
            elif token.text == ")" and token.kind == "mark":
                opened.pop()
            elif word == "from":
                expect[token.depth] = opened[-1] not in FUNCTIONS and before != "distinct"
            elif word == "join" or (token.text == "," and self.in_from(index)):
                expect[token.depth] = True
            elif expect.get(token.depth) and token.is_name and word not in {"lateral", "stream"}:
                yield self._source(index)
                expect[token.depth] = False
            before = word

    def in_from(self, index: int) -> bool:
        """Whether a comma separates tables."""
        depth = self.tokens[index].depth
        for token in reversed(self.tokens[:index]):
            if token.depth < depth:
                return False
            if token.depth == depth and (token.lower in ENDS - CONDITIONS or token.text == "|>"):
                return False
            if token.depth == depth and token.lower == "from":
                return True
        return False

    def _source(self, index: int) -> Source:
        token = self.tokens[index]
        end, name = index + 1, token.text
        while end + 1 < len(self.tokens) and self.tokens[end].text == ".":
            name += f".{self.tokens[end + 1].text}"
            end += 2
        if end < len(self.tokens) and self.tokens[end].text == "(":
            return Source("", self._alias(self.after(end)), token.depth)
        travels = [each.lower for each in self.tokens[end : end + 4]]
        if travels[:1] == ["for"] or travels[1:3] == ["as", "of"]:
            return Source("", "", token.depth)
        alias = self._alias(end)
        after_alias = [each.text for each in self.tokens[end : end + 3] if each.lower != "as"][1:2]
        if alias and after_alias == ["("]:
            return Source("", alias, token.depth)  # its columns have other names
        return Source(name, alias or name, token.depth, self.blocks[index])

    def after(self, index: int) -> int:
        """The index after the bracket that closes the one at an index."""
        depth = self.tokens[index].depth
        ends = (i for i in range(index + 1, len(self.tokens)) if self.tokens[i].depth == depth)
        return next(ends, len(self.tokens) - 1) + 1

    def _alias(self, index: int) -> str:
        rest = self.tokens[index : index + 2]
        if rest and rest[0].lower == "as":
            rest = rest[1:]
        return rest[0].text if rest and rest[0].is_name and rest[0].lower not in WORDS else ""


def _item(tokens: tuple[Token, ...]) -> Item:
    last, before = tokens[-1], tokens[-2] if len(tokens) > 1 else None
    if before is None:
        return Item(last.text if last.is_name else "", tokens)
    if last.is_name and before.lower == "as":
        return Item(last.text, tokens[:-2])
    unit = last.lower in UNITS and "interval" in {token.lower for token in tokens}
    if unit or before.lower in INFIX:
        return Item("", tokens)
    ends_expression = (
        before.text == ")" or before.kind in {"quoted", "text", "number"} or before.lower == "end"
    )
    if last.is_name and (ends_expression or (before.kind == "word" and before.lower not in WORDS)):
        return Item(last.text, tokens[:-1])
    item = Item("", tokens)
    if item.column is not None:
        return Item(item.column[1], tokens)
    return Item(item.call, tokens) if item.call in {"window", "session_window"} else item


def _tokens(what: str, query: str) -> tuple[Token, ...]:
    tokens: list[Token] = []
    opened: list[tuple[str, int]] = []
    for match in TOKEN.finditer(query):
        kind, text, at = match.lastgroup or "", match[match.lastgroup or 0], match.start()
        if kind == "skip":
            continue
        if kind == "text":
            text = text[text[0] in "rR" :][1:-1]
        if kind == "quoted":
            text = text.replace("``", "`")
        if kind == "mark" and text in {"'", '"', "`"}:
            raise UsageError(f"{what}: a quote in its query does not close", got=place(query, at))
        if kind == "mark" and text in PAIRS.values():
            if not opened or PAIRS[opened[-1][0]] != text:
                raise UsageError(f"{what}: a bracket in its query closes nothing", got=place(query, at))
            opened.pop()
        tokens.append(Token(kind, text, at, len(opened)))
        if kind == "mark" and text in PAIRS:
            opened.append((text, at))
    if opened:
        raise UsageError(f"{what}: a bracket in its query does not close", got=place(query, opened[-1][1]))
    return tuple(tokens)
