"""Keep: how long a log keeps the topics that Headwater makes, as settings of Apache Kafka that the embedded log knows too.

FULL     streams, appended rows: every record, for ever. What is made of them can be made again only from all of it
ROWS     tables, views: the newest record of each key
STATE    what Headwater itself reads when it starts, by key: in small segments, which are compacted soon, so that neither a start nor a disk
         grows with age. A segment that is written to is never compacted, and by default it is a gigabyte
PASSING  what is worth nothing a day later
"""

__all__ = ["FULL", "PASSING", "ROWS", "STATE"]

FULL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
ROWS = {"cleanup.policy": "compact"}
STATE = ROWS | {
    "segment.bytes": str(4 << 20),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}
PASSING = {
    "cleanup.policy": "delete",
    "retention.ms": str(86_400_000),
    "segment.bytes": str(4 << 20),
    "segment.ms": str(3_600_000),
}
