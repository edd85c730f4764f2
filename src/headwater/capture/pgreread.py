"""Rows of PostgreSQL's tables by key, as they are now, for values that neither the stream nor the topic has."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headwater.capture.pgcatalog import Catalogue
from headwater.capture.pgchunks import AGAIN_S, Rows, Visible
from headwater.capture.source import Partial
from headwater.errors import Away

__all__ = ["current"]

VISIBLE_S = 10.0
"""So long a transaction that has come in the stream may be invisible to others: it may wait for a synchronous standby."""

_columns = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def current(
    connection: Any, catalogue: Catalogue, table: str, records: Sequence[Partial]
) -> dict[bytes, Mapping[str, bytes]]:
    """See `Rereadable.reread`. A column of another type than the record's is left out.

    A transaction is in the stream a moment before others can see it. A row that was read then could have values from before that very
    transaction, which nothing would put right.
    """
    wanted = [record for record in records if record.unsent.texts and record.key is not None]
    limit = time.monotonic() + VISIBLE_S
    while wanted:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            visible = Visible.parse(connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0])
            if all(visible.sees(record.unsent.transaction) for record in wanted):
                return _read(connection, catalogue, table, wanted)
        finally:
            connection.execute("COMMIT")
        if time.monotonic() > limit:
            raise Away(
                f"table {table}: a transaction that was committed cannot be seen for {VISIBLE_S:.0f} s",
                hint="does it wait for a synchronous standby?",
            )
        time.sleep(AGAIN_S)
    return {}


def _read(
    connection: Any, catalogue: Catalogue, table: str, wanted: Sequence[Partial]
) -> dict[bytes, Mapping[str, bytes]]:
    schema, _, name = table.partition(".")
    if not catalogue.exists(schema, name):
        return {}
    published = catalogue.table(schema, name)
    types = {column.name: (column.oid, column.typmod) for column in published.relation.columns}
    columns = {column: kind for record in wanted for column, kind in record.unsent.columns.items()}
    same = {column for column, kind in columns.items() if types.get(column) == kind}
    rows = Rows(connection, catalogue, published)
    if len(rows.key) != len(wanted[0].unsent.texts):
        return {}
    found = rows.by_key([record.unsent.texts for record in wanted])
    return {
        key: {column: bytes(raw) for column, raw in _columns(row.encode("latin-1")).items() if column in same}
        for key, row in found.items()
    }
