"""Condition: which rows of a table are meant, as comparisons of its columns with values; it is read here and written again for the database.

    day >= current_date AND (kind IN ('a', 'b') OR note IS NULL)

    condition   all [OR all …]          all    one [AND one …]
    one         NOT one | ( condition ) | TRUE | FALSE
                | column = <> != < <= > >= value | column [NOT] IN ( value, … ) | column [NOT] BETWEEN value AND value
                | column [NOT] LIKE value | column IS [NOT] NULL
    value       'text' (a quote in it is doubled), a number, a column, CURRENT_DATE, CURRENT_TIMESTAMP, TRUE, FALSE

It comes from a topic. Whoever may write there may choose rows, and nothing else: as SQL it could read other tables, or call functions of the server.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from headwater.errors import CaptureError

__all__ = ["Condition"]

TOKEN = re.compile(
    r"""\s*(?: (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`) | (?P<number>-?\d+(?:\.\d+)?(?![\w.]))
        | (?P<word>[^\W\d]\w*) | (?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,) )""",
    re.VERBOSE | re.ASCII,
)
COMPARED = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
CONSTANTS = frozenset({"CURRENT_DATE", "CURRENT_TIMESTAMP", "TRUE", "FALSE"})
WORDS = CONSTANTS | {"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL"}
CHARACTERS_MAX = 10_000
DEPTH_MAX = 50


class _Token(NamedTuple):
    kind: str
    """text, number, column, word (in capitals) or sign."""
    text: str


class Condition:
    """A condition of one table; CaptureError for what is none."""

    def __init__(self, text: str) -> None:
        self._shown = text
        self._tokens = self._cut(text)
        self._at = self._depth = 0
        self._any()
        if self._at < len(self._tokens):
            raise self._wrong()

    def sql(self, column: Callable[[str], str], literal: Callable[[str], str]) -> str:
        """The condition in the words of a database, which writes names and texts in its own way."""
        written = {"column": column, "text": literal}
        return " ".join(written.get(kind, str)(text) for kind, text in self._tokens)

    def _cut(self, text: str) -> list[_Token]:
        found, at, end = list[_Token](), 0, len(text.rstrip())
        if end > CHARACTERS_MAX:
            raise CaptureError("the condition is too long", expected=f"{CHARACTERS_MAX} characters")
        while at < end:
            token = TOKEN.match(text, at)
            if token is None:
                raise CaptureError(
                    "the condition is not understood",
                    got=text[at:].strip()[:40],
                    expected="comparisons of columns with values, as docs/capture.md has them",
                )
            found.append(_token(token.lastgroup or "", token[token.lastgroup or 0]))
            at = token.end()
        return found

    def _next(self, *wanted: str) -> bool:
        """Whether one of these words or signs comes next; it is passed."""
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind in {"word", "sign"} and text in wanted:
                self._at += 1
                return True
        return False

    def _must(self, wanted: str) -> None:
        if not self._next(wanted):
            raise self._wrong(wanted)

    def _any(self) -> None:
        self._all()
        while self._next("OR"):
            self._all()

    def _all(self) -> None:
        self._one()
        while self._next("AND"):
            self._one()

    def _one(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise CaptureError("the condition has too many levels", expected=str(DEPTH_MAX))
        if self._next("NOT"):
            self._one()
        elif self._next("("):
            self._any()
            self._must(")")
        elif not self._next("TRUE", "FALSE"):
            self._comparison()
        self._depth -= 1

    def _comparison(self) -> None:
        self._take("column")
        if self._next(*COMPARED):
            self._value()
        elif self._next("IS"):
            self._next("NOT")
            self._must("NULL")
        else:
            self._next("NOT")
            if self._next("IN"):
                self._must("(")
                self._value()
                while self._next(","):
                    self._value()
                self._must(")")
            elif self._next("BETWEEN"):
                self._value()
                self._must("AND")
                self._value()
            else:
                self._must("LIKE")
                self._value()

    def _value(self) -> None:
        if not self._next(*CONSTANTS):
            self._take("text", "number", "column")

    def _take(self, *kinds: str) -> None:
        if self._at == len(self._tokens) or self._tokens[self._at].kind not in kinds:
            raise self._wrong(" or ".join(kinds))
        self._at += 1

    def _wrong(self, wanted: str = "its end") -> CaptureError:
        there = self._tokens[self._at].text if self._at < len(self._tokens) else "its end"
        return CaptureError(
            "the condition is not understood",
            got=f"{there!r} in {self._shown[:200]!r}",
            expected=f"{wanted}; docs/capture.md has what a condition may be",
        )


def _token(kind: str, text: str) -> _Token:
    if kind == "text":
        return _Token("text", text[1:-1].replace("''", "'"))
    if kind == "quoted":
        return _Token("column", text[1:-1].replace(text[0] * 2, text[0]))
    if kind == "word":
        return _Token("word", text.upper()) if text.upper() in WORDS else _Token("column", text)
    return _Token(kind, text)
