"""ShareSession: what a member and one broker have told each other, as requests and answers. No I/O (KIP-932).

epoch 0     the first fetch, which names all partitions
epoch E     what has changed: partitions that are new or no longer fetched, and acknowledgements
epoch -1    ends the session, after its acknowledgements
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from headwater.client.bulk.connection import compose
from headwater.protocol.kafka.codec import Message

__all__ = ["Ack", "AckKind", "Acks", "Place", "ShareSession", "TransactionIdentity", "spans"]

FETCH_BYTES = 4 << 20
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
WITHIN_RECORDS_MAX = 1
"""The mode in which a fetch never gets more records than it asks for."""

Place = tuple[uuid.UUID, int]
"""The id of a topic, and the number of a partition."""


class AckKind(IntEnum):
    """Kafka's numbers."""

    GAP = 0
    """Nothing is at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class Ack(NamedTuple):
    """What is said about one record."""

    offset: int
    kind: AckKind
    delay_ms: int = 0
    """Of a release: not delivered again before. Only the embedded log does that."""
    uncounted: bool = False
    """Of a release: the delivery does not count. Only the embedded log does that."""


Acks = Mapping[Place, list[Ack]]


class TransactionIdentity(NamedTuple):
    """The transaction with which acknowledgements take effect."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class ShareSession:
    """The session of a member at one broker. Requests are to be sent in the order in which they are made."""

    def __init__(self, group: str, member: str) -> None:
        self._names = {"group_id": group, "member_id": member}
        self._epoch = 0
        self._wanted: set[Place] = set()
        self._named: set[Place] = set()
        """The partitions that the broker knows to be fetched."""
        self._acks: dict[Place, list[Ack]] = {}
        self._renewals: dict[Place, list[Ack]] = {}
        self._singles: list[tuple[Place, Ack]] = []

    @property
    def has_begun(self) -> bool:
        return self._epoch > 0

    @property
    def wanted(self) -> Collection[Place]:
        return self._wanted

    @property
    def has_acks(self) -> bool:
        return bool(self._acks or self._renewals or self._singles)

    @property
    def has_more(self) -> bool:
        """Whether something is to be told that a fetch does not carry."""
        return bool(self._renewals or self._singles)

    def want(self, places: Iterable[Place]) -> None:
        """From now on these partitions are fetched, and no others."""
        self._wanted = set(places)

    def acknowledge(self, place: Place, acks: Iterable[Ack]) -> None:
        """With the next request. A lock that is to be renewed and ends with this is not renewed."""
        for ack in acks:
            kept = self._renewals if ack.kind is AckKind.RENEW else self._acks
            kept.setdefault(place, []).append(ack)
            if ack.kind is not AckKind.RENEW and self._renewals:
                of_others = [each for each in self._renewals.get(place, ()) if each.offset != ack.offset]
                self._renewals[place] = of_others
                if not of_others:
                    del self._renewals[place]

    def note_gaps(self, place: Place, offsets: Iterable[int]) -> None:
        """Nothing is at these offsets, which would be delivered again and again."""
        self.acknowledge(place, (Ack(offset, AckKind.GAP) for offset in offsets))

    def fetch(self, records_max: int, wait_ms: int) -> tuple[Message, Acks]:
        """A request for records, and the acknowledgements that it carries. Renewals do not go with it."""
        acks, self._acks = self._acks, {}
        changed = {*(self._wanted - self._named), *acks}
        dropped = self._named - self._wanted
        self._named = set(self._wanted)
        request = compose(
            "ShareFetch",
            **self._names,
            share_session_epoch=self._next_epoch(),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=records_max,
            batch_size=records_max,
            share_acquire_mode=WITHIN_RECORDS_MAX,
            topics=_topics("ShareFetch", {place: acks.get(place, []) for place in changed}),
            forgotten_topics_data=[
                compose("ShareFetch", "forgotten_topics_data", topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in _by_topic(dropped)
            ],
        )
        return request, acks

    def tell(self) -> tuple[Message, Acks]:
        """A request with acknowledgements, or if there are none with renewals, or else with single ones."""
        if self._acks or not (self._renewals or self._singles):
            acks, self._acks = self._acks, {}
            return self._told(acks), acks
        if self._renewals:
            acks, self._renewals = self._renewals, {}
            return self._told(acks, is_renew_ack=True), acks
        acks = {}
        for place, ack in list(self._singles):
            if place not in acks:
                acks[place] = [ack]
                self._singles.remove((place, ack))
        renewing = any(said[0].kind is AckKind.RENEW for said in acks.values())
        return self._told(acks, is_renew_ack=renewing), acks

    def tell_singly(self, place: Place, acks: Iterable[Ack]) -> None:
        """Again, each by itself: a broker refuses all that is said of a partition if one of them is wrong."""
        self._singles.extend((place, ack) for ack in acks)

    def tell_in_transaction(self, acks: Acks, identity: TransactionIdentity) -> Message:
        """A request whose acknowledgements take effect when a transaction commits."""
        return self._told(acks, **identity._asdict())

    def end(self) -> tuple[Message, Acks]:
        """The last request, with the acknowledgements that are left."""
        self._epoch = FINAL_EPOCH
        self._renewals, self._singles = {}, []
        return self.tell()

    def _told(self, acks: Acks, **fields: Any) -> Message:
        return compose(
            "ShareAcknowledge",
            **self._names,
            share_session_epoch=self._next_epoch(),
            topics=_topics("ShareAcknowledge", acks),
            **fields,
        )

    def _next_epoch(self) -> int:
        epoch = self._epoch
        if epoch != FINAL_EPOCH:
            self._epoch = epoch + 1 if epoch < EPOCH_MAX else 1
        return epoch


def spans(acks: Iterable[Ack]) -> Iterator[tuple[int, int, Ack]]:
    """First and last offset of consecutive records of which the same is said."""
    first: Ack | None = None
    last = -1
    for ack in sorted(acks):
        if first is not None and ack.offset == last + 1 and ack[1:] == first[1:]:
            last = ack.offset
            continue
        if first is not None:
            yield first.offset, last, first
        first, last = ack, ack.offset
    if first is not None:
        yield first.offset, last, first


def _topics(api: str, acks: Acks) -> list[Message]:
    return [
        compose(
            api,
            "topics",
            topic_id=topic_id,
            partitions=[
                compose(
                    api,
                    "topics.partitions",
                    partition_index=number,
                    acknowledgement_batches=[
                        _batch(api, first, last, ack) for first, last, ack in spans(acks[topic_id, number])
                    ],
                )
                for number in numbers
            ],
        )
        for topic_id, numbers in _by_topic(acks)
    ]


def _batch(api: str, first: int, last: int, ack: Ack) -> Message:
    return compose(
        api,
        "topics.partitions.acknowledgement_batches",
        first_offset=first,
        last_offset=last,
        acknowledge_types=[ack.kind],
        delay_ms=ack.delay_ms,
        uncounted=ack.uncounted,
    )


def _by_topic(places: Iterable[Place]) -> list[tuple[uuid.UUID, list[int]]]:
    numbers: dict[uuid.UUID, list[int]] = {}
    for topic_id, number in sorted(places):
        numbers.setdefault(topic_id, []).append(number)
    return list(numbers.items())
