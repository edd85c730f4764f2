"""Checks of a view's SQL by its text: what would be wrong whatever the records are."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise

from headwater.declare.operators import __all__ as operators
from headwater.declare.query import refusals
from headwater.declare.query.operator_checks import OperatorCall, check_call
from headwater.declare.query.shape import AGGREGATE, UNKNOWN, WINDOW, Shape, nearest
from headwater.declare.query.sql_functions import SQL_FUNCTIONS
from headwater.declare.query.sql_outline import AGGREGATES, PAIRS, WORDS, Item, Outline, Token, place
from headwater.declare.query.unstable import UNSTABLE, WITHOUT_BRACKETS, unrepeatable
from headwater.declare.spec import View
from headwater.declare.sql_scan import QUERIES, Call, common_tables, expanded
from headwater.errors import UsageError

__all__ = ["shape_of_query"]

WINDOWS = {"window", "session_window"}
BEFORE_BRACKETS = WORDS | {
    *("bernoulli", "bucket", "character", "columns", "cube", "dec", "escape", "exclude", "group"),
    *("identifier", "include"),
    *("match_recognize", "nulls", "number", "numeric", "only", "percent", "qualify", "recursive"),
    *("repeatable", "rollup", "sets", "similar", "system", "table", "unpivot", "varchar", "within"),
}
"""Words of the grammar, and types, that a bracket may follow."""
OF_THE_KEY = {"by", "device", "key"}
"""Arguments of operators that name several columns, with commas."""


def shape_of_query(view: View, inputs: Mapping[str, Shape]) -> Shape:
    """The rows of a query over inputs of these shapes. UsageError, with the place, for what is wrong."""
    return _Query(view, inputs).shape()


class _Query:
    """One query, and the shapes of its inputs by name."""

    def __init__(self, view: View, inputs: Mapping[str, Shape]) -> None:
        self.view = f"view {view.name!r}"
        self.realtime = view.latency == "realtime"
        self.key = view.key
        self.query = view.query or ""
        self.inputs = inputs
        self.table = any(shape.table for shape in inputs.values())
        self.outline = Outline(self.view, self.query)
        self.common = common_tables(self.query)
        self.aliases = {
            after.text.lower()
            for token, after in pairwise(self.outline.tokens)
            if after.is_name and (token.lower == "as" or token.is_name or token.text in PAIRS.values())
        }

    def shape(self) -> Shape:
        self._check_begin()
        self._check_order()
        self._check_functions()
        if self.realtime:
            self._check_realtime()
        self._check_operators()
        self._check_columns()
        called = any(
            token.lower in operators for token, _ in self.outline.calls() if self._follows_from(token)
        )
        return Shape(self._columns(), self.table, timed=called)

    def _at(self, token: Token) -> str:
        return place(self.query, token.at)

    def _check_begin(self) -> None:
        first = self.outline.tokens[0] if self.outline.tokens else None
        if first is not None and first.text != "(" and first.lower not in QUERIES:
            raise UsageError(f"{self.view}: its query is not one", got=self._at(first), expected="SELECT …")
        ends = [token for token in self.outline.tokens[:-1] if token.text == ";" and token.kind == "mark"]
        if ends:
            raise UsageError(f"{self.view}: its query is more than one", got=self._at(ends[0]))

    def _check_order(self) -> None:
        """Refuses what needs an order of rows."""
        steps = (
            (("order", "by"), refusals.SORT, refusals.STREAM_SORTED),
            (("sort", "by"), refusals.SORT, refusals.STREAM_SORTED),
            (("limit",), refusals.LIMIT, refusals.STREAM_LIMITED),
            (("offset",), refusals.OFFSET, refusals.STREAM_LIMITED),
        )
        for words, over_table, over_stream in steps:
            for token in self.outline.words(*words):
                if len(words) == 1 and not self._counts(token):
                    continue
                refused = over_table if self.table else over_stream
                raise refused.error(view=self.view, got=self._at(token))
        for token, _ in self.outline.calls():
            if token.lower == "over":
                refused = refusals.RANKING if self.table else refusals.STREAM_RANKED
                raise refused.error(view=self.view, got=self._at(token))

    def _counts(self, token: Token) -> bool:
        """Whether LIMIT or OFFSET has a number, and is not a column."""
        index = self.outline.tokens.index(token)
        return any(each.kind == "number" for each in self.outline.tokens[index + 1 : index + 2])

    def _check_functions(self) -> None:
        """Refuses functions with another value each time, and aggregates of distinct values."""
        over_table = refusals.PASSING if self.table else None
        for token, inside in self.outline.calls():
            name = token.lower
            if name in UNSTABLE and (name != "unix_timestamp" or (inside and inside[0].text == ")")):
                raise unrepeatable(self.view, name, self._at(token), over_table)
            if name in AGGREGATES and inside and inside[0].lower == "distinct" and not self.table:
                raise refusals.STREAM_OF_DISTINCT.error(view=self.view, got=self._at(token))
            if self._is_no_function(token):
                near = get_close_matches(name, SQL_FUNCTIONS, n=1)
                raise UsageError(
                    f"{self.view}: there is no function {token.text!r}",
                    got=self._at(token),
                    expected="a function of Spark's SQL",
                    hint=f"did you mean {near[0]!r}?" if near else "",
                )
        for token in self.outline.bare_words():
            known = self.aliases | self.outline.bound
            if token.lower in WITHOUT_BRACKETS - known and not any(
                self._may_have(shape, token.lower) for shape in self.inputs.values()
            ):
                raise unrepeatable(self.view, token.lower, self._at(token), over_table)

    def _is_no_function(self, token: Token) -> bool:
        """Whether a word before a bracket is surely called as a function, and Spark has none of that name."""
        tokens = self.outline.tokens
        index = tokens.index(token)
        before, after = tokens[index - 1 : index], tokens[self.outline.after(index + 1) :][:2]
        if token.lower in SQL_FUNCTIONS | BEFORE_BRACKETS or token.lower in operators or not before:
            return False
        if token.lower in self.common or self.outline.is_piped:
            return False
        after_mark = before[0].text in {")", ".", ":"}
        names_columns = before[0].is_name or after_mark or before[0].lower in {"as", "with"}
        defines = [each.lower or each.text for each in after] == ["as", "("]
        return not names_columns and not defines and "pivot" not in {each.lower for each in tokens}

    def _check_operators(self) -> None:
        """Refuses calls of operators with columns and durations that cannot be right."""
        for call in expanded(self.query, operators)[1]:
            inputs = [self.inputs.get(stream, Shape()) for stream in call.streams]
            arguments = {name: _argument(name, text) for name, text in call.arguments.items()}
            check_call(OperatorCall(self.view, call.operator, inputs, arguments, _shown(call)))

    def _check_realtime(self) -> None:
        for token, _ in self.outline.calls():
            if token.lower in operators and self._follows_from(token):
                raise refusals.REALTIME_OPERATOR.error(
                    view=self.view, kind=f"hw.{token.lower}", got=self._at(token)
                )
        combining = set(self.outline.combining())
        for token in self.outline.tokens:
            if token.lower == "join" or token in combining:
                raise refusals.REALTIME_STEP.error(
                    view=self.view, kind=token.text.capitalize(), got=self._at(token)
                )

    def _follows_from(self, token: Token) -> bool:
        index = self.outline.tokens.index(token)
        return index > 0 and self.outline.tokens[index - 1].lower in {"from", "join"}

    # ---- columns -------------------------------------------------------------------------------------------

    @cached_property
    def _tables(self) -> dict[str, Shape] | None:
        """The shapes of the outer tables by their names in the query, in small letters.

        None if not all are known.
        """
        outer = [source for source in self.outline.sources if source.depth == 0]
        if not outer or not self.outline.is_plain:
            return None
        if not all(source.name in self.inputs and source.name.lower() not in self.common for source in outer):
            return None
        return {source.alias.lower(): self.inputs[source.name] for source in outer}

    @cached_property
    def _given(self) -> set[str]:
        """The names that the query gives itself, in small letters, and that are not columns of its tables."""
        items = [*self.outline.items, *self.outline.grouped]
        return {item.name.lower() for item in items if item.name and item.column != ("", item.name)}

    def _check_columns(self) -> None:
        """Refuses columns that no table has: those that are a whole expression, and those with a table."""
        self._check_qualified()
        tables = self._tables
        if tables is None or any(shape.columns is None for shape in tables.values()):
            return
        given = self._given | self.outline.bound
        for item in [*self.outline.items, *self.outline.grouped]:
            column = item.column
            if column is None or column[0] or column[1].lower() in given | WITHOUT_BRACKETS | WINDOWS:
                continue
            if item.tokens[0].lower == "all":
                continue
            self._check_column(item.tokens[0], tables)
        if [token.lower for token in self.outline.tokens].count("select") == 1:
            for call, inside in self.outline.calls():
                is_column = len(inside) == 2 and inside[0].is_name and inside[1].text in {",", ")"}
                if call.lower in AGGREGATES | WINDOWS and is_column and inside[0].text.lower() not in given:
                    self._check_column(inside[0], tables)

    def _check_column(self, token: Token, tables: Mapping[str, Shape]) -> None:
        if all(shape.missing(token.text) for shape in tables.values()):
            names = [name for shape in tables.values() for name in shape.columns or ()]
            raise self._no_column(token, token.text, names)

    def _check_qualified(self) -> None:
        tokens = self.outline.tokens
        if self.outline.adds:
            return
        aliases = [source.alias.lower() for source in self.outline.sources]
        tables = {
            source.alias.lower(): source
            for source in self.outline.sources
            if source.name in self.inputs
            and source.name.lower() not in self.common
            and aliases.count(source.alias.lower()) == 1
        }
        columns = {name.lower() for shape in self.inputs.values() for name in shape.columns or ()}
        columns |= self.outline.bound | self._given
        for index in range(1, len(tokens) - 2):
            before, alias, dot, name = tokens[index - 1 : index + 3]
            in_from = before.lower in {"from", "join"} or (
                before.text == "," and self.outline.in_from(index - 1)
            )
            if dot.text != "." or before.text == "." or in_from or not name.is_name:
                continue
            source = tables.get(alias.text.lower()) if alias.is_name else None
            if (
                source is None
                or source.block != self.outline.blocks[index]
                or source.alias.lower() in columns
            ):
                continue
            shape = self.inputs[source.name]
            if shape.missing(name.text):
                raise self._no_column(alias, name.text, list(shape.columns or ()))

    def _no_column(self, token: Token, name: str, names: list[str]) -> UsageError:
        return UsageError(
            f"{self.view}: there is no column {name!r}",
            got=self._at(token),
            hint=nearest(name, names),
        )

    def _columns(self) -> dict[str, str] | None:
        """The columns of the result, if all their names are known."""
        found: dict[str, str] = {}
        if self.outline.is_piped:
            return None
        for item in self.outline.items:
            if item.is_star:
                tables = self._tables or {}
                shape = next(iter(tables.values())) if len(tables) == 1 and len(item.tokens) == 1 else None
                if shape is None or shape.columns is None:
                    return None
                found |= shape.columns
            elif item.name:
                found[item.name] = self._kind(item)
            else:
                return None
        return found or None

    def _kind(self, item: Item) -> str:
        if item.call in WINDOWS:
            return WINDOW
        calls = {token.lower for token, _ in self.outline.calls()}
        likes = {"like", "ilike", "rlike"}  # LIKE SOME (…)
        aggregates = any(
            token.lower in AGGREGATES and following.text == "(" and before.lower not in likes
            for before, token, following in zip(
                (item.tokens[0], *item.tokens), item.tokens, item.tokens[1:], strict=False
            )
        )
        if not self.table and aggregates and not self.outline.is_combined:
            return AGGREGATE if "select" not in {token.lower for token in item.tokens} else UNKNOWN
        column = item.column
        tables = self._tables
        if column is None or tables is None or (calls & WINDOWS and column[1].lower() in WINDOWS):
            return UNKNOWN
        if column[0] and column[0].lower() not in tables:
            return UNKNOWN  # a field of a column
        shapes = [tables[column[0].lower()]] if column[0] else list(tables.values())
        kinds = {shape.kind(column[1]) for shape in shapes if shape.columns and column[1] in shape.columns}
        return kinds.pop() if len(kinds) == 1 else UNKNOWN

    @staticmethod
    def _may_have(shape: Shape, name: str) -> bool:
        return shape.columns is None or not shape.missing(name)


def _argument(name: str, text: str) -> str | list[str]:
    several = name in OF_THE_KEY or (name == "time" and "," in text)
    return [part.strip() for part in text.split(",")] if several else text


def _shown(call: Call) -> str:
    arguments = [*call.streams, *(f"{name} => '{text}'" for name, text in call.arguments.items())]
    return f"{call.operator}({', '.join(arguments)})"
