"""Updates that do not bring all of their row: a value that PostgreSQL keeps outside of the row (TOAST) is only sent when it has changed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headwater.capture import envelope
from headwater.capture.envelope import NULL, Around
from headwater.capture.pgoutput import Relation, Shape, texts
from headwater.capture.source import Partial, Record, Unsent

__all__ = ["Update", "update_records"]


class Update(NamedTuple):
    """What an Update message says."""

    message: str
    new: Sequence[str | None]
    """The pieces of the new row, None where a value is not known."""
    at: int
    """Where the columns of the new tuple begin in the message."""
    before: str = NULL
    old_key: str | None = None


def update_records(
    around: Around, described: Relation, shape: Shape, transaction: int, update: Update
) -> list[Record]:
    """The records of an update; the last is a `Partial` where values are missing and the row can be told by a key."""
    whole = shape.filled(update.new)
    key = None if shape.key is None else shape.key(whole)

    def made(after: Sequence[str]) -> list[Record]:
        return envelope.updated(around, key, update.before, shape.row(after), update.old_key)

    def completed(values: Mapping[str, bytes]) -> bytes:
        after = [
            values[name].decode("latin-1") if piece is None and name in values else filler
            for name, piece, filler in zip(shape.names, update.new, whole, strict=True)
        ]
        return made(after)[-1].value or b""

    records = made(whole)
    columns = {
        column.name: (column.oid, column.typmod)
        for column, piece in zip(described.columns, update.new, strict=True)
        if piece is None
    }
    if not columns or key is None or any(shape.names[at] in columns for at in shape.key_columns):
        return records
    moved = None if update.old_key in {None, key} else str(update.old_key).encode("latin-1")
    found = texts(update.message, update.at, len(shape.names))
    known = tuple(found[at] for at in shape.key_columns)
    if None in known:  # a key that is itself outside of the row, and unchanged: it came with the old one
        known = ()
    unsent = Unsent(columns, moved, tuple(map(str, known)), transaction, completed)
    return [*records[:-1], Partial.of(records[-1], unsent)]
