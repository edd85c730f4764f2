"""Rows of a MariaDB table by ranges of its key, as they would be published, out of a snapshot (``capture/mariasnapshot.py``)."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from headwater.capture.chunks import Span
from headwater.capture.condition import Condition
from headwater.capture.control import Range
from headwater.capture.ghosts import Ghosts, fields
from headwater.capture.mariasnapshot import BYTES, Snapshot, quoted_name
from headwater.errors import CaptureError

__all__ = ["Rows"]

INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
NUMBERS: Final = INTEGERS | {"decimal"}
TEXTS: Final = frozenset(
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid", "inet4", "inet6"}
)
TIMES: Final = frozenset({"date", "time", "datetime", "timestamp"})


class Rows:
    """Reads rows of one table while its snapshot lasts. CaptureError where its key cannot be put in order by SQL's texts."""

    def __init__(self, snapshot: Snapshot, table: str) -> None:
        schema, _, name = table.partition(".")
        self._snapshot = snapshot
        self._table = found = snapshot.table(schema, name)
        self.names = [column.name for column in found.columns]
        kinds = {column.name: column.type.removesuffix(" unsigned") for column in found.columns}
        self._key = [(quoted_name(each), kinds[each]) for each in found.key]
        if not found.key:
            raise CaptureError(f"table {table} has no key to read it by", hint="begin it anew as a whole")
        for each, kind in self._key:
            if kind not in NUMBERS | TEXTS | TIMES | BYTES:
                raise CaptureError(
                    f"table {table} cannot be read by ranges of its key",
                    got=f"{each} {kind}",
                    hint="begin it anew as a whole",
                )

    def span(self, within: Range, where: str = "", most: int | None = None) -> Span:
        """The first rows of a range."""
        last = self._last(within, where, most)
        if last is None:
            return Span({}, None)
        whole = self._where(Range(after=within.after, upto=last), where)
        rows = {
            key or b"": (row or b"").decode("latin-1")
            for keys, rows in self._snapshot.rows(self._table, f"{whole} ORDER BY {self._order()}")
            for key, row in zip(keys, rows, strict=True)
        }
        return Span(rows, last)

    def ghosts(self, keys: Iterable[str]) -> Ghosts:
        """Which of these keys, as records have them, the table has not."""
        gone, left, conditions = set[str](), 0, dict[str, str]()
        asked: dict[str, list[Any]] = {}
        for key in keys:
            values = fields(key, self._table.key)
            known = [_known(*each) for each in zip(self._kinds(), values or (), strict=False)]
            if values is None or False in known:
                gone.add(key)
            elif None in known:
                left += 1
            else:
                asked[key] = values
                conditions[key] = self._equal([str(value) for value in values])
        if not asked:
            return Ghosts(gone, left)
        there = set[str]()
        for found, _ in self._snapshot.rows(self._table, f" WHERE {' OR '.join(conditions.values())}"):
            there |= {(key or b"").decode() for key in found}
        rows = [fields(key, self._table.key) for key in there]
        spelled = {key for key, values in asked.items() if key not in there and values in rows}
        return Ghosts(gone | (asked.keys() - there - spelled), left + len(spelled))

    def _last(self, within: Range, where: str, most: int | None) -> tuple[str, ...] | None:
        """The key of the last row that `span` gives."""
        whole = self._where(within, where)
        if most is not None:
            found = self._ask(f"{whole} ORDER BY {self._order()} LIMIT 1 OFFSET {most - 1}")
            if found is not None:
                return found
        return self._ask(f"{whole} ORDER BY {self._order(' DESC')} LIMIT 1")

    def _ask(self, rest: str) -> tuple[str, ...] | None:
        shown = ", ".join(
            f"HEX({name})" if kind in BYTES else f"CAST({name} AS CHAR)" for name, kind in self._key
        )
        return self._snapshot.one(f"SELECT {shown} FROM {self._table.whole}{rest}")  # noqa: S608  quoted

    def _where(self, within: Range, where: str) -> str:
        conditions = [f"({Condition(where).sql(quoted_name, self._snapshot.literal)})"] if where else []
        for sign, last, bound in ((">", ">", within.after), ("<", "<=", within.upto)):
            if bound is not None:
                conditions.append(self._beyond(bound, sign, last))
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _beyond(self, bound: Sequence[str], sign: str, last: str) -> str:
        """A comparison of keys, spelled out: the server uses no index for one of rows."""
        steps = []
        for at, (name, kind) in enumerate(self._key):
            compare = last if at == len(self._key) - 1 else sign
            before = [self._same(place, bound[place]) for place in range(at)]
            steps.append(" AND ".join([*before, f"{name} {compare} {self._literal(kind, bound[at])}"]))
        return "(" + " OR ".join(f"({step})" for step in steps) + ")"

    def _equal(self, values: Sequence[str]) -> str:
        return "(" + " AND ".join(self._same(at, value) for at, value in enumerate(values)) + ")"

    def _same(self, at: int, text: str) -> str:
        name, kind = self._key[at]
        return f"{name} = {self._literal(kind, text)}"

    def _literal(self, kind: str, text: str) -> str:
        if kind in NUMBERS and text.lstrip("-").replace(".", "", 1).isdigit():
            return text
        if kind in BYTES:
            return f"x'{bytes.fromhex(text).hex()}'"
        return self._snapshot.literal(text)

    def _order(self, way: str = "") -> str:
        return ", ".join(f"{name}{way}" for name, _ in self._key)

    def _kinds(self) -> list[str]:
        return [kind for _, kind in self._key]


def _known(kind: str, value: Any) -> bool | None:
    """Whether a value of JSON is the text of SQL too; False for one that no row has, None where SQL's is another."""
    if kind in INTEGERS:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str) if kind in TEXTS else None
