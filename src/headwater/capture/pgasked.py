"""What a PostgreSQL capture minds while it streams: versions of schemas that are news, tables that cannot go on, names as they were given."""

import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping

from headwater.capture.control import Notice
from headwater.capture.keychange import KeyColumn, key_change, way_out
from headwater.capture.pgcatalog import Catalogue
from headwater.capture.pgchanges import Described, Versions
from headwater.capture.pgoutput import Column, Relation
from headwater.capture.source import Record
from headwater.errors import CaptureError

__all__ = ["Guard", "NoticingVersions", "published_as"]

NEVER = 1 << 64
"""No change of a table counts before this place in the log: it is stopped."""
WRITTEN_ALIKE = {20: "integer", 21: "integer", 23: "integer", 25: "text", 1043: "text"}
"""By oid: int8, int2, int4; text, varchar."""


def published_as(given: str, tables: Mapping[str, str]) -> str:
    """The whole name of a table that is captured."""
    name = given if "." in given else f"public.{given}"
    if name not in tables:
        raise CaptureError(
            f"table {name} is not captured", hint=f"there is {', '.join(sorted(tables)) or 'none'}"
        )
    return name


class NoticingVersions(Versions):
    """Versions of schemas; one that follows another is told."""

    def __init__(self, notices: list[Notice]) -> None:
        super().__init__()
        self.notices = notices

    def key(self, table: str) -> tuple[Column, ...]:
        """The key of the newest version."""
        _, known = self._newest.get(table, (0, None))
        if not isinstance(known, tuple):
            return ()
        columns, key = known
        by_name = {name: Column(name, oid, modifier, is_key=True) for name, oid, modifier in columns}
        return tuple(by_name[name] for name in key)

    def knows(self, table: str) -> bool:
        """Whether a version of it was published: its topic has rows from before."""
        return table in self._newest

    def record(self, name: str, described: Relation, key: tuple[str, ...], lsn: int) -> list[Record]:
        table = f"{described.schema}.{described.name}"
        version, _ = self._newest.get(table, (0, None))
        records = super().record(name, described, key, lsn)
        if records and version:
            columns = ", ".join(column.name for column in described.columns)
            details = {"version": version + 1, "key": list(key)}
            text = f"columns {columns}"
            self.notices.append(Notice("schema changed", time.time_ns() // 1_000_000, table, text, details))
        return records


class Guard:
    """Stops a table whose change cannot be published any more, that table alone: its changes are passed over until it begins anew."""

    def __init__(
        self,
        catalogue: Catalogue,
        versions: NoticingVersions,
        since: MutableMapping[str, int],
        stopped: Mapping[str, str],
    ) -> None:
        self.stopped = dict(stopped)
        self.at: Callable[[], int] = lambda: 0
        """Where the commit stands before which a table is described."""
        self._catalogue = catalogue
        self._versions = versions
        self._since = since
        for table in stopped:
            since[table] = NEVER

    def describe(self, relation: Relation) -> Described:
        """See `Catalogue.describe`; called for each version of a table before its first change."""
        table = f"{relation.schema}.{relation.name}"
        found = self._catalogue.describe(relation)
        if self.at() < self._since.get(table, 0):
            return found
        known = self._versions.key(table)
        names = tuple(column.name for column in known)
        if set(names) == set(found.key):  # the log does not tell their order, and the catalogue is as of now
            found = found._replace(key=names)
        by_name = {column.name: column for column in relation.columns}
        new = [by_name[name] for name in found.key]
        if changed := key_change(self._columns(known), self._columns(new)):
            self._stop(table, f"ALTER TABLE has changed it: {changed}", way_out(table, key=bool(new)))
        return found

    def _columns(self, key: Iterable[Column]) -> list[KeyColumn]:
        return [
            KeyColumn(
                column.name,
                WRITTEN_ALIKE.get(column.oid, (column.oid, column.typmod)),
                self._catalogue.type_name(column.oid, column.typmod),
            )
            for column in key
        ]

    def _stop(self, table: str, why: str, way: str) -> None:
        self._since[table] = NEVER
        self.stopped = self.stopped | {table: why}
        notice = Notice("table stopped", time.time_ns() // 1_000_000, table, f"{why}; {way}")
        self._versions.notices.append(notice)
