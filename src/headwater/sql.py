"""Which tables a SQL query reads: enough of the grammar to draw and check a graph without Spark."""

import re
from collections.abc import Iterator

__all__ = ["tables"]

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


def tables(query: str) -> list[str]:
    """The names after FROM and JOIN, without the query's own common table expressions, in order, each once."""
    tokens = list(_tokens(query))
    own = {
        name.lower()
        for (name, _), (word, _), (mark, _) in _triples(tokens)
        if word.lower() == "as" and mark == "("
    }
    found = [name for name in _sources(tokens) if name.lower() not in own]
    return list(dict.fromkeys(found))


def _tokens(query: str) -> Iterator[tuple[str, bool]]:
    """Words, names in backticks (flagged) and marks; comments and texts are left out."""
    for match in TOKEN.finditer(query):
        if match["quoted"]:
            yield match["quoted"], True
        elif match["word"] or match["mark"]:
            yield match["word"] or match["mark"], False


def _triples(tokens: list[tuple[str, bool]]) -> Iterator[tuple[tuple[str, bool], ...]]:
    return zip(tokens, tokens[1:], tokens[2:], strict=False)


def _sources(tokens: list[tuple[str, bool]]) -> Iterator[str]:
    """Walks the query; inside a FROM list a name follows FROM, JOIN or a comma at the same depth."""
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
