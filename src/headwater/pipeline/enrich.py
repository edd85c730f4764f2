"""Enrich: a stream and a table as one frame, for the operators that put a row of the table beside each event."""

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampType

from headwater.errors import UsageError
from headwater.pipeline import history, operator, pair, weights, windowed
from headwater.pipeline.asof import AsOf
from headwater.pipeline.newest import Newest
from headwater.pipeline.wire import WEIGHT

__all__ = ["Wanted", "enriched"]

WHAT = "enrich"
MISSING = ("keep", "drop", "wait")


class Wanted(NamedTuple):
    """What was asked for; empty texts for what was not."""

    as_of: str = ""
    valid: str = ""
    missing: str = "keep"
    wait: str = ""
    final: str = ""
    correct: str = ""
    version: str = "version"


def enriched(stream: DataFrame, table: DataFrame, on: pair.On, wanted: Wanted) -> DataFrame:
    _check(wanted)
    stream = weights.carried(WHAT, stream)
    changes, of_rows = _changes(stream, table, on, wanted)
    pairs = pair.columns_on(WHAT, stream.schema, changes.schema, on)
    columns = _columns(stream.schema, changes.schema, pairs, wanted)
    kinds = f"{_text(stream.schema)} with {_text(changes.schema)}"
    both, key = pair.paired(WHAT, stream, changes, on)
    if not wanted.as_of:
        if WEIGHT in stream.columns:
            raise UsageError(
                "enrich: rows that may be taken back need as_of",
                hint="which row of the table an event has met is not remembered without it",
            )
        logic = Newest(key=key, columns=columns, missing=wanted.missing, of_rows=of_rows, kinds=kinds)
        return operator.run(logic, both)
    windowed.check_event_time(WHAT, stream, wanted.as_of)
    if not isinstance(changes.schema[wanted.valid].dataType, TimestampType):
        raise UsageError(f"enrich: valid {wanted.valid!r} is no timestamp of the table")
    if wanted.final and WEIGHT in stream.columns:
        raise UsageError("enrich: final rows of events that may be taken back", hint="leave out final")
    return operator.run(
        AsOf(
            key=key,
            as_of=wanted.as_of,
            valid=wanted.valid,
            columns=columns,
            version=wanted.version,
            missing=wanted.missing,
            wait_us=_length("wait", wanted.wait) or 0,
            final_us=_length("final", wanted.final),
            correct_us=_length("correct", wanted.correct) or 0,
            of_rows=of_rows,
            taken=WEIGHT in stream.columns,
            kinds=kinds,
            behind=wanted.final or (wanted.wait if wanted.missing == "wait" else ""),
        ),
        both,
    )


def _check(wanted: Wanted) -> None:
    if wanted.missing not in MISSING:
        raise UsageError("enrich: missing is wrong", got=repr(wanted.missing), expected=" or ".join(MISSING))
    if (wanted.missing == "wait") != bool(wanted.wait):
        raise UsageError(
            "enrich: missing='wait' and wait= belong together",
            got=f"missing={wanted.missing!r}, wait={wanted.wait!r}",
            expected="missing='wait', wait='10 minutes'",
        )
    if not wanted.as_of:
        asked = [name for name in ("valid", "wait", "final", "correct") if getattr(wanted, name)]
        if asked:
            raise UsageError(f"enrich: {asked[0]} without as_of", hint="as_of names the time of an event")
        return
    if not wanted.valid:
        raise UsageError(
            "enrich: as_of without valid", hint="valid names the column with the time from which a row holds"
        )
    if wanted.final and (wanted.wait or wanted.correct):
        raise UsageError(
            "enrich: a final row is not corrected and waits anyway",
            got="wait" if wanted.wait else "correct",
            hint="give final the longest time that a version may come after the events that it is for",
        )


def _changes(stream: DataFrame, table: DataFrame, on: pair.On, wanted: Wanted) -> tuple[DataFrame, bool]:
    """The frame with the table's versions, and whether it is weighted rows, of which each is a version."""
    known = history.offered(table)
    if known is None or not wanted.as_of:
        rows = weights.carried(WHAT, table)
        return rows, WEIGHT in rows.columns
    names = set(pair.columns_on(WHAT, stream.schema, table.schema, on).values())
    if names == set(known.key):
        return known.changes(), False
    if names | {wanted.valid} == set(known.key):
        return table, True
    raise UsageError(
        "enrich: on is not the key of the table",
        got=", ".join(sorted(names)),
        expected=f"{', '.join(known.key)}: then one row at most holds at a time",
    )


def _columns(stream: StructType, table: StructType, pairs: dict[str, str], wanted: Wanted) -> tuple[str, ...]:
    """The table's columns that go on."""
    same = {there for here, there in pairs.items() if here == there}
    columns = [name for name in table.names if name not in same and not name.startswith("_")]
    if wanted.valid and wanted.valid not in table.names:
        raise UsageError(
            f"enrich: valid {wanted.valid!r} is no column of the table", got=", ".join(table.names)
        )
    own = [*columns, wanted.version] if wanted.as_of else columns
    twice = sorted({name for name in own if name in stream.names or own.count(name) > 1})
    if twice:
        raise UsageError(
            f"enrich: both inputs have a column {twice[0]!r}",
            hint=f"rename it with a select before, or version='…' for {wanted.version!r}"
            if twice[0] == wanted.version
            else "rename one of them with a select before",
        )
    return tuple(columns)


def _length(name: str, text: str) -> int | None:
    return windowed.length_us(WHAT, name, text) if text else None


def _text(kind: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind.fields)
