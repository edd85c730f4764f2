"""ReceiverHealth: whether a receiver is called, and how long it has accepted nothing."""

import logging
import random

from headwater.clock import Clock
from headwater.sink.effects.effect import Dead, Delivered, Gone, JournalEntry, Outcome
from headwater.sink.effects.life import RECEIVER_LIFE, DeliveryEvent, ReceiverState
from headwater.sink.effects.schedule import is_last, probe_ms

__all__ = ["ReceiverHealth"]

DISABLED_AFTER_MS = 5 * 24 * 3_600_000
"""A receiver that has accepted nothing for so long is disabled."""

logger = logging.getLogger(__name__)


class ReceiverHealth:
    """The state of one receiver. Guarded by the courier's lock."""

    def __init__(self, name: str, clock: Clock, chance: random.Random) -> None:
        self._name = name
        self._clock = clock
        self._chance = chance
        self._state = ReceiverState.ACTIVE
        self._was_called = False
        """Whether the receiver was called in this process: then its health is known."""
        self.reason = ""
        """Why the receiver is disabled; empty while it is active."""
        self.failing_since_ms: int | None = None
        """Since when the receiver has accepted nothing; None if it has accepted the last effect."""
        self.probe_due_ms: int | None = None
        """When a receiver that is probed gets its next effect."""

    @property
    def is_disabled(self) -> bool:
        return self._state is not ReceiverState.ACTIVE

    def may_call(self) -> bool:
        if self._state is ReceiverState.PROBED:
            return self.probe_due_ms is not None and self.probe_due_ms <= self._clock.now_ms()
        return self._state is ReceiverState.ACTIVE

    def resume(self, since_ms: int | None) -> None:
        """Takes over, from a mark in the journal, since when the receiver has accepted nothing."""
        if not self._was_called and since_ms is not None:
            self.failing_since_ms = min(since_ms, self.failing_since_ms or since_ms, self._clock.now_ms())

    def called(self) -> None:
        """An effect is about to be delivered: one that is probed gets the next one much later."""
        if self._state is ReceiverState.PROBED:
            self.probe_due_ms = self._clock.now_ms() + probe_ms(self._chance)

    def event(self, entry: JournalEntry, outcome: Outcome) -> DeliveryEvent:
        """The event for an outcome.

        A failure also depends on earlier ones of the effect and of the receiver.
        """
        self._was_called = True
        match outcome:
            case Delivered():
                self.failing_since_ms = None
                return DeliveryEvent.ACCEPTED
            case Dead():
                return DeliveryEvent.REJECTED
            case Gone():
                return DeliveryEvent.CLOSED
        now_ms = self._clock.now_ms()
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        if now_ms - self.failing_since_ms >= DISABLED_AFTER_MS:
            return DeliveryEvent.LONG_FAILED
        return DeliveryEvent.EXHAUSTED if is_last(entry.attempts + 1) else DeliveryEvent.FAILED

    def move(self, event: DeliveryEvent, reason: str, asked_s: float) -> None:
        """Moves to the next state.

        ``reason`` is that of the outcome, ``asked_s`` the pause that the receiver wants.
        """
        before = self._state
        self._state = RECEIVER_LIFE[before].get(event, before)
        if event is DeliveryEvent.LONG_FAILED and self._state is ReceiverState.PROBED:
            self.probe_due_ms = self._clock.now_ms() + probe_ms(self._chance, asked_s)
            reason = f"it has failed for five days, the last time with {reason}"
        if self._state is before:
            return
        if self._state is ReceiverState.ACTIVE:
            self.reason, self.probe_due_ms = "", None
            logger.warning("%s accepts effects again; those that wait for it are delivered", self._name)
            return
        if self._state is ReceiverState.CLOSED:
            self.probe_due_ms = None
        if before is ReceiverState.ACTIVE:
            self.reason = reason
            is_probed = self._state is ReceiverState.PROBED
            later = "it gets one effect every 10 hours" if is_probed else "a restart calls it again"
            logger.error(
                "%s is disabled: %s; effects that wait for it are kept, and %s",
                self._name,
                reason.partition(": ")[0],
                later,
            )
