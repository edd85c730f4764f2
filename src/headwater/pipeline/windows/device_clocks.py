"""Corrected times of events from devices whose clocks may be wrong.

A record has three times: ``occurred`` and ``sent`` by the device's clock, and ``received`` by ours, which is
right. A **sample** is ``received - sent``: the offset of the device's clock plus the transit time of the
record, which is not negative. So a sample is never less than the true offset, and the smallest of several is
the best, as in NTP's clock filter. But a clock may also be set, and a sample may be nonsense. The rule:

    near       the device's last ``SAMPLES`` samples up to this record's ``received``, within ``window``,
               that differ from the record's own sample by ``transit`` at most
    offset     the record's own sample, or the second smallest near one if that is smaller: a small sample
               counts only if there is a second one
    corrected  ``occurred + offset``, but not after ``received`` and not more than ``bound`` before it

Consequences, if no record takes longer than ``transit``:

- Other samples, however wrong, move a record by ``transit`` at most. If the clock is set by more, the first
  record follows it.
- While the clock is not set, and with one bad sample among the others, the offset is between the true offset
  and the own sample.
- A record whose own sample is bad is wrong by as much, within the bounds. It is marked ``unsure``, since no
  other sample is near.
- The age ``sent - occurred`` is trusted: if the clock was set between the two, it is wrong, and only the
  bounds help.

**Order.** All samples up to a record's ``received`` are there once the watermark, which follows ``received``,
has passed it. The record is held until then, and is then emitted once, for good. So any order of arrival and
any cut into batches give the same rows as a batch, and operators downstream may count them. There is one
exception: a straggler that only ``late=hw.late.correct(…)`` lets in is corrected by all samples that are
kept, but does not change the rows emitted before it. A batch would have used its sample there, which makes a
difference of ``transit`` at most.

State, in the layout of ``pipeline/state/timers.py``: for each device its next time-out, its last samples and
the rows it holds.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headwater.declare.duration import duration_us
from headwater.errors import UsageError
from headwater.pipeline.arrow.msgpack_types import decoder
from headwater.pipeline.operator.apply import run
from headwater.pipeline.operator.logic import Applied, InsertOnly
from headwater.pipeline.spark.catalyst import DELAY
from headwater.pipeline.state import timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.layouts import FORGETTING
from headwater.pipeline.time.watermark import NEVER, Moment

__all__ = ["CORRECTED", "CORRECTION", "Clocks", "Correction", "Limits", "add_corrected_time", "correction"]

SAMPLES = 8
"""The number of samples of a device that are used, as in NTP's clock filter."""
RIGHT_US = duration_us("1 second")
"""With an offset from 0 to this, a clock counts as right, and the record keeps its time."""
CORRECTED = "corrected"
CORRECTION = "correction"
DONE = StructType([StructField("done", StringType()), StructField("offset_us", LongType())])

Sample = tuple[int, int]
"""``received`` and ``received - sent``."""
Row = tuple[Any, ...]


class Correction(NamedTuple):
    """The corrected time of a record, the kind of correction, and the offset.

    The kind is 'none', 'shifted', 'unsure' or 'clamped'.
    """

    time_us: int | None
    done: str
    offset_us: int | None


class Limits(NamedTuple):
    """The arguments of the rule, in microseconds."""

    bound: int
    transit: int
    window: int


class Device(msgspec.Struct, array_like=True):
    """The state of a device: its samples, and the rows it holds, both in the order of ``received``."""

    samples: list[Sample] = []
    held: list[tuple[int, bytes]] = []

    def release(self, watermark: int) -> list[bytes]:
        """Removes and returns the rows that the watermark has passed.

        A row exactly at it is held: others with its time may come.
        """
        ready = bisect_left(self.held, watermark, key=itemgetter(0))
        self.held, released = self.held[ready:], self.held[:ready]
        return [data for _, data in released]


def correction(
    occurred: int | None, sent: int | None, received: int | None, samples: Sequence[Sample], limits: Limits
) -> Correction:
    """The rule for one record.

    ``samples`` are those of its device, each once, in order; they may include its own.
    """
    if occurred is None or received is None:
        return Correction(None, "unsure", None)
    offset, done = (None, "unsure") if sent is None else _offset(received, received - sent, samples, limits)
    shifted = occurred + (offset or 0)
    time_us = min(max(shifted, received - limits.bound), received)
    return Correction(time_us, done if time_us == shifted else "clamped", offset)


def _offset(received: int, own: int, samples: Sequence[Sample], limits: Limits) -> tuple[int, str]:
    end = bisect_right(samples, received, key=itemgetter(0))
    recent = samples[max(0, end - SAMPLES - 1) : end]
    last = [sample for sample in recent if sample != (received, own)][-SAMPLES:]
    near = sorted(
        value for at, value in last if received - at <= limits.window and abs(value - own) <= limits.transit
    )
    offset = min([own, *near[1:2]])
    if 0 <= offset <= RIGHT_US:
        return 0, "none"
    return offset, "shifted" if near else "unsure"


