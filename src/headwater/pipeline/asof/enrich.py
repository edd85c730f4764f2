"""The entry of ``hw.enrich``: it checks its arguments and chooses the lookup (as of a time, or now)."""

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, TimestampType

from headwater.errors import UsageError
from headwater.pipeline.asof import table_changes
from headwater.pipeline.asof.lookup_as_of import LookupAsOf
from headwater.pipeline.asof.lookup_now import LookupNow
from headwater.pipeline.operator import apply, event_rows, two_inputs, weights
from headwater.pipeline.wire.wire import WEIGHT

__all__ = ["EnrichOptions", "enrich"]

WHAT = "enrich"
MISSING = ("keep", "drop", "wait")


class EnrichOptions(NamedTuple):
    """The arguments of ``hw.enrich``; an empty text for one that was not given."""

    as_of: str = ""
    valid: str = ""
    missing: str = "keep"
    wait: str = ""
    final: str = ""
    correct: str = ""
    version: str = "version"


def enrich(stream: DataFrame, table: DataFrame, on: two_inputs.On, options: EnrichOptions) -> DataFrame:
    """Applies the operator to a stream and a table."""
    _check(options)
    stream = weights.carry_weights(WHAT, stream)
    changes, of_rows = _changes(stream, table, on, options)
    pairs = two_inputs.columns_on(WHAT, stream.schema, changes.schema, on)
    columns = _columns(stream.schema, changes.schema, pairs, options)
    kinds = f"{_text(stream.schema)} with {_text(changes.schema)}"
    both, key = two_inputs.pair(WHAT, stream, changes, on)
    if not options.as_of:
        if WEIGHT in stream.columns:
            raise UsageError(
                "enrich: a stream whose rows may be retracted needs as_of=",
                hint="without as_of=, it is not remembered with which row of the table an event was joined",
            )
        logic = LookupNow(key=key, columns=columns, missing=options.missing, of_rows=of_rows, kinds=kinds)
        return apply.run(logic, both)
    event_rows.check_event_time(WHAT, stream, options.as_of)
    valid_type = changes.schema[options.valid].dataType
    if not isinstance(valid_type, TimestampType):
        raise UsageError(
            f"enrich: valid={options.valid!r} is not a timestamp column of the table",
            got=f"a column of type {valid_type.simpleString()}",
        )
    if options.final and WEIGHT in stream.columns:
        raise UsageError(
            "enrich: final= cannot be used for a stream whose rows may be retracted", hint="leave out final="
        )
    return apply.run(
        LookupAsOf(
            key=key,
            as_of=options.as_of,
            valid=options.valid,
            columns=columns,
            version=options.version,
            missing=options.missing,
            wait_us=_length("wait", options.wait) or 0,
            final_us=_length("final", options.final),
            correct_us=_length("correct", options.correct) or 0,
            of_rows=of_rows,
            retractable=WEIGHT in stream.columns,
            kinds=kinds,
            output_delay=options.final or (options.wait if options.missing == "wait" else ""),
        ),
        both,
    )


def _check(options: EnrichOptions) -> None:
    if options.missing not in MISSING:
        raise UsageError(
            "enrich: missing= is wrong", got=repr(options.missing), expected=" or ".join(map(repr, MISSING))
        )
    if (options.missing == "wait") != bool(options.wait):
        raise UsageError(
            "enrich: missing='wait' and wait= can only be used together",
            got=f"missing={options.missing!r}, wait={options.wait!r}",
            expected="missing='wait', wait='10 minutes'",
        )
    if not options.as_of:
        others = [name for name in ("valid", "wait", "final", "correct") if getattr(options, name)]
        if others:
            raise UsageError(
                f"enrich: {others[0]}= needs as_of=", hint="as_of names the column with the time of an event"
            )
        return
    if not options.valid:
        raise UsageError(
            "enrich: as_of= needs valid=",
            hint="valid names the column of the table with the time from which a row is valid",
        )
    if options.final and (options.wait or options.correct):
        raise UsageError(
            "enrich: final= cannot be combined with wait= or correct=",
            got="wait=" if options.wait else "correct=",
            hint="final= alone waits too: give it the longest time by which a version may arrive late",
        )


def _changes(
    stream: DataFrame, table: DataFrame, on: two_inputs.On, options: EnrichOptions
) -> tuple[DataFrame, bool]:
    """The frame with the table's versions, and whether it has weighted rows, each of which is a version."""
    attached = table_changes.offered(table)
    if attached is None or not options.as_of:
        rows = weights.carry_weights(WHAT, table)
        return rows, WEIGHT in rows.columns
    names = set(two_inputs.columns_on(WHAT, stream.schema, table.schema, on).values())
    if names == set(attached.key):
        return attached.changes(), False
    if names | {options.valid} == set(attached.key):
        return table, True
    raise UsageError(
        "enrich: on= is not the key of the table",
        got=", ".join(sorted(names)),
        expected=f"{', '.join(attached.key)}, so that at most one row is valid at a time",
    )


def _columns(
    stream: StructType, table: StructType, pairs: dict[str, str], options: EnrichOptions
) -> tuple[str, ...]:
    """The columns of the table in the output."""
    same = {there for here, there in pairs.items() if here == there}
    columns = [name for name in table.names if name not in same and not name.startswith("_")]
    if options.valid and options.valid not in table.names:
        names = ", ".join(name for name in table.names if not name.startswith("_"))
        raise UsageError(f"enrich: valid={options.valid!r} is not a column of the table", expected=names)
    added = [*columns, options.version] if options.as_of else columns
    twice = sorted({name for name in added if name in stream.names or added.count(name) > 1})
    if twice:
        hint = f'rename one of them before: .withColumnRenamed("{twice[0]}", …)'
        if twice[0] == options.version:
            hint += ", or choose another name with version="
        raise UsageError(f"enrich: both inputs have a column {twice[0]!r}", hint=hint)
    return tuple(columns)


def _length(name: str, text: str) -> int | None:
    return event_rows.length_us(WHAT, name, text) if text else None


def _text(kind: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in kind.fields)
