"""Clocks: when did it happen, if the device that says so has a wrong clock?

A record has three times: ``occurred`` and ``sent`` by the device's clock, ``received`` by ours, which is right. A **sample** is
``received - sent``: what the device's clock lacks, and the time that the record was under way, which is not negative. So a sample is never
less than the true offset, and of several the smallest is the best, as NTP's clock filter has it. But a clock is also set, and a sample
may be nonsense. The rule:

    near       of the device's last ``SAMPLES`` samples up to this record's ``received``, within ``window``, those that are at most ``transit`` from its own
    offset     its own sample, or the second smallest of the near ones if that is smaller: a small sample counts when another confirms it
    corrected  ``occurred + offset``, but not after ``received`` and not more than ``behind`` before it

What follows, with ``transit`` as the longest that a record is under way:

- Other samples, however wrong, move a record by ``transit`` at most. A clock that is set by more is followed with the first record.
- While the clock is not set, and with one bad sample among the others, the offset is between the true one and the record's own sample.
- A record whose own sample is bad is wrong by as much, within the bounds; it says ``unsure``, since no other sample is near.
- The age ``sent - occurred`` is taken as it is: a clock that was set between the two makes it wrong, and only the bounds help.

**Order.** The samples up to a record's ``received`` are all there once the watermark, which goes by ``received``, has passed it. Until then the record is held, and
goes on once, for good: so any order of arrival and any cut into batches give the rows of a batch over the same records, and what stands behind may
count them. One case is left: a straggler that only ``late=hw.correct(…)`` lets in is corrected by all samples that are kept, but does not change
what went on before it; a batch would have counted its sample, which is a matter of ``transit`` at most.

State, in the layout of ``timers.py``: for each device its next time-out, its last samples and the rows that are held.
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

from headwater.errors import UsageError
from headwater.late import duration_us
from headwater.pipeline import timers
from headwater.pipeline.decoding import decoder
from headwater.pipeline.layout import FORGETTING
from headwater.pipeline.operator import Applied, Moment, State, Staying, run
from headwater.pipeline.plan import DELAY
from headwater.pipeline.time import NEVER

__all__ = ["CORRECTED", "CORRECTION", "Clocks", "Correction", "Limits", "corrected", "correction"]

SAMPLES = 8
"""So many of a device's last samples are looked at, as NTP's clock filter does."""
RIGHT_US = duration_us("1 second")
"""An offset from nothing to this is what a right clock shows: the record keeps its time."""
CORRECTED = "corrected"
CORRECTION = "correction"
DONE = StructType([StructField("done", StringType()), StructField("offset_us", LongType())])

Sample = tuple[int, int]
"""When it was received, and ``received - sent``."""
Row = tuple[Any, ...]


class Correction(NamedTuple):
    """What becomes of a record: its time, what was done ('none', 'shifted', 'unsure', 'clamped'), and by which offset."""

    time_us: int | None
    done: str
    offset_us: int | None


class Limits(NamedTuple):
    """How much is believed, in microseconds."""

    behind: int
    transit: int
    window: int


class Device(msgspec.Struct, array_like=True):
    """What is kept of a device, in the order of ``received``: its samples, and the rows that are held."""

    samples: list[Sample] = []
    held: list[tuple[int, bytes]] = []

    def release(self, watermark: int) -> list[bytes]:
        """Takes out the rows that the watermark has passed. One exactly at it is held: others with its time may come."""
        ready = bisect_left(self.held, watermark, key=itemgetter(0))
        self.held, out = self.held[ready:], self.held[:ready]
        return [data for _, data in out]


def correction(
    occurred: int | None, sent: int | None, received: int | None, samples: Sequence[Sample], limits: Limits
) -> Correction:
    """The rule for one record. ``samples``: those of its device, each once, in order; its own may be among them."""
    if occurred is None or received is None:
        return Correction(None, "unsure", None)
    offset, done = (None, "unsure") if sent is None else _offset(received, received - sent, samples, limits)
    wanted = occurred + (offset or 0)
    time_us = min(max(wanted, received - limits.behind), received)
    return Correction(time_us, done if time_us == wanted else "clamped", offset)


def _offset(received: int, own: int, samples: Sequence[Sample], limits: Limits) -> tuple[int, str]:
    end = bisect_right(samples, received, key=itemgetter(0))
    last = [each for each in samples[max(0, end - SAMPLES - 1) : end] if each != (received, own)][-SAMPLES:]
    near = sorted(
        value for at, value in last if received - at <= limits.window and abs(value - own) <= limits.transit
    )
    offset = min([own, *near[1:2]])
    if 0 <= offset <= RIGHT_US:
        return 0, "none"
    return offset, "shifted" if near else "unsure"


class Clocks(Staying, frozen=True, kw_only=True):
    """All rows with ``corrected`` and ``correction``, each once, when the watermark has passed its ``received``."""

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
        return Limits(duration_us(self.behind), duration_us(self.transit), duration_us(self.window))

    def schema(self, rows: StructType) -> StructType:
        """The corrected time takes the place of ``received`` as the column by which Spark forgets."""
        for name in (self.occurred, self.sent, self.received):
            if name not in rows.names or rows[name].dataType != TimestampType():
                got = f"{name} {rows[name].dataType.simpleString()}" if name in rows.names else name
                raise UsageError("corrected_time: a time is a timestamp column of its input", got=got)
        taken = [name for name in rows.names if name in {CORRECTED, CORRECTION}]
        if taken:
            raise UsageError("corrected_time: its input has such a column already", got=taken[0])
        _ = self.limits
        mark = rows[self.received].metadata
        fields = [StructField(field.name, field.dataType, field.nullable) for field in rows.fields]
        corrected = StructField(CORRECTED, TimestampType(), metadata=mark)
        return StructType([*fields, corrected, StructField(CORRECTION, DONE)])

    def apply(self, rows: pa.Table, state: State, moment: Moment) -> Applied:
        plain = _numbers(rows.drop_columns(["_key"]))
        times, decode, limits = self._times(plain.schema.names), decoder(plain.schema), self.limits
        came: dict[bytes, list[Row]] = {}
        keys = rows.column("_key").cast(pa.binary()).to_pylist()
        found = zip(*(column.to_pylist() for column in plain.columns), strict=True)
        for key, row in zip(keys, found, strict=True):
            came.setdefault(key, []).append(row)
        due = timers.due(state, moment.watermark)
        wanted = sorted({*came, *(key for _, key in due)})
        known = state.get([timers.place(key) for key in wanted])
        changes: dict[bytes, bytes | None] = {}
        out: list[Row] = []
        for key in wanted:
            old = known.get(timers.place(key))
            device = _device.decode(old[8:]) if old is not None else Device()
            self._take(device, came.get(key, ()), times)
            ready = [decode(data) for data in device.release(moment.watermark)]
            out += [(*row, *correction(*times(row), device.samples, limits)) for row in ready]
            until = _forget(device, moment, limits.window)
            new = timers.kept(until, _encode(device)) if until is not None else None
            if old is not None or new is not None:
                changes |= timers.changed(key, old, new)
        changes = dict(sorted(changes.items()))
        return Applied(_table(out, rows.schema), changes, timers.earliest(state, changes, moment.watermark))

    def _times(self, names: Sequence[str]) -> Callable[[Row], tuple[Any, Any, Any]]:
        return itemgetter(*(names.index(name) for name in (self.occurred, self.sent, self.received)))

    def _take(
        self, device: Device, rows: Sequence[Row], times: Callable[[Row], tuple[Any, Any, Any]]
    ) -> None:
        """New rows and their samples."""
        samples = set(device.samples)
        for row in rows:
            _, sent, received = times(row)
            device.held.append((NEVER - 1 if received is None else received, _encode(row)))
            if sent is not None and received is not None:
                samples.add((received, received - sent))
        device.held.sort()
        device.samples = sorted(samples)


def corrected(logic: Clocks, rows: DataFrame) -> DataFrame:
    """Applies it. A stream's watermark must go by the clock that is right."""
    kind = logic.schema(rows.schema)
    if rows.isStreaming and DELAY not in kind[CORRECTED].metadata:
        times = [field.name for field in rows.schema.fields if DELAY in field.metadata]
        raise UsageError(
            "corrected_time: the event time of its stream must be the clock that is right",
            got=f"time={times[0]!r}" if times else f"{logic.received}, which was computed",
            expected=f"time={logic.received!r}",
        )
    return run(logic, rows)


