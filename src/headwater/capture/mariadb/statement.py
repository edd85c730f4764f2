"""The effects of statements in MariaDB's binlog on rows, without row events.

It reads the words, not the grammar.

    TRUNCATE t; DELETE FROM t (an engine that lost its rows)                emptied
    DROP TABLE t, u; CREATE OR REPLACE TABLE t                              emptied
    DROP DATABASE d; CREATE OR REPLACE DATABASE d                           databases
    ALTER TABLE t DROP | TRUNCATE | EXCHANGE | CONVERT PARTITION p          unlogged
        and the table that is exchanged or converted                        unlogged
    ALTER TABLE t IMPORT | DISCARD TABLESPACE                               unlogged
    RENAME TABLE t TO u; ALTER TABLE t RENAME TO u                          t emptied, u unlogged

A name that is both given away and taken by a RENAME is emptied and unlogged.
"""

import re
from typing import Final, NamedTuple

__all__ = ["Effect", "effect", "names"]

TOKEN: Final = re.compile(
    r"""(?P<ignored>\s+|/\*(?!M?!).*?\*/|--(?=\s)[^\n]*|\#[^\n]*|/\*M?!\d*|\*/)
    |`(?P<ticked>(?:[^`]|``)*)`
    |"(?P<quoted>(?:[^"]|"")*)"
    |'(?P<text>(?:[^'\\]|\\.|'')*)'
    |(?P<word>[\w$]+)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
"""The server executes comments with a version (``/*!50100 … */``), so their content counts."""

UNLOGGED: Final = (
    *((action, "PARTITION") for action in ("DROP", "TRUNCATE", "EXCHANGE", "CONVERT")),
    *((action, "TABLESPACE") for action in ("IMPORT", "DISCARD")),
)
"""Actions of ALTER TABLE that remove or add rows."""

Name = tuple[str, str]
"""Database and table."""


class Effect(NamedTuple):
    """The effect of a statement on rows."""

    emptied: tuple[Name, ...] = ()
    """Tables that have no rows now; they may not exist."""
    databases: tuple[str, ...] = ()
    """Databases whose tables were all dropped."""
    unlogged: tuple[Name, ...] = ()
    """Tables from which rows were removed, or to which rows were added, without row events."""
    changes_schema: bool = True
    """Whether the statement may change schemas of tables."""


class _Token(NamedTuple):
    text: str
    plain: bool
    """Whether it is a word or sign without quotes."""


class _Reader:
    """Reads the tokens of a statement in order."""

    def __init__(self, statement: str, schema: str) -> None:
        self._tokens = _tokens(statement)
        self._schema = schema
        self._at = 0

    def accept(self, *words: str) -> bool:
        """Whether these words are next; skips them if so."""
        upcoming = self._tokens[self._at : self._at + len(words)]
        if [token.text.upper() for token in upcoming if token.plain] != [*words]:
            return False
        self._at += len(words)
        return True

    def name(self) -> str:
        """The next name."""
        token = self._tokens[self._at] if self._at < len(self._tokens) else _Token("", plain=True)
        self._at += 1
        return token.text

    def table(self) -> Name:
        """The next table."""
        first = self.name()
        return (first, self.name()) if self.accept(".") else (self._schema, first)

    def tables(self) -> tuple[Name, ...]:
        """The next tables, separated by commas."""
        tables = [self.table()]
        while self.accept(","):
            tables.append(self.table())
        return tuple(tables)

    @property
    def at_end(self) -> bool:
        """Whether only semicolons are left."""
        return all(token == (";", True) for token in self._tokens[self._at :])

    def skip(self) -> bool:
        """Skips one token; returns whether there are more."""
        self._at += 1
        return self._at < len(self._tokens)


def effect(statement: str, schema: str) -> Effect:
    """The effect of a statement with the default database `schema`."""
    reader = _Reader(statement, schema)
    if reader.accept("TRUNCATE"):
        reader.accept("TABLE")
        return Effect(emptied=(reader.table(),), changes_schema=False)
    if reader.accept("DELETE", "FROM"):
        table = reader.table()
        return Effect(emptied=(table,) if reader.at_end else (), changes_schema=False)
    if reader.accept("DROP") or reader.accept("CREATE", "OR", "REPLACE"):
        return _dropped(reader)
    if reader.accept("ALTER"):
        return _altered(reader)
    if reader.accept("RENAME", "TABLE") or reader.accept("RENAME", "TABLES"):
        return _renamed(reader)
    return Effect()


def _dropped(reader: _Reader) -> Effect:
    if reader.accept("TABLE") or reader.accept("TABLES"):
        reader.accept("IF", "EXISTS")
        return Effect(emptied=reader.tables())
    if reader.accept("DATABASE") or reader.accept("SCHEMA"):
        reader.accept("IF", "EXISTS")
        return Effect(databases=(reader.name(),))
    return Effect()


def _altered(reader: _Reader) -> Effect:
    while reader.accept("ONLINE") or reader.accept("IGNORE"):
        pass
    if not reader.accept("TABLE"):
        return Effect()
    reader.accept("IF", "EXISTS")
    table, unlogged = reader.table(), dict[Name, None]()
    emptied: tuple[Name, ...] = ()
    while True:
        if any(reader.accept(*words) for words in UNLOGGED):
            unlogged[table] = None
        elif reader.accept("CONVERT", "TABLE") or (
            unlogged and (reader.accept("WITH", "TABLE") or reader.accept("TO", "TABLE"))
        ):
            unlogged |= {table: None, reader.table(): None}
        elif reader.accept("RENAME"):
            if not any(map(reader.accept, ("COLUMN", "INDEX", "KEY"))):
                any(map(reader.accept, ("TO", "AS", "=")))
                emptied = (table,)
                unlogged[reader.table()] = None
        elif not reader.skip():
            return Effect(emptied, unlogged=tuple(unlogged))


def _renamed(reader: _Reader) -> Effect:
    reader.accept("IF", "EXISTS")
    emptied, unlogged = [], []
    while True:
        emptied.append(reader.table())
        while not reader.accept("TO"):  # WAIT n, NOWAIT
            if not reader.skip():
                return Effect()
        unlogged.append(reader.table())
        if not reader.accept(","):
            return Effect(tuple(emptied), unlogged=tuple(unlogged))


def names(statement: str, schema: str) -> set[Name]:
    """Every token of a statement as the name of a table: all tables of the statement are among them."""
    tokens, tables = _tokens(statement), set[Name]()
    for at, token in enumerate(tokens):
        qualified = at > 1 and tokens[at - 1] == (".", True)
        tables.add((tokens[at - 2].text if qualified else schema, token.text))
    return tables


def _tokens(statement: str) -> list[_Token]:
    tokens = []
    for match in TOKEN.finditer(statement):
        kind, text = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "ticked":
            tokens.append(_Token(text.replace("``", "`"), plain=False))
        elif kind == "quoted":
            tokens.append(_Token(text.replace('""', '"'), plain=False))
        elif kind != "ignored":
            tokens.append(_Token(text, plain=kind != "text"))
    return tokens
