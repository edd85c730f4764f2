"""Observed: what ``observe`` has seen in a batch: times, late rows, counts, and the notes of operators."""

from typing import Any, NamedTuple, Self

from py4j.java_gateway import JavaObject
from pyspark.sql.streaming import StreamingQuery

from headwater.pipeline import source
from headwater.pipeline.plan import observed
from headwater.pipeline.split import HEARD, Values, heard_of, named, noted
from headwater.result import Stragglers

__all__ = ["Observed", "values"]

PLACES_KEPT = 100


class _Heard(NamedTuple):
    """What was heard of a stream."""

    stream: str
    late: int
    kept: int
    row: Values


class Observed(NamedTuple):
    """The observations of a batch: values by name, by ``KIND NAME``."""

    rows: dict[str, Values]
    heard: tuple[_Heard, ...] = ()
    """What was heard stands in rows of its own, or beside the counts of records."""

    @classmethod
    def of_query(cls, query: StreamingQuery | None) -> Self:
        """Of the batch that has just run: progress events come too late for that."""
        running: Any = query
        pairs = running._jsq.streamingQuery().lastExecution().observedMetrics().iterator()  # noqa: SLF001
        found = {}
        while pairs.hasNext():
            pair = pairs.next()
            found[str(pair._1())] = values(pair._2())  # noqa: SLF001
        return cls.of_rows(found)

    @classmethod
    def of_rows(cls, rows: dict[str, Values]) -> Self:
        seen = cls(rows)
        both = [*seen.of(source.INVALID), *seen.of(HEARD)]
        counted = ((name, heard_of(row), row) for name, row in both)
        return cls(rows, tuple(_Heard(name, *counts, row) for name, counts, row in counted if counts))

    def of(self, kind: str) -> list[tuple[str, Values]]:
        """Those of a kind, by the name of what was observed."""
        return [
            (observed(name).removeprefix(f"{kind} "), row)
            for name, row in self.rows.items()
            if name.startswith(f"{kind} ")
        ]

    def times(self) -> dict[str, int]:
        """The greatest time of each place."""
        greatest: dict[str, int] = {}
        for each in self.heard:
            for place, time_us in noted(each.stream, each.row).items():
                greatest[place] = max(time_us, greatest.get(place, time_us))
        return greatest

    def stragglers(self) -> dict[str, Stragglers]:
        """By input. A stream that is read twice brings each of them twice."""
        found: dict[str, Stragglers] = {}
        for each in self.heard:
            known = named(each.row)
            if known is not None:
                found[each.stream] = Stragglers(known[0], tuple(known[1][:PLACES_KEPT]))
        return found


def values(row: Any) -> Values:
    """What was observed, by name, from a row of Spark's."""
    found = {}
    for at, name in enumerate(row.schema().fieldNames()):
        value = row.get(at)
        found[str(name)] = list(row.getList(at)) if isinstance(value, JavaObject) else value
    return found
