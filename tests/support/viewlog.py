"""View topics on a real log, for the tests of sinks and views."""

import json
import uuid

from headwater.access import Log
from headwater.client.client import Client, admin, producer
from support.servers import create_topic


class ViewLog:
    """Makes topics with names of their own and writes rows as a view's publisher does."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.admin = admin(log)
        self.producer = producer(log, **{"queue.buffering.max.messages": 1_000_000})

    def name(self, word: str = "view") -> str:
        return f"{word}-{uuid.uuid4().hex[:8]}"

    def create(self, name: str | None = None, partitions: int = 2, policy: str = "compact") -> str:
        return create_topic(self.admin, name or self.name(), partitions, cleanup_policy=policy)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(60)

    def put(self, topic: str, rows: dict, **place: int) -> None:
        """Writes the rows by key (None deletes) and returns when all are acknowledged."""
        for key, row in rows.items():
            value = None if row is None else row if isinstance(row, bytes) else json.dumps(row)
            self.producer.produce(topic, key=key, value=value, **place)
        assert self.producer.flush(30) == 0

    def expected(self, topic: str, offsets: dict[int, int] | None = None) -> dict[str, dict]:
        """What a table must hold that has applied the log up to ``offsets`` (the end, if not given)."""
        table: dict[str, dict] = {}
        for message in Client(self.log).read([topic]):
            if offsets is not None and message.offset() >= offsets.get(message.partition(), 0):
                continue
            key, value = message.key().decode(), message.value()
            table.pop(key, None)
            if value is not None:
                table[key] = json.loads(value)
        return table