def _forget(device: Device, moment: Moment, window: int) -> int | None:
    """Drops the samples that no row can ask for any more. When the device must be looked at again; None when nothing is left of it."""
    past = [each for each in device.samples if moment.horizon - window <= each[0] < moment.horizon]
    still = [each for each in device.samples if each[0] >= moment.horizon]
    device.samples = [*past[-SAMPLES:], *still]
    if device.held:
        return device.held[0][0] + 1
    if device.samples:
        return device.samples[-1][0] + window + moment.watermark - moment.horizon + 1
    return None


_device = msgspec.msgpack.Decoder(Device)
_encode = msgspec.msgpack.Encoder(order="sorted").encode


def _numbers(rows: pa.Table) -> pa.Table:
    """Timestamps as numbers: a wrong clock may show a year that Python has no date for."""
    kinds = [pa.int64() if pt.is_timestamp(field.type) else field.type for field in rows.schema]
    return rows.cast(
        pa.schema([field.with_type(kind) for field, kind in zip(rows.schema, kinds, strict=True)])
    )


def _table(out: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows with their correction as a table again."""
    plain = [field for field in schema if field.name != "_key"]
    columns = list(zip(*out, strict=True)) or [()] * (len(plain) + 3)
    arrays = [_array(values, field.type) for values, field in zip(columns, plain, strict=False)]
    time, done, offset = columns[-3:]
    words = pa.StructArray.from_arrays(
        [pa.array(done, pa.string()), pa.array(offset, pa.int64())], DONE.names
    )
    names = [*(field.name for field in plain), CORRECTED, CORRECTION]
    return pa.table([*arrays, _array(time, pa.timestamp("us", "UTC")), words], names)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind) if pt.is_timestamp(kind) else pa.array(values, kind)
