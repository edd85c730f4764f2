"""The lives of an effect and of its receiver, as the tables that the courier follows.

``docs/effects.md`` shows them.
"""

from collections.abc import Mapping
from enum import Enum

__all__ = ["EFFECT_LIFE", "RECEIVER_LIFE", "DeliveryEvent", "EffectState", "ReceiverState"]


class EffectState(Enum):
    """Where an effect is, from its entry in the journal on: a word for it, and its meaning."""

    WAITING = ("waiting", "it is in the journal, and waits for its time or for earlier effects of its key")
    IN_FLIGHT = ("in flight", "the receiver is being called with it")
    DELIVERED = ("delivered", "the receiver has it; the journal has its tombstone")
    DEAD = ("dead", "it is in the dead letters with the reason; the journal has its tombstone")


class ReceiverState(Enum):
    """Whether a receiver is called: a word for it, and its meaning. It is active after every start."""

    ACTIVE = ("active", "it gets every effect when it is due")
    PROBED = ("probed", "it is disabled, and gets one effect every 10 hours")
    CLOSED = ("closed", "it is disabled, and is not called until a restart")


class DeliveryEvent(Enum):
    """What happens to an effect: it is due, or an attempt has ended."""

    DUE = "its time has come, and the receiver may be called"
    ACCEPTED = "the receiver accepts an effect"
    REJECTED = "the effect can never be delivered"
    FAILED = "an attempt fails"
    EXHAUSTED = "the last attempt fails"
    LONG_FAILED = "an attempt fails, and the receiver has accepted nothing for 5 days"
    CLOSED = "the receiver wants no effects any more"


EFFECT_LIFE: Mapping[EffectState, Mapping[DeliveryEvent, EffectState]] = {
    EffectState.WAITING: {DeliveryEvent.DUE: EffectState.IN_FLIGHT},
    EffectState.IN_FLIGHT: {
        DeliveryEvent.ACCEPTED: EffectState.DELIVERED,
        DeliveryEvent.REJECTED: EffectState.DEAD,
        DeliveryEvent.FAILED: EffectState.WAITING,
        DeliveryEvent.EXHAUSTED: EffectState.DEAD,
        DeliveryEvent.LONG_FAILED: EffectState.WAITING,
        DeliveryEvent.CLOSED: EffectState.WAITING,
    },
    EffectState.DELIVERED: {},
    EffectState.DEAD: {},
}
RECEIVER_LIFE: Mapping[ReceiverState, Mapping[DeliveryEvent, ReceiverState]] = {
    ReceiverState.ACTIVE: {
        DeliveryEvent.LONG_FAILED: ReceiverState.PROBED,
        DeliveryEvent.CLOSED: ReceiverState.CLOSED,
    },
    ReceiverState.PROBED: {
        DeliveryEvent.ACCEPTED: ReceiverState.ACTIVE,
        DeliveryEvent.CLOSED: ReceiverState.CLOSED,
    },
    ReceiverState.CLOSED: {},
}
"""Other events leave a receiver in its state."""
