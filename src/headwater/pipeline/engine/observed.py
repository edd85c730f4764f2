"""Observed: the metrics that ``observe`` has collected in a batch: times, late rows, counts, notes."""

from typing import Any, NamedTuple, Self

from py4j.java_gateway import JavaObject
from pyspark.sql.streaming import StreamingQuery

from headwater.pipeline.build.plan_edits import observed
from headwater.pipeline.time.late_split import HEARD, Values, counts_in, stragglers_in, times_in
from headwater.pipeline.wire.wire import INVALID
from headwater.result import Stragglers

__all__ = ["Observed", "values"]

PLACES_KEPT = 100


class _Heard(NamedTuple):
    """The event times and counts of one input."""

    stream: str
    late: int
    kept: int
    row: Values


class Observed(NamedTuple):
    """The observations of a batch: values by name, by ``KIND NAME``."""

    rows: dict[str, Values]
    heard: tuple[_Heard, ...] = ()
    """Event times are in observations of their own, or together with the counts of records."""

    @classmethod
    def of_query(cls, query: StreamingQuery | None) -> Self:
        """Of the batch that has just run: progress events come too late for that."""
        running: Any = query
        pairs = running._jsq.streamingQuery().lastExecution().observedMetrics().iterator()  # noqa: SLF001
        rows = {}
        while pairs.hasNext():
            pair = pairs.next()
            rows[str(pair._1())] = values(pair._2())  # noqa: SLF001
        return cls.of_rows(rows)

    @classmethod
    def of_rows(cls, rows: dict[str, Values]) -> Self:
        plain = cls(rows)
        both = [*plain.of(INVALID), *plain.of(HEARD)]
        counted = ((name, counts_in(row), row) for name, row in both)
        return cls(rows, tuple(_Heard(name, *counts, row) for name, counts, row in counted if counts))

    def of(self, kind: str) -> list[tuple[str, Values]]:
        """Those of a kind, each with the name of what was observed."""
        return [
            (observed(name).removeprefix(f"{kind} "), row)
            for name, row in self.rows.items()
            if name.startswith(f"{kind} ")
        ]

    def times(self) -> dict[str, int]:
        """The greatest event time by place, ``STREAM/PARTITION``."""
        greatest: dict[str, int] = {}
        for heard in self.heard:
            for place, time_us in times_in(heard.stream, heard.row).items():
                greatest[place] = max(time_us, greatest.get(place, time_us))
        return greatest

    def stragglers(self) -> dict[str, Stragglers]:
        """The stragglers by input. A stream that is read twice brings each of them twice."""
        stragglers: dict[str, Stragglers] = {}
        for heard in self.heard:
            counted = stragglers_in(heard.row)
            if counted is not None:
                count, places = counted
                stragglers[heard.stream] = Stragglers(count, tuple(places[:PLACES_KEPT]))
        return stragglers


def values(row: Any) -> Values:
    """The observed values by name, from a row of Spark's."""
    by_name = {}
    for at, name in enumerate(row.schema().fieldNames()):
        value = row.get(at)
        by_name[str(name)] = list(row.getList(at)) if isinstance(value, JavaObject) else value
    return by_name
