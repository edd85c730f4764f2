"""Updates without all values of their row: PostgreSQL sends a large value (TOAST) only if it was changed."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headwater.capture import envelope
from headwater.capture.envelope import NULL
from headwater.capture.postgres.messages import Relation, Shape, texts
from headwater.capture.source import EventContext, Partial, Record, Unsent

__all__ = ["Update", "update_records"]


class Update(NamedTuple):
    """The content of an Update message."""

    message: str
    new: Sequence[str | None]
    """The pieces of the new row, None for an unknown value."""
    at: int
    """Where the columns of the new tuple begin in the message."""
    before: str = NULL
    old_key: str | None = None


def update_records(
    context: EventContext, relation: Relation, shape: Shape, transaction: int, update: Update
) -> list[Record]:
    """The records of an update; the last is a `Partial` if values are missing and the row has a key."""
    filled = shape.fill(update.new)
    key = None if shape.key is None else shape.key(filled)

    def events(after: Sequence[str]) -> list[Record]:
        return envelope.update_events(context, key, update.before, shape.row(after), update.old_key)

    def complete(values: Mapping[str, bytes]) -> bytes:
        after = [
            values[name].decode("latin-1") if piece is None and name in values else filler
            for name, piece, filler in zip(shape.names, update.new, filled, strict=True)
        ]
        return events(after)[-1].value or b""

    records = events(filled)
    columns = {
        column.name: (column.oid, column.typmod)
        for column, piece in zip(relation.columns, update.new, strict=True)
        if piece is None
    }
    if not columns or key is None or any(shape.names[at] in columns for at in shape.key_columns):
        return records
    old_key = None if update.old_key in {None, key} else str(update.old_key).encode("latin-1")
    column_texts = texts(update.message, update.at, len(shape.names))
    key_texts = tuple(column_texts[at] for at in shape.key_columns)
    if None in key_texts:  # a large key that has not changed: it was sent with the old row
        key_texts = ()
    unsent = Unsent(columns, old_key, tuple(map(str, key_texts)), transaction, complete)
    return [*records[:-1], Partial.of(records[-1], unsent)]
