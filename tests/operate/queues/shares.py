"""Queues for tests of what looks after them: a topic, its share group, and members that hold messages."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient

from headwater.client.client import producer
from headwater.client.share.consumer import ShareConsumer
from headwater.client.share.group_settings import set_group_settings
from headwater.client.share.link import Delivery
from headwater.client.share.membership import Membership, new_member_id
from headwater.client.share.session import Ack, AckKind
from support.servers import create_topic, wait_until

__all__ = ["Member", "Queue"]


class Queue:
    """A share group that reads one topic from its start."""

    def __init__(self, bootstrap: str, partitions: int = 1, **settings: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"mails-{uuid.uuid4().hex[:8]}"
        self.name = f"mailer-{uuid.uuid4().hex[:8]}"
        create_topic(AdminClient({"bootstrap.servers": bootstrap}), self.topic, partitions)
        set_group_settings(bootstrap, self.name, {"share.auto.offset.reset": "earliest", **settings})

    def produce(self, *values: bytes | str, key: str | None = None, **options) -> None:
        sender = producer(self.bootstrap)
        for value in values:
            sender.produce(self.topic, value, key, **options)
        assert sender.flush(60) == 0

    @contextmanager
    def member(self) -> "Iterator[Member]":
        consumer = ShareConsumer(self.bootstrap, self.name, new_member_id())
        membership = Membership(
            self.bootstrap, self.name, consumer.member, [self.topic], on_change=consumer.assign
        )
        membership.start()
        try:
            yield Member(consumer)
        finally:
            consumer.close(10)
            membership.stop()

    def settle(self, count: int) -> list[int]:
        """Accepts the first messages; returns their offsets."""
        with self.member() as member:
            return member.settle(count)


class Member:
    """Holds as many messages as a test wants."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self._consumer = consumer
        self.held: list[Delivery] = []

    def hold(self, count: int) -> list[int]:
        """So many further messages; returns their offsets."""
        taken: list[Delivery] = []

        def enough() -> bool:
            taken.extend(self._consumer.turn(count - len(taken), 100, 0.2).deliveries)
            return len(taken) >= count

        wait_until(enough, what=f"{count} messages")
        self.held += taken
        return [delivery.record.offset for delivery in taken]

    def say(self, kind: AckKind, delay_ms: int = 0) -> None:
        """About everything that is held; returns when the log knows."""
        for delivery in self.held:
            self._consumer.acknowledge(delivery.place, Ack(delivery.record.offset, kind, delay_ms))
        self.held.clear()

        def settled() -> bool:
            self._consumer.turn(0, 0, 0.2)
            return self._consumer.is_settled

        wait_until(settled, what="answers to all acknowledgements")

    def settle(self, count: int) -> list[int]:
        offsets = self.hold(count)
        self.say(AckKind.ACCEPT)
        return offsets
