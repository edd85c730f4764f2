"""The tables that a SQL query reads: enough of the grammar to draw and check a graph without Spark.

An operator of Headwater is called in a FROM as a function of one stream, or of two, with named arguments:

    SELECT user, n FROM sessions(clicks, key => 'user', time => 'at', gap => '30 minutes', n => 'count(*)')
    SELECT query FROM unmatched(searches, clicks, on => 'search_id', time => 'at', after => '10 minutes')

A table may be read as of the time of an event:

    SELECT o.id, r.percent FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.region = r.region
"""

import re
from collections.abc import Collection, Iterator
from itertools import chain, pairwise
from typing import NamedTuple

from headwater.errors import UsageError

__all__ = ["AS_OF", "Call", "Travel", "expanded", "tables", "travels"]

TOKEN = re.compile(
    r"""
      --[^\n]* | /\*.*?\*/                      # comments
    | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*"  # text
    | `(?P<quoted>[^`]+)`
    | (?P<word>[A-Za-z_][\w.]*)
    | (?P<mark>[(),;])
    """,
    re.VERBOSE | re.DOTALL,
)
OPENING = re.compile(
    r"""
      --[^\n]* | /\*.*?\*/ | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*"  # passed over
    | \b(?:from|join)\s+(?P<operator>[A-Za-z_]\w*)\s*\(\s*(?P<stream>[A-Za-z_][\w.]*|`[^`]+`)\s*(?=[,)])
      (?:,\s*(?P<other>[A-Za-z_][\w.]*|`[^`]+`)\s*(?=[,)]))?
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
ARGUMENT = re.compile(r"\s*,\s*(?P<name>[A-Za-z_]\w*)\s*=>\s*'(?P<text>(?:[^'\\]|'')*)'")
CLOSING = re.compile(r"\s*\)")
TRAVEL = re.compile(
    r"""
      --[^\n]* | /\*.*?\*/ | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.)*"  # passed over
    | (?P<table>[A-Za-z_][\w.]*|`[^`]+`)\s+
      (?:for\s+)?(?P<by>system_time|timestamp|system_version|version)\s+as\s+of\s+
      (?P<time>(?:(?:[A-Za-z_]\w*|`[^`]+`)\.)*(?:[A-Za-z_]\w*|`[^`]+`))?(?P<more>\s*[^\w\s`,);])?
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
AS_OF = "JOIN table FOR SYSTEM_TIME AS OF stream.time AS name ON …"
FUNCTIONS = {"extract", "trim", "substring", "overlay"}
"""Functions whose arguments are separated by FROM."""
ENDS = {
    "where",
    "group",
    "order",
    "having",
    "limit",
    "union",
    "except",
    "intersect",
    "select",
    "window",
    "lateral",
    "on",
    "using",
}


class Call(NamedTuple):
    """An operator in a query: the name that replaces it, its inputs and its arguments."""

    name: str
    operator: str
    streams: tuple[str, ...]
    arguments: dict[str, str]


class Travel(NamedTuple):
    """A table as of a time in a query: the name that replaces it, the table, and the column with the time."""

    name: str
    table: str
    time: str


def travels(what: str, query: str) -> tuple[str, list[Travel]]:
    """The query with a name in place of each table as of a time, and these tables.

    UsageError, naming ``what``, for a wrong one.
    """
    as_of_clauses: list[Travel] = []
    text, at = "", 0
    for match in TRAVEL.finditer(query):
        if match["table"] is None:
            continue
        if not match["time"] or match["more"] or match["by"].lower().endswith("version"):
            got = " ".join(query[match.start() : match.end() + 20].split())
            raise UsageError(
                f"{what}: AS OF takes the event time of a stream, as a column", got=got, expected=AS_OF
            )
        table = match["table"].strip("`")
        as_of_clauses.append(
            Travel(f"{table.replace('.', '_')}__as_of_{len(as_of_clauses) + 1}", table, match["time"])
        )
        text += query[at : match.start()] + f"`{as_of_clauses[-1].name}`"
        at = match.end()
    return text + query[at:], as_of_clauses


def expanded(query: str, operators: Collection[str]) -> tuple[str, list[Call]]:
    """The query with a name in place of each call of an operator, and the calls.

    UsageError for a wrong one.
    """
    calls: list[Call] = []
    text, at = "", 0
    for opening in OPENING.finditer(query):
        operator = opening["operator"]
        if operator is None or operator.lower() not in operators or opening.start() < at:
            continue
        arguments: dict[str, str] = {}
        end = opening.end()
        while argument := ARGUMENT.match(query, end):
            arguments[argument["name"]] = argument["text"].replace("''", "'")
            end = argument.end()
        closing = CLOSING.match(query, end)
        if closing is None:
            raise UsageError(
                f"query: the arguments of {operator} are wrong",
                got=" ".join(query[end : end + 40].split()),
                expected=f"{operator}({opening['stream']}, name => 'text', …)",
            )
        streams = tuple(name.strip("`") for name in opening.group("stream", "other") if name)
        call = Call(f"{operator.lower()}__{len(calls) + 1}", operator.lower(), streams, arguments)
        calls.append(call)
        text += query[at : opening.start("operator")] + call.name
        at = closing.end()
    return text + query[at:], calls


def tables(query: str, operators: Collection[str] = ()) -> list[str]:
    """The names after FROM and JOIN, each once, without the query's own common table expressions."""
    text, calls = expanded(query, operators)
    streams = {call.name: call.streams for call in calls}
    tokens = list(_tokens(text))
    common_tables = set(_common_tables(tokens))
    sources = [streams.get(name, (name,)) for name in _sources(tokens) if name.lower() not in common_tables]
    return list(dict.fromkeys(chain.from_iterable(sources)))


def _tokens(query: str) -> Iterator[tuple[str, bool]]:
    """Words, names in backticks (flagged) and marks; comments and texts are left out."""
    for match in TOKEN.finditer(query):
        if match["quoted"]:
            yield match["quoted"], True
        elif match["word"] or match["mark"]:
            yield match["word"] or match["mark"], False


def _common_tables(tokens: list[tuple[str, bool]]) -> Iterator[str]:
    """The names before ``AS (``, also those with a list of columns: ``big (id, total) AS (``."""
    for index, ((word, quoted), (mark, _)) in enumerate(pairwise(tokens)):
        if quoted or word.lower() != "as" or mark != "(" or not index:
            continue
        name = index - 1
        if tokens[name] == (")", False):
            while name and tokens[name] != ("(", False):
                name -= 1
            name -= 1
        yield tokens[name][0].lower()


def _sources(tokens: list[tuple[str, bool]]) -> Iterator[str]:
    """The tables and streams of a query: names after FROM, JOIN, or a comma of the same FROM list."""
    frames: list[list[str | bool]] = [["", False]]
    before = ""
    expect = False
    for token, quoted in tokens:
        word = "" if quoted else token.lower()
        if word == "(":
            frames.append([before, False])
            expect = False
        elif word == ")":
            if len(frames) > 1:
                frames.pop()
            expect = False
        elif word == "from":
            expect = frames[-1][0] not in FUNCTIONS and before != "distinct"
            frames[-1][1] = expect
        elif word == "join" or (word == "," and frames[-1][1]):
            expect = True
        elif word in ENDS and not quoted:
            frames[-1][1] = expect = False
        elif expect and word not in {"lateral", "stream"}:
            yield token
            expect = False
        before = word
