"""A member of a share group, one request at a time, as the cases that run on both logs see it."""

import time
import uuid
from typing import Any

from clients.answers import named
from clients.onelog import Log
from support.wire import Wire

__all__ = ["ACCEPT", "GAP", "REJECT", "RELEASE", "RENEW", "Sharer", "configured"]

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
GROUP = 32
WAIT_S = 30.0


def configured(log: Log, group: str, **config: str) -> str:
    """Sets settings of a group, whose names are written with ``_``."""
    changes = [
        {"name": "share." + key.replace("_", "."), "value": value, "config_operation": 0}
        for key, value in config.items()
    ]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": changes}
    answer = log.call("IncrementalAlterConfigs", 1, resources=[resource])
    return named(answer.responses[0].error_code)


class Sharer:
    """Joins a group, and counts the epochs of its session up."""

    def __init__(self, log: Log, group: str, topic: str, wire: Wire | None = None) -> None:
        self.log, self.group, self.topic, self.wire = log, group, topic, wire or log.wire
        self.id = str(uuid.uuid4())
        self.epoch = 0
        self.topic_id = log.metadata(topic)[1].topic_id

    def call(self, name: str, version: int, **fields: object) -> Any:
        return self.wire.call(name, version, **fields)

    def join(self) -> "Sharer":
        """Until it has its partitions."""
        limit, epoch = time.monotonic() + WAIT_S, 0
        while time.monotonic() < limit:
            answer = self.beat(epoch)
            if answer.error_code == 0 and answer.assignment is not None:
                epoch = answer.member_epoch
                if answer.assignment.topic_partitions:
                    return self
            time.sleep(0.1)
        raise TimeoutError(f"{self.group}: no partitions")

    def beat(self, epoch: int, **fields: object) -> Any:
        asked = {"member_id": self.id, "member_epoch": epoch, "subscribed_topic_names": [self.topic]} | fields
        return self.call("ShareGroupHeartbeat", 1, group_id=self.group, **asked)

    def leave(self) -> str:
        return named(self.beat(-1, subscribed_topic_names=None).error_code)

    def ask(self, acks: list = (), **fields: object) -> Any:
        """One fetch, and its whole answer."""
        epoch = fields.pop("share_session_epoch", self.epoch)
        part = {"partition_index": 0, "acknowledgement_batches": _batches(acks)}
        asked = {
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
        }
        asked |= {"topics": [{"topic_id": self.topic_id, "partitions": [part]}]} | fields
        names = {"group_id": self.group, "member_id": self.id, "share_session_epoch": epoch}
        answer = self.call("ShareFetch", 2, **names, **asked)
        if answer.error_code == 0:
            self.epoch = epoch + 1 if epoch >= 0 else 0
        return answer

    def fetch(self, count: int, **fields: object) -> list[tuple[int, int]]:
        """Offsets and delivery counts, until there are so many or nothing comes for a while."""
        found: list[tuple[int, int]] = []
        limit = time.monotonic() + (WAIT_S if count else 1.0)
        while len(found) < count and time.monotonic() < limit:
            found += self.once(**fields)
        return sorted(found)

    def once(self, **fields: object) -> list[tuple[int, int]]:
        """What one fetch gets."""
        answer = self.ask(**fields)
        assert answer.error_code == 0, answer
        return [
            (offset, each.delivery_count)
            for topic in answer.responses
            for part in topic.partitions
            for each in part.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        ]

    def acknowledge(self, *acks: tuple, **fields: object) -> str:
        epoch = fields.pop("share_session_epoch", self.epoch)
        parts = [{"partition_index": 0, "acknowledgement_batches": _batches(acks)}]
        topics = [{"topic_id": self.topic_id, "partitions": parts}] if acks else []
        names = {"group_id": self.group, "member_id": self.id, "share_session_epoch": epoch}
        answer = self.call("ShareAcknowledge", 2, **names, **({"topics": topics} | fields))
        if answer.error_code:
            return named(answer.error_code)
        self.epoch = epoch + 1 if epoch >= 0 else 0
        codes = [part.error_code for topic in answer.responses for part in topic.partitions]
        return " ".join(map(named, codes))


def _batches(acks) -> list[dict]:
    return [
        {
            "first_offset": first,
            "last_offset": last,
            "acknowledge_types": kinds if isinstance(kinds, list) else [kinds],
        }
        for first, last, kinds in acks
    ]