class Clocks(InsertOnly, frozen=True, kw_only=True):
    """All rows with ``corrected`` and ``correction``, each once the watermark has passed its ``received``.

    ``output_delay`` is the bound: a corrected time may be so much older than ``received``.
    """

    key: tuple[str, ...]
    occurred: str
    sent: str
    received: str
    transit: str
    window: str
    kind: str = "clocks"
    timed: str = "watermark"
    layout: str = FORGETTING

    @property
    def limits(self) -> Limits:
        return Limits(duration_us(self.output_delay), duration_us(self.transit), duration_us(self.window))

    def schema(self, rows: StructType) -> StructType:
        """The corrected time replaces ``received`` as the event time, by which Spark drops state."""
        for argument in ("occurred", "sent", "received"):
            name = getattr(self, argument)
            if name not in rows.names or rows[name].dataType != TimestampType():
                kind = rows[name].dataType.simpleString() if name in rows.names else ""
                raise UsageError(
                    f"corrected_time: {argument}={name!r} is not a timestamp column of its input",
                    got=f"a column of type {kind}" if kind else "no such column",
                )
        taken = [name for name in rows.names if name in {CORRECTED, CORRECTION}]
        if taken:
            raise UsageError(
                f"corrected_time: its input already has a column {taken[0]!r}",
                hint=f'rename it before: .withColumnRenamed("{taken[0]}", …)',
            )
        _ = self.limits  # checks the durations
        mark = rows[self.received].metadata
        fields = [StructField(field.name, field.dataType, field.nullable) for field in rows.fields]
        corrected = StructField(CORRECTED, TimestampType(), metadata=mark)
        return StructType([*fields, corrected, StructField(CORRECTION, DONE)])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        plain = _times_as_numbers(rows.drop_columns(["_key"]))
        times, decode, limits = self._times(plain.schema.names), decoder(plain.schema), self.limits
        by_device: dict[bytes, list[Row]] = {}
        keys = rows.column("_key").cast(pa.binary()).to_pylist()
        values = zip(*(column.to_pylist() for column in plain.columns), strict=True)
        for key, row in zip(keys, values, strict=True):
            by_device.setdefault(key, []).append(row)
        due = timers.due(state, moment.watermark)
        wanted = sorted({*by_device, *(key for _, key in due)})
        stored = state.get([timers.place(key) for key in wanted])
        changes: dict[bytes, bytes | None] = {}
        out: list[Row] = []
        for key in wanted:
            old = stored.get(timers.place(key))
            device = _device.decode(old[8:]) if old is not None else Device()
            self._add(device, by_device.get(key, ()), times)
            released = [decode(data) for data in device.release(moment.watermark)]
            out += [(*row, *correction(*times(row), device.samples, limits)) for row in released]
            until = _forget(device, moment, limits.window)
            new = timers.kept(until, _encode(device)) if until is not None else None
            if old is not None or new is not None:
                changes |= timers.changed(key, old, new)
        return Applied(
            _table(out, rows.schema),
            Delta.of(changes, state),
            timers.earliest(state, changes, moment.watermark),
        )

    def _times(self, names: Sequence[str]) -> Callable[[Row], tuple[Any, Any, Any]]:
        return itemgetter(*(names.index(name) for name in (self.occurred, self.sent, self.received)))

    def _add(self, device: Device, rows: Sequence[Row], times: Callable[[Row], tuple[Any, Any, Any]]) -> None:
        """Adds new rows and their samples to the state of a device."""
        samples = set(device.samples)
        for row in rows:
            _, sent, received = times(row)
            device.held.append((NEVER - 1 if received is None else received, _encode(row)))
            if sent is not None and received is not None:
                samples.add((received, received - sent))
        device.held.sort()
        device.samples = sorted(samples)


def add_corrected_time(logic: Clocks, rows: DataFrame) -> DataFrame:
    """Applies the operator. UsageError for a stream whose watermark does not follow ``received``."""
    kind = logic.schema(rows.schema)
    if rows.isStreaming and DELAY not in kind[CORRECTED].metadata:
        times = [field.name for field in rows.schema.fields if DELAY in field.metadata]
        raise UsageError(
            f"corrected_time: received={logic.received!r} is not the event time of its stream",
            got=f"time={times[0]!r}" if times else "a computed column",
            expected=f"app.stream(…, time={logic.received!r}), since only this clock is known to be right",
        )
    return run(logic, rows)


def _forget(device: Device, moment: Moment, window: int) -> int | None:
    """Drops samples that no row needs any more.

    Returns the next time-out of the device; None if its state is empty.
    """
    past = [sample for sample in device.samples if moment.horizon - window <= sample[0] < moment.horizon]
    open_samples = [sample for sample in device.samples if sample[0] >= moment.horizon]
    device.samples = [*past[-SAMPLES:], *open_samples]
    if device.held:
        return device.held[0][0] + 1
    if device.samples:
        return device.samples[-1][0] + window + moment.watermark - moment.horizon + 1
    return None


_device = msgspec.msgpack.Decoder(Device)
_encode = msgspec.msgpack.Encoder(order="sorted").encode


def _times_as_numbers(rows: pa.Table) -> pa.Table:
    """Timestamps as numbers: a wrong clock may show a year for which Python has no date."""
    kinds = [pa.int64() if pt.is_timestamp(field.type) else field.type for field in rows.schema]
    return rows.cast(
        pa.schema([field.with_type(kind) for field, kind in zip(rows.schema, kinds, strict=True)])
    )


def _table(out: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows with their corrections as a table."""
    fields = [field for field in schema if field.name != "_key"]
    columns = list(zip(*out, strict=True)) or [()] * (len(fields) + 3)
    arrays = [_array(values, field.type) for values, field in zip(columns, fields, strict=False)]
    time, done, offset = columns[-3:]
    corrections = pa.StructArray.from_arrays(
        [pa.array(done, pa.string()), pa.array(offset, pa.int64())], DONE.names
    )
    names = [*(field.name for field in fields), CORRECTED, CORRECTION]
    return pa.table([*arrays, _array(time, pa.timestamp("us", "UTC")), corrections], names)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind) if pt.is_timestamp(kind) else pa.array(values, kind)
