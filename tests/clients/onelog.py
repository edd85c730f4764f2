"""A log as the cases that run on both see it: requests of the protocol, and answers as plain values that can be compared."""

import itertools
import time
from collections.abc import Callable
from typing import Any

from clients.answers import SESSION_MS, UNSETTLED, batch_of, named, now_ms, record
from clients.member import Member
from clients.writer import Writer
from headwater.protocol.kafka.codec import Message
from headwater.record import CONTROL, TRANSACTIONAL, BatchHeader, Record, open_batch, whole_batches
from support.servers import wait_until
from support.wire import Wire


class Log:
    """One log, during one case. Names are made from the case's, so they are the same on both logs."""

    def __init__(self, bootstrap: str, case: str) -> None:
        self.bootstrap = bootstrap
        self.wire = Wire(bootstrap)
        self._case = case
        self._counter = itertools.count(1)
        self._open = [self.wire]

    def call(self, name: str, version: int, **fields: object) -> Message:
        return self.wire.call(name, version, **fields)

    def connect(self) -> Wire:
        """Another connection; it is closed with the case."""
        self._open.append(Wire(self.bootstrap))
        return self._open[-1]

    def close(self) -> None:
        for wire in self._open:
            wire.close()

    def fresh(self, what: str = "t") -> str:
        """A name that nothing else has."""
        return f"{self._case}-{what}{next(self._counter)}"

    def settled(self, ask: Callable[[], str]) -> str:
        """The answer once the log no longer asks to try again."""
        last = ""

        def answered() -> bool:
            nonlocal last
            last = ask()
            return last not in UNSETTLED

        wait_until(answered, what="an answer other than to try again")
        return last

    def comes_true(self, condition: Callable[[], object], seconds: float) -> bool:
        """Whether a condition comes true in that time: for what one of the logs never does."""
        limit = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > limit:
                return False
            time.sleep(0.02)
        return True

    # ---- topics ----------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **settings: str) -> str:
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        return named(self.call("CreateTopics", 7, topics=[topic], timeout_ms=30_000).topics[0].error_code)

    def topic(self, partitions: int = 1, name: str = "", **settings: str) -> str:
        """A new topic, once records can be written to it."""
        name = name or self.fresh()
        answer = self.create(name, partitions, **settings)
        assert answer == "NONE", answer
        for partition in range(partitions):
            wait_until(
                lambda partition=partition: self.offset(name, -1, partition=partition)[0] == "NONE",
                what=f"a leader of {name}-{partition}",
            )
        return name

    def delete(self, *topics: str) -> list[str]:
        answer = self.call("DeleteTopics", 6, topics=[{"name": name} for name in topics], timeout_ms=30_000)
        return [named(each.error_code) for each in answer.responses]

    def gone(self, topic: str) -> None:
        """Deletes a topic, and waits until the log no longer knows it."""
        assert self.delete(topic) == ["NONE"]
        wait_until(
            lambda: self.metadata(topic)[0] == "UNKNOWN_TOPIC_OR_PARTITION", what=f"the end of {topic}"
        )
        wait_until(
            lambda: self.offset(topic, -1)[0] == "UNKNOWN_TOPIC_OR_PARTITION", what=f"the end of {topic}-0"
        )

    def metadata(self, topic: str) -> tuple[str, Message]:
        answer = self.call("Metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
        return named(answer.topics[0].error_code), answer.topics[0]

    def alter(self, topic: str, name: str, value: str | None, operation: int = 0, kind: int = 2) -> str:
        change = {"name": name, "config_operation": operation, "value": value}
        resource = {"resource_type": kind, "resource_name": topic, "configs": [change]}
        answer = self.call("IncrementalAlterConfigs", 1, resources=[resource])
        return named(answer.responses[0].error_code)

    def setting(self, topic: str, name: str) -> str | None:
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}
        result = self.call("DescribeConfigs", 4, resources=[resource]).results[0]
        return result.configs[0].value if result.configs else named(result.error_code)

    def set(self, topic: str, name: str, value: str) -> None:
        """Changes a setting, and waits until the broker goes by it."""
        assert self.alter(topic, name, value) == "NONE"
        wait_until(lambda: self.setting(topic, name) == value, what=f"{name}={value}")

    # ---- records ---------------------------------------------------------------------------------------

    def produce_raw(
        self,
        topic: str,
        data: bytes | None,
        partition: int = 0,
        acks: int = -1,
        transaction: str | None = None,
    ) -> tuple[str, int]:
        """One batch as it is; the error and the base offset."""
        part = {"index": partition, "records": data}
        topics = [{"name": topic, "partition_data": [part]}]
        fields: dict[str, Any] = {"topic_data": topics, "transactional_id": transaction}
        if acks == 0:
            self.wire.send("Produce", 9, acks=0, timeout_ms=30_000, **fields)
            return "unanswered", -1
        answer = self.call("Produce", 9, acks=acks, timeout_ms=30_000, **fields)
        found = answer.responses[0].partition_responses[0]
        return named(found.error_code), found.base_offset

    def produce(
        self, topic: str, *records: Record, partition: int = 0, acks: int = -1, codec: int = 0
    ) -> tuple[str, int]:
        return self.produce_raw(topic, batch_of(list(records), codec), partition, acks)

    def fill(self, topic: str, *values: str, key: str | None = "k") -> None:
        """One record in a batch of its own for each value, a second apart."""
        for number, value in enumerate(values):
            error, _ = self.produce(topic, record(value, key, number * 1000))
            assert error == "NONE", error

    def fetch(
        self, topic: str, offset: int, *, committed: bool = False, partition: int = 0, **more: int
    ) -> Message:
        part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        answer = self.call(
            "Fetch",
            11,
            max_wait_ms=0,
            min_bytes=1,
            session_epoch=-1,
            isolation_level=int(committed),
            topics=[{"topic": topic, "partitions": [part | more]}],
        )
        return answer.responses[0].partitions[0]

    def read(self, topic: str, offset: int = 0, *, committed: bool = True, partition: int = 0) -> list[tuple]:
        """Offset, key and value of what a consumer gets, which leaves out what the broker names as aborted."""
        found: list[tuple] = []
        while True:
            part = self.fetch(topic, offset, committed=committed, partition=partition)
            if part.error_code:
                return [named(part.error_code)]
            before, skipped = offset, set()
            waiting = sorted((a.first_offset, a.producer_id) for a in part.aborted_transactions or ())
            for batch in whole_batches(part.records or b""):
                header = BatchHeader.read(batch)
                while waiting and waiting[0][0] <= header.last_offset:
                    skipped.add(waiting.pop(0)[1])
                if header.attributes & CONTROL:
                    skipped.discard(header.producer_id)
                elif not (committed and header.attributes & TRANSACTIONAL and header.producer_id in skipped):
                    found += [(r.offset, r.key, r.value) for r in open_batch(batch) if r.offset >= before]
                offset = header.last_offset + 1
            if offset == before:
                return found

    def values(self, topic: str, *, committed: bool = True) -> list[str]:
        """The values alone, from the log start on."""
        start = self.offset(topic, -2)[2]
        return [
            str(row[2], "utf-8") if row[2] is not None else None
            for row in self.read(topic, start, committed=committed)
        ]

    def offset(
        self, topic: str, timestamp: int, *, committed: bool = False, partition: int = 0, **more: int
    ) -> tuple[str, int | None, int]:
        """ListOffsets: the error, the time of the record found (milliseconds of the case) and its offset."""
        part = {"partition_index": partition, "timestamp": timestamp, **more}
        answer = self.call(
            "ListOffsets",
            10,
            replica_id=-1,
            isolation_level=int(committed),
            topics=[{"name": topic, "partitions": [part]}],
            timeout_ms=10_000,
        )
        found = answer.topics[0].partitions[0]
        at = found.timestamp - now_ms() if found.timestamp >= 0 else None
        return named(found.error_code), at, found.offset

    def span(self, topic: str) -> tuple[int, int]:
        """Log start and end."""
        return self.offset(topic, -2)[2], self.offset(topic, -1)[2]

    def delete_records(self, topic: str, offset: int, partition: int = 0) -> tuple[str, int]:
        part = {"partition_index": partition, "offset": offset}
        answer = self.call(
            "DeleteRecords", 2, topics=[{"name": topic, "partitions": [part]}], timeout_ms=30_000
        )
        found = answer.topics[0].partitions[0]
        return named(found.error_code), found.low_watermark

    # ---- groups ----------------------------------------------------------------------------------------

    def group(self) -> str:
        """The name of a group whose coordinator is there."""
        name = self.fresh("g")
        self.coordinator(name, 0)
        return name

    def coordinator(self, name: str, kind: int) -> None:
        def found() -> bool:
            answer = self.call("FindCoordinator", 4, key_type=kind, coordinator_keys=[name])
            return answer.coordinators[0].error_code == 0

        wait_until(found, what=f"the coordinator of {name}")

    def commit(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 8,
        metadata: str | None = "",
        **more: object,
    ) -> str:
        part = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        topics = [{"name": topic, "partitions": [part]}]

        def ask() -> str:
            answer = self.call("OffsetCommit", version, group_id=group, topics=topics, **more)
            return named(answer.topics[0].partitions[0].error_code)

        return self.settled(ask)

    def committed(self, group: str, *topics: str, stable: bool = False) -> list[tuple]:
        """Topic, error and offset of partition 0 of each; of all that the group has without topics."""
        wanted = [{"name": topic, "partition_indexes": [0]} for topic in topics] or None
        answer = self.call(
            "OffsetFetch", 8, groups=[{"group_id": group, "topics": wanted}], require_stable=stable
        )
        (found,) = answer.groups
        if found.error_code:
            return [(named(found.error_code),)]
        return [
            (topic.name, named(p.error_code), p.committed_offset)
            for topic in found.topics
            for p in topic.partitions
        ]

    def join(
        self, group: str, topics: list[str], instance: str | None = None, session_ms: int = SESSION_MS
    ) -> Member:
        return Member(self, group, topics, instance, session_ms)

    def described(self, group: str, version: int = 6) -> tuple:
        found = self.call("DescribeGroups", version, groups=[group]).groups[0]
        return (
            named(found.error_code),
            found.group_state,
            found.protocol_type,
            found.protocol_data,
            len(found.members),
        )

    def listed(self, group: str, **filters: list[str]) -> list[tuple]:
        answer = self.call("ListGroups", 5, **filters)
        return [
            (g.protocol_type, g.group_state, g.group_type.lower())
            for g in answer.groups
            if g.group_id == group
        ]

    def delete_group(self, group: str) -> str:
        return named(self.call("DeleteGroups", 2, groups_names=[group]).results[0].error_code)

    def delete_offset(self, group: str, topic: str, partition: int = 0) -> tuple[str, ...]:
        topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
        answer = self.call("OffsetDelete", 0, group_id=group, topics=topics)
        parts = [named(p.error_code) for each in answer.topics for p in each.partitions]
        return named(answer.error_code), *parts

    def writer(self, timeout_ms: int = 60_000, name: str = "") -> Writer:
        return Writer(self, name or self.fresh("x"), timeout_ms)
