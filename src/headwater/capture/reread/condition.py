"""Condition: a selection of a table's rows by comparisons of columns with values, parsed and written as SQL.

    day >= current_date AND (kind IN ('a', 'b') OR note IS NULL)

    condition     conjunction [OR conjunction …]
    conjunction   term [AND term …]
    term          NOT term | ( condition ) | TRUE | FALSE
                  | column = <> != < <= > >= value | column [NOT] IN ( value, … )
                  | column [NOT] BETWEEN value AND value | column [NOT] LIKE value | column IS [NOT] NULL
    value         'text' (a quote in it is doubled), a number, a column,
                  CURRENT_DATE, CURRENT_TIMESTAMP, TRUE, FALSE

A condition comes from a topic. A user who may write there may select rows and nothing else: arbitrary SQL
could read other tables, or call functions of the server.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from headwater.errors import CaptureError

__all__ = ["Condition"]

TOKEN = re.compile(
    r"""\s*(?: (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
        | (?P<number>-?\d+(?:\.\d+)?(?![\w.])) | (?P<word>[^\W\d]\w*)
        | (?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,) )""",
    re.VERBOSE | re.ASCII,
)
COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})
CONSTANTS = frozenset({"CURRENT_DATE", "CURRENT_TIMESTAMP", "TRUE", "FALSE"})
WORDS = CONSTANTS | {"AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL"}
CHARACTERS_MAX = 10_000
DEPTH_MAX = 50


class _Token(NamedTuple):
    kind: str
    """text, number, column, word (in capitals) or sign."""
    text: str


class Condition:
    """A condition of one table; CaptureError if the text is not a condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenize(text)
        self._at = self._depth = 0
        self._condition()
        if self._at < len(self._tokens):
            raise self._error()

    def sql(self, column: Callable[[str], str], literal: Callable[[str], str]) -> str:
        """The condition as SQL, with functions that write names and texts for the database."""
        writers = {"column": column, "text": literal}
        return " ".join(writers.get(kind, str)(text) for kind, text in self._tokens)

    def _tokenize(self, text: str) -> list[_Token]:
        tokens, at, end = list[_Token](), 0, len(text.rstrip())
        if end > CHARACTERS_MAX:
            raise CaptureError("the condition is too long", expected=f"{CHARACTERS_MAX} characters")
        while at < end:
            token = TOKEN.match(text, at)
            if token is None:
                raise CaptureError(
                    "the condition is not understood",
                    got=text[at:].strip()[:40],
                    expected="comparisons of columns with values, see docs/capture.md",
                )
            tokens.append(_token(token.lastgroup or "", token[token.lastgroup or 0]))
            at = token.end()
        return tokens

    def _accept(self, *words: str) -> bool:
        """Whether the next token is one of these words or signs; skips it if so."""
        if self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            if kind in {"word", "sign"} and text in words:
                self._at += 1
                return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._error(word)

    def _condition(self) -> None:
        self._conjunction()
        while self._accept("OR"):
            self._conjunction()

    def _conjunction(self) -> None:
        self._term()
        while self._accept("AND"):
            self._term()

    def _term(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise CaptureError("the condition has too many levels", expected=str(DEPTH_MAX))
        if self._accept("NOT"):
            self._term()
        elif self._accept("("):
            self._condition()
            self._expect(")")
        elif not self._accept("TRUE", "FALSE"):
            self._comparison()
        self._depth -= 1

    def _comparison(self) -> None:
        self._expect_kind("column")
        if self._accept(*COMPARISONS):
            self._value()
        elif self._accept("IS"):
            self._accept("NOT")
            self._expect("NULL")
        else:
            self._accept("NOT")
            if self._accept("IN"):
                self._expect("(")
                self._value()
                while self._accept(","):
                    self._value()
                self._expect(")")
            elif self._accept("BETWEEN"):
                self._value()
                self._expect("AND")
                self._value()
            else:
                self._expect("LIKE")
                self._value()

    def _value(self) -> None:
        if not self._accept(*CONSTANTS):
            self._expect_kind("text", "number", "column")

    def _expect_kind(self, *kinds: str) -> None:
        if self._at == len(self._tokens) or self._tokens[self._at].kind not in kinds:
            raise self._error(" or ".join(kinds))
        self._at += 1

    def _error(self, expected: str = "its end") -> CaptureError:
        token = self._tokens[self._at].text if self._at < len(self._tokens) else "its end"
        return CaptureError(
            "the condition is not understood",
            got=f"{token!r} in {self._text[:200]!r}",
            expected=f"{expected}; see docs/capture.md",
        )


def _token(kind: str, text: str) -> _Token:
    if kind == "text":
        return _Token("text", text[1:-1].replace("''", "'"))
    if kind == "quoted":
        return _Token("column", text[1:-1].replace(text[0] * 2, text[0]))
    if kind == "word":
        return _Token("word", text.upper()) if text.upper() in WORDS else _Token("column", text)
    return _Token(kind, text)
