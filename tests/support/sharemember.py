"""A member of a share group that speaks to the handlers of a broker directly."""

from headwater.protocol.kafka.codec import Message
from headwater.record import open_batch, whole_batches
from support.protocol import Client

GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
GROUP = 32

Ack = tuple[int, int, int | list[int]] | tuple[int, int, int, int, bool]
"""First and last offset, one type for all or one for each, and of a release: its delay, and whether it is uncounted."""


async def configure(client: Client, group: str, **config: str) -> int:
    """Sets settings of a group, whose names are written with ``_``; returns the error code."""
    changes = [
        {
            "name": key if "." in key else "share." + key.replace("_", "."),
            "value": value,
            "config_operation": 0,
        }
        for key, value in config.items()
    ]
    resource = {"resource_type": GROUP, "resource_name": group, "configs": changes}
    answer = await client.call("IncrementalAlterConfigs", 1, resources=[resource])
    return answer.responses[0].error_code


class ShareMember:
    """Counts the epochs of its session up, as clients do."""

    def __init__(self, client: Client, name: str = "m", group: str = "g", version: int = 2) -> None:
        self.client, self.name, self.group, self.version = client, name, group, version
        self.epoch = 0

    def topic_id(self, topic: str = "t"):
        return self.client.broker.catalog.topics[topic].id

    async def fetch(self, *acks: Ack, topic: str = "t", partitions=(0,), **fields) -> dict[int, Message]:
        """What the answer says of each partition."""
        parts = [{"partition_index": p, "acknowledgement_batches": batches(acks)} for p in partitions]
        fields.setdefault("topics", [{"topic_id": self.topic_id(topic), "partitions": parts}])
        answer = await self.ask(**fields)
        assert answer.error_code == 0, answer
        return {p.partition_index: p for t in answer.responses for p in t.partitions}

    async def ask(self, **fields) -> Message:
        """The whole answer to a fetch."""
        epoch = fields.pop("share_session_epoch", self.epoch)
        asked = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "max_records": 500} | fields
        names = {"group_id": self.group, "member_id": self.name, "share_session_epoch": epoch}
        answer = await self.client.call("ShareFetch", self.version, **names, **asked)
        if answer.error_code == 0:
            self.epoch = epoch + 1 if epoch >= 0 else 0
        return answer

    async def acknowledge(self, *acks: Ack, topic: str = "t", partition: int = 0, **fields) -> int:
        """The error code of the partition, or of the whole answer."""
        parts = [{"partition_index": partition, "acknowledgement_batches": batches(acks)}]
        epoch = fields.pop("share_session_epoch", self.epoch)
        names = {"group_id": self.group, "member_id": self.name, "share_session_epoch": epoch}
        topics = [{"topic_id": self.topic_id(topic), "partitions": parts}] if acks else []
        answer = await self.client.call("ShareAcknowledge", self.version, **names, topics=topics, **fields)
        if answer.error_code:
            return answer.error_code
        self.epoch = epoch + 1 if epoch >= 0 else 0
        return answer.responses[0].partitions[0].error_code if acks else 0


def batches(acks) -> list[dict]:
    return [
        {
            "first_offset": first,
            "last_offset": last,
            "acknowledge_types": kinds if isinstance(kinds, list) else [kinds],
            **dict(zip(("delay_ms", "uncounted"), release, strict=False)),
        }
        for first, last, kinds, *release in acks
    ]


def acquired(part: Message) -> list[tuple[int, int, int]]:
    """First offset, last offset and delivery count of what was locked."""
    return [(a.first_offset, a.last_offset, a.delivery_count) for a in part.acquired_records]


def values(part: Message) -> list[bytes | None]:
    return [record.value for batch in whole_batches(part.records) for record in open_batch(batch)]
