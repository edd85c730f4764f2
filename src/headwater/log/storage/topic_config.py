"""Settings of a topic: Kafka's names, Kafka's defaults, Kafka's checks."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from headwater.errors import ErrorCode, RequestError

__all__ = ["TopicConfig", "parse_config"]

FOREVER = 2**63 - 1

Count = Annotated[int, msgspec.Meta(ge=0)]
Limit = Annotated[int, msgspec.Meta(ge=-1)]
"""-1 means no limit."""


class TopicConfig(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", ".")):
    """All settings of a topic.

    Those in WITHOUT_EFFECT are stored and shown, because tools set them, but do nothing.
    """

    cleanup_policy: str = "delete"
    compression_type: Literal["producer"] = "producer"
    delete_retention_ms: Count = 86_400_000
    file_delete_delay_ms: Count = 60_000
    flush_messages: Count = FOREVER
    flush_ms: Count = FOREVER
    headwater_durable: bool = True
    """Ours: false keeps the topic in memory only, and it is lost with the process."""
    index_interval_bytes: Count = 4096
    max_compaction_lag_ms: Annotated[int, msgspec.Meta(ge=1)] = FOREVER
    max_message_bytes: Count = 1_048_588
    message_timestamp_after_max_ms: Count = 3_600_000
    message_timestamp_before_max_ms: Count = FOREVER
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    min_cleanable_dirty_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    min_compaction_lag_ms: Count = 0
    min_insync_replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: Limit = 604_800_000
    segment_bytes: Annotated[int, msgspec.Meta(ge=14)] = 1_073_741_824
    segment_index_bytes: Count = 10_485_760
    segment_jitter_ms: Count = 0
    segment_ms: Annotated[int, msgspec.Meta(ge=1)] = 604_800_000
    unclean_leader_election_enable: bool = False

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def segment_ms_max(self) -> int:
        """The age at which a segment is closed; its records cannot be compacted before."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms

    @property
    def appends_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    def texts(self) -> dict[str, str]:
        """Every setting as Kafka's tools show it."""
        values = msgspec.to_builtins(self)
        return {
            key: str(value).lower() if isinstance(value, bool) else str(value)
            for key, value in values.items()
        }


WITHOUT_EFFECT = frozenset(
    {
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "min.insync.replicas",
        "preallocate",
        "segment.index.bytes",
        "segment.jitter.ms",
        "unclean.leader.election.enable",
    }
)

LISTS = frozenset({"cleanup.policy"})
POLICIES = frozenset({"compact", "delete"})


def parse_config(config: Mapping[str, str]) -> TopicConfig:
    """Checks the settings of a topic; raises RequestError with INVALID_CONFIG."""
    unknown = config.keys() - set(TopicConfig.__struct_encode_fields__)
    if unknown:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {min(unknown)}")
    try:
        parsed = msgspec.convert(dict(config), TopicConfig, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"Invalid value for configuration: {error}") from error
    policies = {policy.strip() for policy in parsed.cleanup_policy.split(",")}
    if parsed.cleanup_policy and not policies <= POLICIES:
        raise RequestError(
            ErrorCode.INVALID_CONFIG,
            f"cleanup.policy is {parsed.cleanup_policy!r}, expected some of {sorted(POLICIES)}",
        )
    if parsed.min_compaction_lag_ms > parsed.max_compaction_lag_ms:
        what = f"min.compaction.lag.ms {parsed.min_compaction_lag_ms} is larger than max.compaction.lag.ms"
        raise RequestError(ErrorCode.INVALID_CONFIG, f"{what}, {parsed.max_compaction_lag_ms}")
    return parsed
