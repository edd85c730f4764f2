"""How long a log keeps the topics that Headwater makes, as settings of Apache Kafka and the embedded log.

FULL     streams, and views that append: every record, for ever, because views are rebuilt from all of it
ROWS     tables and views: the newest record of each key
STATE    what Headwater itself reads when it starts, by key. It has small segments, which are soon compacted,
         so that neither starts nor disks grow with age: the active segment is never compacted, and by default
         it has a gigabyte
PASSING  records that are worthless a day later
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
