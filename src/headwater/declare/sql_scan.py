"""The tables that a SQL query reads: enough of the grammar to draw and check a graph without Spark.

An operator of Headwater is called in a FROM as a function of one stream, or of two, with named arguments:

    SELECT user, n FROM sessions(clicks, key => 'user', time => 'at', gap => '30 minutes', n => 'count(*)')
    SELECT query FROM unmatched(searches, clicks, on => 'search_id', time => 'at', after => '10 minutes')

A table may be read as of the time of an event:

    SELECT o.id, r.percent FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.region = r.region
"""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from headwater.errors import UsageError

__all__ = ["AS_OF", "Call", "Travel", "common_tables", "expanded", "tables", "travels"]

COMMENT = r"/\*(?:(?!/\*|\*/).)*\*/"
for _ in range(3):  # comments in comments
    COMMENT = rf"/\*(?:(?!/\*|\*/).|{COMMENT})*\*/"
COMMENT = rf"--(?:\\\n|[^\n])*|{COMMENT}"
TEXT = r"""\b[rR]'[^']*'|\b[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*\""""
QUOTED = r"`(?P<quoted>(?:[^`]|``)+)`"
WORD = r"(?P<word>[^\W\d]\w*)"
TOKEN = re.compile(
    rf"""
      {COMMENT}
    | \bidentifier\s*\(\s*'(?P<identifier>[^'\\]+)'\s*\)
    | {TEXT}
    | {QUOTED}
    | (?P<word>[^\W\d][\w.]*)
    | (?P<mark>[(),;]|\|>)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
OPENING = re.compile(
    rf"""
      {COMMENT} | {TEXT}  # passed over
    | \b(?:from|join)\s+(?P<operator>[A-Za-z_]\w*)\s*\(\s*(?P<stream>[A-Za-z_][\w.]*|`[^`]+`)\s*(?=[,)])
      (?:,\s*(?P<other>[A-Za-z_][\w.]*|`[^`]+`)\s*(?=[,)]))?
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
ARGUMENT = re.compile(
    r"""\s*,\s*(?P<name>[A-Za-z_]\w*)\s*=>\s*(?:'(?P<text>(?:[^'\\]|'')*)'|"(?P<double>(?:[^"\\]|"")*)")"""
)
CLOSING = re.compile(r"\s*\)")
TRAVEL = re.compile(
    rf"""
      {COMMENT} | {TEXT}  # passed over
    | (?P<table>[A-Za-z_][\w.]*|`[^`]+`)\s+
      (?:for\s+)?(?P<by>system_time|timestamp|system_version|version)\s+as\s+of\s+
      (?P<time>(?:(?:[A-Za-z_]\w*|`[^`]+`)\.)*(?:[A-Za-z_]\w*|`[^`]+`))?(?P<more>\s*[^\w\s`,);])?
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
AS_OF = "JOIN table FOR SYSTEM_TIME AS OF stream.time AS name ON …"
FUNCTIONS = {"extract", "trim", "substr", "substring", "overlay"}
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
CONDITIONS = {"on", "using"}
"""Those of them after which more tables may follow, with a comma."""
QUERIES = {"select", "with", "from", "values", "table"}
"""Words with which a query begins."""


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
            single, double = argument["text"], argument["double"]
            text_of = single.replace("''", "'") if single is not None else double.replace('""', '"')
            arguments[argument["name"]] = text_of
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
    """The names after FROM and JOIN, each once, without the query's own common table expressions.

    UsageError for an operator over such an expression.
    """
    text, calls = expanded(query, operators)
    of_call = {call.name: call for call in calls}
    tokens = list(_tokens(text))
    hidden = list(_common_tables(tokens))
    names: list[str] = []
    for at in _sources(tokens, operators):
        name = tokens[at].text
        for common in hidden:
            if name in of_call and common.hides(of_call[name].streams[0], at):
                raise UsageError(
                    f"query: {of_call[name].operator} takes a stream, a table or a view",
                    got=f"{of_call[name].streams[0]}, which the query defines itself",
                    hint="make it a view of its own",
                )
        if not any(common.hides(name, at) for common in hidden):
            names.extend(of_call[name].streams if name in of_call else (name,))
    return list(dict.fromkeys(names))


def common_tables(query: str) -> set[str]:
    """The names of a query's common table expressions, in small letters."""
    return {common.name for common in _common_tables(list(_tokens(query)))}


class _Token(NamedTuple):
    """A name, a word or a mark, and how many brackets are around it."""

    text: str
    quoted: bool
    depth: int

    @property
    def word(self) -> str:
        """In small letters; empty for a name in backticks."""
        return "" if self.quoted else self.text.lower()


class _CommonTable(NamedTuple):
    """A common table expression, and between which tokens its name hides a table."""

    name: str
    begin: int
    end: int

    def hides(self, name: str, at: int) -> bool:
        return name.lower() == self.name and self.begin <= at < self.end


def _tokens(query: str) -> Iterator[_Token]:
    """Words, names in backticks (flagged) and marks; comments and texts are left out."""
    depth = 0
    for match in TOKEN.finditer(query):
        if match["quoted"]:
            yield _Token(match["quoted"].replace("``", "`"), True, depth)
        elif match["identifier"]:
            yield _Token(match["identifier"].strip("`"), True, depth)
        elif match["word"] or match["mark"]:
            depth -= match["mark"] == ")"
            yield _Token(match["word"] or match["mark"], False, depth)
            depth += match["mark"] == "("


def _common_tables(tokens: list[_Token]) -> Iterator[_CommonTable]:
    """The names after WITH: ``big AS (``, also with a list of columns or without AS: ``big (id) AS (``."""
    for index, token in enumerate(tokens):
        before = tokens[index - 1].word if index else ""
        if before not in {"with", "recursive", ","} or token.text in {"(", ")"} or token.word == "recursive":
            continue
        at = index + 1
        if _texts(tokens, at)[:1] == ["("] and _texts(tokens, at)[1] not in {*QUERIES, "("}:
            at = _after(tokens, at)
        if _texts(tokens, at)[:1] == ["as"]:
            at += 1
        if _texts(tokens, at)[:1] == ["("] and _texts(tokens, at)[1] in {*QUERIES, "("}:
            end = next((i for i in range(at, len(tokens)) if tokens[i].depth < token.depth), len(tokens))
            begin = at if before == "recursive" else _after(tokens, at)
            yield _CommonTable(token.text.lower(), begin, end)


def _texts(tokens: list[_Token], at: int) -> list[str]:
    """The next two tokens, in small letters."""
    return [token.word for token in tokens[at : at + 2]] if at + 1 < len(tokens) else []


def _after(tokens: list[_Token], opening: int) -> int:
    """The index after the bracket that closes another one."""
    depth = tokens[opening].depth
    ends = (i for i in range(opening + 1, len(tokens)) if tokens[i].depth == depth)
    return next(ends, len(tokens) - 1) + 1


def _sources(tokens: list[_Token], operators: Collection[str]) -> Iterator[int]:
    """Where the tables and streams of a query are: names after FROM, JOIN, or a comma of the same FROM list.

    VALUES and a function that is not an operator are not among them.
    """
    frames: list[list[str | bool]] = [["", False]]
    before = ""
    expect = False
    for index, token in enumerate(tokens):
        word = token.word
        if word in {"(", ")"}:
            expect = False
            frames = [*frames, [before, False]] if word == "(" else frames[:-1] or frames
        elif word == "from":
            expect = frames[-1][0] not in FUNCTIONS and before != "distinct"
            frames[-1][1] = expect or bool(frames[-1][1])
        elif word == "join" or (word == "," and frames[-1][1]) or _is_table_query(tokens, index):
            expect = True
        elif word in ENDS or word == "|>":
            frames[-1][1] = word in CONDITIONS and frames[-1][1]
            expect = False
        elif expect and word not in {"lateral", "stream"}:
            called = _texts(tokens, index + 1)[:1] == ["("]
            if word != "values" and (not called or word in operators):
                yield index
            expect = False
        before = word


def _is_table_query(tokens: list[_Token], index: int) -> bool:
    """Whether a query is ``TABLE name``."""
    before = tokens[index - 1].word if index else ""
    after = tokens[index + 1].word if index + 1 < len(tokens) else ")"
    begins = before in {"", "(", "all", "distinct", "union", "except", "intersect", "minus"}
    return tokens[index].word == "table" and begins and after not in {"(", ")", ",", "from", "as"}
