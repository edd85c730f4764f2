"""Debezium: rows of a captured table inside Debezium's envelope, as ordinary records of a table.

    key    {"order_id": 7}                               → 7, or a JSON array for several columns
    value  {"before": …, "after": {…}, "op": "u", …}     → the row after the change, none if it is deleted

A delete comes as an event followed by a tombstone, which changes nothing. A value that is not an envelope
stays as it is, and does not fit the table's type. Dates are days since 1970; a timestamp must be text, since
whole numbers may be milliseconds or microseconds. A truncate has no key, and is invalid.
"""

from pyspark.sql import DataFrame

from headwater.declare.spec import Stream
from headwater.pipeline.wire.wire import like_array, literal

__all__ = ["DATE", "opened"]

DATE = "coalesce(date_from_unix_date(try_cast({0} AS INT)), try_cast({0} AS DATE))"
"""SQL for a date that was read as text."""


def opened(raw: DataFrame, spec: Stream) -> DataFrame:
    """Records with key and value in the form of our own tables."""
    envelope = "from_json(CAST(value AS STRING), 'op STRING, after STRING')"
    value = "IF(_envelope.op IS NULL, value, CAST(_envelope.after AS BINARY))"
    parts = [f"get_json_object(CAST(key AS STRING), {literal(f'$[{name!r}]')})" for name in spec.key]
    whole = " AND ".join(f"{part} IS NOT NULL" for part in parts)
    array = f"to_json(array({', '.join(parts)}))"
    lone = f"IF({like_array(parts[0])}, {array}, {parts[0]})"  # like ``schema.key_text``
    key = lone if len(parts) == 1 else f"IF({whole}, {array}, NULL)"
    rest = [name for name in raw.columns if name not in ("key", "value")]
    wrapped = raw.selectExpr("*", f"{envelope} AS _envelope")
    return wrapped.selectExpr(*rest, f"CAST({key} AS BINARY) AS key", f"{value} AS value")
