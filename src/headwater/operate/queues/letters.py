"""Letters: the dead letters of a queue, held for a while by the one who decides about them.

They are a queue of their own, the share group ``<queue>.dead`` on the topic of that name: a letter that was
moved is settled there. What is held and not moved is given back, and that does not count as a delivery.
"""

from collections.abc import Sequence
from concurrent.futures import Future

from headwater.access import Log
from headwater.client.share.consumer import ShareConsumer
from headwater.client.share.group_settings import has_queues, set_group_settings
from headwater.client.share.link import Delivery
from headwater.client.share.membership import Membership, new_member_id
from headwater.client.share.session import Ack, AckKind, Place, TransactionIdentity
from headwater.clock import Clock
from headwater.errors import MachineError

__all__ = ["Letters"]

LOCKS_MAX = 10_000
"""So many letters are held at most: those that are looked at and not moved are among them. Apache Kafka has a
lower limit of its own."""
LOCK_S = 60.0
RENEW_S = 10.0
DELIVERIES_MAX, KAFKA_DELIVERIES_MAX = 25, 10
"""What the logs allow at most."""
SPARE_DELIVERIES = 5
"""A letter that was taken so often that fewer are left was in the hands of processes that died with it."""
START_S = 30.0
TURN_S = 0.5
WAIT_MS = 200
EMPTY_FETCHES = 2
"""After so many there is nothing more."""
CLOSE_S = 10.0


class Letters:
    """Belongs to one thread. Raises MachineError if the log does not answer."""

    def __init__(self, log: Log, queue: str, clock: Clock) -> None:
        self.queue = queue
        self._clock = clock
        self.is_embedded = has_queues(log, queue, {"headwater.queue": "false"})
        """Whether what is accepted can be part of a transaction."""
        self._deliveries_max = DELIVERIES_MAX if self.is_embedded else KAFKA_DELIVERIES_MAX
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed",
            "share.delivery.count.limit": str(self._deliveries_max),
            "share.record.lock.duration.ms": str(round(LOCK_S * 1000)),
        }
        if self.is_embedded:
            settings["share.partition.max.record.locks"] = str(LOCKS_MAX)
        set_group_settings(log, queue, settings)
        self._consumer = ShareConsumer(log, queue, new_member_id(), clock)
        self._membership = Membership(
            log,
            queue,
            self._consumer.member,
            [queue],
            on_change=self._consumer.assign,
            on_end=self._consumer.wake,
            clock=clock,
        )
        self._held: dict[tuple[Place, int], Delivery] = {}
        self._renewed = clock.monotonic()
        self._membership.start()

    def take(self, count: int) -> list[Delivery]:
        """The next letters in their order, ``count`` at most; none if there are no more."""
        empty, limit = 0, self._clock.monotonic() + START_S
        while empty < EMPTY_FETCHES:
            taken = self._turn(count)
            if taken:
                return taken
            if self._consumer.is_connected and not self._consumer.is_fetching:
                empty += 1
            elif not self._consumer.is_connected and self._clock.monotonic() > limit:
                why = self._consumer.trouble or self._membership.trouble or "no partition was assigned"
                raise MachineError(f"the letters of {self.queue} cannot be read", got=why)
        return []

    def accept(self, letters: Sequence[Delivery]) -> None:
        """Settles letters, when the next request is sent."""
        for letter in letters:
            self._held.pop((letter.place, letter.record.offset))
            self._consumer.acknowledge(letter.place, Ack(letter.record.offset, AckKind.ACCEPT))

    def accept_with(self, letters: Sequence[Delivery], identity: TransactionIdentity) -> None:
        """Settles letters when a transaction commits. The log knows when this returns."""
        acks: dict[Place, list[Ack]] = {}
        for letter in letters:
            acks.setdefault(letter.place, []).append(Ack(letter.record.offset, AckKind.ACCEPT))
        self._await(self._consumer.in_transaction(acks, identity))
        for letter in letters:
            self._held.pop((letter.place, letter.record.offset))

    def pause(self, seconds: float) -> None:
        """Waits, and keeps what is held."""
        limit = self._clock.monotonic() + seconds
        while (left := limit - self._clock.monotonic()) > 0:
            self._turn(0, left)

    def close(self) -> None:
        """Gives back what is held."""
        for place, offset in self._held:
            self._consumer.acknowledge(place, Ack(offset, AckKind.RELEASE, uncounted=True))
        self._consumer.close(CLOSE_S)
        self._membership.stop()

    def _turn(self, count: int, timeout_s: float = TURN_S) -> list[Delivery]:
        if self._membership.failure is not None:
            raise self._membership.failure
        self._renew()
        turn = self._consumer.turn(count, WAIT_MS, min(timeout_s, TURN_S))
        if turn.lost and self._held:
            raise MachineError(
                f"the connection to the letters of {self.queue} was lost",
                hint="what was not moved is still there: repeat the command",
            )
        for letter in turn.deliveries:
            self._held[letter.place, letter.record.offset] = letter
            if letter.deliveries > self._deliveries_max - SPARE_DELIVERIES:
                raise MachineError(
                    f"letter {letter.topic}-{letter.place[1]}-{letter.record.offset} was taken"
                    f" {letter.deliveries - 1} times by commands that did not end",
                    hint=f"headwater consume {self.queue} --from {letter.record.offset} --count 1 shows it",
                )
        return turn.deliveries

    def _renew(self) -> None:
        now = self._clock.monotonic()
        if now - self._renewed >= RENEW_S:
            self._renewed = now
            for place, offset in self._held:
                self._consumer.acknowledge(place, Ack(offset, AckKind.RENEW))

    def _await(self, answered: "Future[None]") -> None:
        while not answered.done():
            self._turn(0)
        try:
            answered.result()
        except (OSError, RuntimeError) as error:
            raise MachineError("letters cannot be accepted", got=str(error)) from error
