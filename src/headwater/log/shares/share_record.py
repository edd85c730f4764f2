"""The records of share groups in their internal topic: snapshots of share partitions, updates, and settings.

    key [0, group, topic id, partition]          a snapshot: all runs of a share partition
    key [1, group, topic id, partition, slot]    what has changed since a snapshot
    key [2, group]                               the settings of a group
    key [3, group, topic id, partition, offset]  a pledge: what a transaction settles if it commits
    key [4, group, topic id, partition, number]  a part of a large snapshot, which comes after its parts

Keys and values are msgpack. A snapshot has an epoch, which its updates and parts repeat: those of another
epoch do not count. Within an epoch each update has a slot to itself, and the next epoch uses the slots again.
So compaction, which keeps the newest record of each key, keeps all that counts and a bounded rest. Parts have
even numbers or odd ones: those of a new snapshot leave those of the last one alone until it is complete.
"""

import math
import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from headwater.decoders import from_msgpack
from headwater.errors import UsageError
from headwater.formats import SHARE_STATE
from headwater.queue.ranges import Ranges
from headwater.queue.run import DeliveryState, Run
from headwater.queue.schedule import NEVER_DUE, Due
from headwater.queue.share_facts import Counts, ShareFacts

__all__ = [
    "PART",
    "PLEDGE",
    "SETTINGS",
    "SNAPSHOT",
    "UPDATE",
    "ShareHead",
    "ShareKey",
    "ShareRecord",
    "decode_key",
    "decode_settings",
    "decode_value",
    "key_of",
    "part_key",
    "pledge_key",
    "settings_key",
    "settings_value",
    "slot_key",
    "value_of",
]

SNAPSHOT, UPDATE, SETTINGS, PLEDGE, PART = 0, 1, 2, 3, 4
ROUNDED_MS = 2
"""By how much ``started_ms`` may be too small: no delay ends early."""
WHERE = "a record of __share_group_state"


class ShareKey(NamedTuple):
    """One partition in one group."""

    group: str
    topic_id: uuid.UUID
    partition: int


class ShareHead(NamedTuple):
    """What is said of a share partition beside its runs."""

    epoch: int
    start: int
    facts: ShareFacts | None = None
    """None in an update if they are as before."""
    keys: Sequence[tuple[int, int]] = ()
    """The hash of each key with deferred records, and the first offset of these; in an update what is new."""
    cancelled: Sequence[tuple[int, int]] = ()
    """Ranges that were cancelled; in an update those that are new."""
    parts: int = 0
    """How many records before a snapshot have the first ones of its runs."""
    is_odd: bool = False
    """Whether the numbers of these are odd."""


class ShareRecord(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot or an update. From ``facts`` on, its fields came with format 2."""

    format: int
    epoch: int
    start: int
    runs: list[tuple[int, int, int, int, int, int]]
    """First and last offset, state, deliveries, size of the first delivery, wall time when a delay ends."""
    facts: "_Facts | None" = None
    """None in an update if they are as before."""
    keys: Sequence[tuple[int, int]] = ()
    cancelled: Sequence[tuple[int, int]] = ()
    parts: int = 0
    """How many records before a snapshot have the first ones of its runs."""
    is_odd: bool = False
    """Whether the numbers of these are odd."""

    @property
    def share_facts(self) -> ShareFacts:
        facts = self.facts or _Facts()
        ahead, counts, due_to, *parked = msgspec.structs.astuple(facts)
        return ShareFacts(Ranges.of(ahead), Counts(*counts), Due(*due_to), *parked)

    def decoded_runs(self, started_ms: int) -> list[Run]:
        """The runs, for a clock that was 0 at ``started_ms``."""
        return [
            Run(first, last, DeliveryState(state), deliveries, size, "", _elapsed(due_ms, started_ms))
            for first, last, state, deliveries, size, due_ms in self.runs
        ]


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    settled_ahead: tuple[tuple[int, int], ...] = ()
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    due_to: tuple[int, int] = NEVER_DUE
    scan_from: int = -1
    scheduled: int = 0
    parked: int = 0


class _Key(msgspec.Struct, frozen=True, array_like=True):
    kind: int
    group: str
    topic_id: bytes = b""
    partition: int = 0
    slot: int = 0


class _Settings(msgspec.Struct, frozen=True, array_like=True):
    format: int
    config: dict[str, str]


class _Format(msgspec.Struct, frozen=True, array_like=True):
    format: int


def key_of(key: ShareKey) -> bytes:
    return msgspec.msgpack.encode((SNAPSHOT, key.group, key.topic_id.bytes, key.partition))


def slot_key(key: ShareKey, slot: int) -> bytes:
    return msgspec.msgpack.encode((UPDATE, key.group, key.topic_id.bytes, key.partition, slot))


def part_key(key: ShareKey, number: int) -> bytes:
    return msgspec.msgpack.encode((PART, key.group, key.topic_id.bytes, key.partition, number))


def pledge_key(key: ShareKey, first: int) -> bytes:
    return msgspec.msgpack.encode((PLEDGE, key.group, key.topic_id.bytes, key.partition, first))


def settings_key(group: str) -> bytes:
    return msgspec.msgpack.encode((SETTINGS, group))


def value_of(head: ShareHead, runs: Sequence[Run], started_ms: int) -> bytes:
    """A snapshot or an update, with wall times for delays; the runs' clock was 0 at ``started_ms``."""
    compact = [
        (run.first, run.last, int(run.state), run.deliveries, run.batch_size, _due_ms(run, started_ms))
        for run in runs
    ]
    facts = None if head.facts is None else _Facts(*head.facts)
    record = ShareRecord(SHARE_STATE.newest, head.epoch, head.start, compact, facts, *head[3:])
    return msgspec.msgpack.encode(record)


def _due_ms(run: Run, started_ms: int) -> int:
    if run.state is not DeliveryState.DELAYED:
        return 0
    return started_ms + math.ceil(run.deadline * 1000) + ROUNDED_MS


def _elapsed(due_ms: int, started_ms: int) -> float:
    return (due_ms - started_ms) / 1000 if due_ms else 0.0


def settings_value(config: dict[str, str]) -> bytes:
    return msgspec.msgpack.encode(_Settings(SHARE_STATE.newest, config))


def decode_key(data: bytes) -> tuple[int, ShareKey, int]:
    """The kind, the share partition, and the slot, offset or number; settings have a group only.

    Raises UsageError for a kind that only a newer version can have written.
    """
    key = from_msgpack(data, _Key)
    if key.kind > PART:
        what = f"{WHERE} was written by a newer Headwater"
        hint = f"install that version again, or {SHARE_STATE.remedy}"
        raise UsageError(what, got=f"a key of kind {key.kind}", expected=f"at most {PART}", hint=hint)
    topic_id = uuid.UUID(bytes=key.topic_id) if key.topic_id else uuid.UUID(int=0)
    return key.kind, ShareKey(key.group, topic_id, key.partition), key.slot


def decode_value(data: bytes) -> ShareRecord:
    """Raises UsageError if a newer version has written it."""
    SHARE_STATE.check(from_msgpack(data, _Format).format, WHERE)
    return from_msgpack(data, ShareRecord)


def decode_settings(data: bytes) -> dict[str, str]:
    SHARE_STATE.check(from_msgpack(data, _Format).format, WHERE)
    return from_msgpack(data, _Settings).config
