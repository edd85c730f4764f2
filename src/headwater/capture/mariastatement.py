"""Statement: what a statement of MariaDB's binlog does to rows without naming them. Reads the words, not the grammar.

TRUNCATE t; DELETE FROM t (of an engine that has lost its rows); DROP TABLE t, u; CREATE OR REPLACE TABLE t        emptied
DROP DATABASE d; CREATE OR REPLACE DATABASE d                                                                     databases
ALTER TABLE t DROP | TRUNCATE | EXCHANGE | CONVERT PARTITION p, and the table that is exchanged or converted      torn
ALTER TABLE t IMPORT | DISCARD TABLESPACE                                                                         torn
RENAME TABLE t TO u, ALTER TABLE t RENAME TO u: t is emptied and u torn; a name that is given away and taken       both
"""

import re
from typing import Final, NamedTuple

__all__ = ["Effect", "effect", "names"]

TOKEN: Final = re.compile(
    r"""(?P<nothing>\s+|/\*(?!M?!).*?\*/|--(?=\s)[^\n]*|\#[^\n]*|/\*M?!\d*|\*/)
    |`(?P<ticked>(?:[^`]|``)*)`
    |"(?P<quoted>(?:[^"]|"")*)"
    |'(?P<text>(?:[^'\\]|\\.|'')*)'
    |(?P<word>[\w$]+)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
"""What stands in a comment with a version (``/*!50100 … */``) is carried out, and is read."""

TEARING: Final = (
    *((act, "PARTITION") for act in ("DROP", "TRUNCATE", "EXCHANGE", "CONVERT")),
    *((act, "TABLESPACE") for act in ("IMPORT", "DISCARD")),
)
"""What an ALTER TABLE may say that takes rows away or brings others."""

Name = tuple[str, str]
"""Database and table."""


class Effect(NamedTuple):
    """What is gone."""

    emptied: tuple[Name, ...] = ()
    """Tables without any row, whether or not they are there."""
    databases: tuple[str, ...] = ()
    """Databases with all their tables."""
    torn: tuple[Name, ...] = ()
    """Tables of which some rows are gone or others have come, nobody says which."""
    defines: bool = True
    """Whether it may have changed what tables look like."""


class _Token(NamedTuple):
    text: str
    plain: bool
    """A word or sign as it stands; not what was quoted."""


class _Reader:
    """Goes through the tokens of a statement."""

    def __init__(self, statement: str, schema: str) -> None:
        self._tokens = _tokens(statement)
        self._schema = schema
        self._at = 0

    def took(self, *words: str) -> bool:
        """Whether these words come next; they are passed then."""
        if [
            token.text.upper() for token in self._tokens[self._at : self._at + len(words)] if token.plain
        ] != [*words]:
            return False
        self._at += len(words)
        return True

    def name(self) -> str:
        """The name that comes next."""
        token = self._tokens[self._at] if self._at < len(self._tokens) else _Token("", plain=True)
        self._at += 1
        return token.text

    def table(self) -> Name:
        """The table that comes next."""
        first = self.name()
        return (first, self.name()) if self.took(".") else (self._schema, first)

    def tables(self) -> tuple[Name, ...]:
        """The tables that come next, with commas between them."""
        found = [self.table()]
        while self.took(","):
            found.append(self.table())
        return tuple(found)

    @property
    def over(self) -> bool:
        """Whether nothing comes any more."""
        return all(token == (";", True) for token in self._tokens[self._at :])

    def skip(self) -> bool:
        """Passes one token, if there is one."""
        self._at += 1
        return self._at < len(self._tokens)


def effect(statement: str, schema: str) -> Effect:
    """What a statement does that was given with `schema` as its database."""
    reader = _Reader(statement, schema)
    if reader.took("TRUNCATE"):
        reader.took("TABLE")
        return Effect(emptied=(reader.table(),), defines=False)
    if reader.took("DELETE", "FROM"):
        table = reader.table()
        return Effect(emptied=(table,) if reader.over else (), defines=False)
    if reader.took("DROP") or reader.took("CREATE", "OR", "REPLACE"):
        return _dropped(reader)
    if reader.took("ALTER"):
        return _altered(reader)
    if reader.took("RENAME", "TABLE") or reader.took("RENAME", "TABLES"):
        return _renamed(reader)
    return Effect()


def _dropped(reader: _Reader) -> Effect:
    if reader.took("TABLE") or reader.took("TABLES"):
        reader.took("IF", "EXISTS")
        return Effect(emptied=reader.tables())
    if reader.took("DATABASE") or reader.took("SCHEMA"):
        reader.took("IF", "EXISTS")
        return Effect(databases=(reader.name(),))
    return Effect()


def _altered(reader: _Reader) -> Effect:
    while reader.took("ONLINE") or reader.took("IGNORE"):
        pass
    if not reader.took("TABLE"):
        return Effect()
    reader.took("IF", "EXISTS")
    table, torn = reader.table(), dict[Name, None]()
    emptied: tuple[Name, ...] = ()
    while True:
        if any(reader.took(*words) for words in TEARING):
            torn[table] = None
        elif reader.took("CONVERT", "TABLE") or (
            torn and (reader.took("WITH", "TABLE") or reader.took("TO", "TABLE"))
        ):
            torn |= {table: None, reader.table(): None}
        elif reader.took("RENAME"):
            if not any(map(reader.took, ("COLUMN", "INDEX", "KEY"))):
                any(map(reader.took, ("TO", "AS", "=")))
                emptied = (table,)
                torn[reader.table()] = None
        elif not reader.skip():
            return Effect(emptied, torn=tuple(torn))


def _renamed(reader: _Reader) -> Effect:
    reader.took("IF", "EXISTS")
    emptied, torn = [], []
    while True:
        emptied.append(reader.table())
        while not reader.took("TO"):  # WAIT n, NOWAIT
            if not reader.skip():
                return Effect()
        torn.append(reader.table())
        if not reader.took(","):
            return Effect(tuple(emptied), torn=tuple(torn))


def names(statement: str, schema: str) -> set[Name]:
    """Every name in a statement, as that of a table: more than there are, and none is missing."""
    tokens, found = _tokens(statement), set[Name]()
    for at, token in enumerate(tokens):
        whole = at > 1 and tokens[at - 1] == (".", True)
        found.add((tokens[at - 2].text if whole else schema, token.text))
    return found


def _tokens(statement: str) -> list[_Token]:
    found = []
    for match in TOKEN.finditer(statement):
        kind, text = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "ticked":
            found.append(_Token(text.replace("``", "`"), plain=False))
        elif kind == "quoted":
            found.append(_Token(text.replace('""', '"'), plain=False))
        elif kind != "nothing":
            found.append(_Token(text, plain=kind != "text"))
    return found
