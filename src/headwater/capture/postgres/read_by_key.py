"""Current rows of PostgreSQL's tables by key, for values that neither the stream nor the topic has."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headwater.capture.postgres.catalogue import Catalogue
from headwater.capture.postgres.incremental import AGAIN_S, Rows, Visibility
from headwater.capture.source import Partial
from headwater.errors import UnavailableError

__all__ = ["read_current"]

VISIBLE_S = 10.0
"""How long a streamed transaction may be invisible to others: it may wait for a synchronous standby."""

_columns = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_current(
    connection: Any, catalogue: Catalogue, table: str, records: Sequence[Partial]
) -> dict[bytes, Mapping[str, bytes]]:
    """See `RereadSource.reread`; columns of another type than the record's are left out.

    A transaction is in the stream a moment before others can see it. A row that is read in this moment could
    have values from before that transaction, which no later record would correct.
    """
    pending = [record for record in records if record.unsent.texts and record.key is not None]
    limit = time.monotonic() + VISIBLE_S
    while pending:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            snapshot = connection.execute("SELECT pg_current_snapshot()::text").fetchone()[0]
            visibility = Visibility.parse(snapshot)
            if all(visibility.sees(record.unsent.transaction) for record in pending):
                return _read(connection, catalogue, table, pending)
        finally:
            connection.execute("COMMIT")
        if time.monotonic() > limit:
            raise UnavailableError(
                f"table {table}: a committed transaction has been invisible for {VISIBLE_S:.0f} s",
                hint="does it wait for a synchronous standby?",
            )
        time.sleep(AGAIN_S)
    return {}


def _read(
    connection: Any, catalogue: Catalogue, table: str, records: Sequence[Partial]
) -> dict[bytes, Mapping[str, bytes]]:
    schema, _, name = table.partition(".")
    if not catalogue.exists(schema, name):
        return {}
    published = catalogue.table(schema, name)
    types = {column.name: (column.oid, column.typmod) for column in published.relation.columns}
    columns = {column: kind for record in records for column, kind in record.unsent.columns.items()}
    unchanged = {column for column, kind in columns.items() if types.get(column) == kind}
    rows = Rows(connection, catalogue, published)
    if len(rows.key) != len(records[0].unsent.texts):
        return {}
    images = rows.by_key([record.unsent.texts for record in records])
    return {
        key: {
            column: bytes(raw)
            for column, raw in _columns(image.encode("latin-1")).items()
            if column in unchanged
        }
        for key, image in images.items()
    }
