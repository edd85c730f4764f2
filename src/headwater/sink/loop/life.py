"""The life of a sink in one process, as the table that `Loop.run` follows. ``docs/sinks.md`` shows it.

Each state but the last has a step, which ends with an event; the table says which state follows.
"""

from collections.abc import Mapping
from enum import Enum

__all__ = ["IN_GROUP", "LIFE", "SinkEvent", "SinkState"]


class SinkState(Enum):
    """What a sink is doing: a word for it, and its meaning."""

    BEGINNING = ("beginning", "it records in its journal where it begins, if it delivers effects")
    NO_TOPIC = ("without topic", "it waits until its topic exists")
    NO_COLUMNS = ("without columns", "it waits for the first result of its view")
    OPENING = ("opening", "it opens the store, and waits for a store that does not answer")
    JOINING = ("joining", "it empties a store that does not belong to the topic, and joins its group")
    RUNNING = ("running", "it claims the partitions that it is given, and applies batches")
    STORE_AWAY = ("waiting", "it stays in its group, and tries again and again to claim its partitions")
    TOPIC_GONE = ("topic gone", "it waits until its topic is created again")
    STOPPED = ("stopped", "it has left its group and closed the store")


class SinkEvent(Enum):
    """How the step of a state ends."""

    RECORDED = "the beginning is recorded, or there is nothing to record"
    TOPIC_FOUND = "the topic exists"
    COLUMNS_KNOWN = "the columns are known"
    OPENED = "the store is open"
    JOINED = "the store belongs to the topic"
    ROUND_OVER = "a batch was applied, or there was none"
    UNAVAILABLE = "the store or the log does not answer, or the store is full"
    CLAIMED = "the store has accepted the claims"
    SUPERSEDED = "another process has claimed a partition, or the store was emptied or restored"
    SUSPENDED = "nothing answers after the process was suspended for longer than a session"
    TOPIC_LOST = "the topic was deleted, or deleted and created again"
    STOP = "the process is asked to end"


_ANY = {SinkEvent.STOP: SinkState.STOPPED}
LIFE: Mapping[SinkState, Mapping[SinkEvent, SinkState]] = {
    SinkState.BEGINNING: {SinkEvent.RECORDED: SinkState.NO_TOPIC, **_ANY},
    SinkState.NO_TOPIC: {SinkEvent.TOPIC_FOUND: SinkState.NO_COLUMNS, **_ANY},
    SinkState.NO_COLUMNS: {SinkEvent.COLUMNS_KNOWN: SinkState.OPENING, **_ANY},
    SinkState.OPENING: {SinkEvent.OPENED: SinkState.JOINING, **_ANY},
    SinkState.JOINING: {
        SinkEvent.JOINED: SinkState.RUNNING,
        SinkEvent.SUPERSEDED: SinkState.JOINING,
        **_ANY,
    },
    SinkState.RUNNING: {
        SinkEvent.ROUND_OVER: SinkState.RUNNING,
        SinkEvent.UNAVAILABLE: SinkState.STORE_AWAY,
        SinkEvent.SUPERSEDED: SinkState.JOINING,
        SinkEvent.SUSPENDED: SinkState.JOINING,
        SinkEvent.TOPIC_LOST: SinkState.TOPIC_GONE,
        **_ANY,
    },
    SinkState.STORE_AWAY: {
        SinkEvent.CLAIMED: SinkState.RUNNING,
        SinkEvent.SUPERSEDED: SinkState.JOINING,
        **_ANY,
    },
    SinkState.TOPIC_GONE: {SinkEvent.TOPIC_FOUND: SinkState.JOINING, **_ANY},
    SinkState.STOPPED: {},
}
IN_GROUP = frozenset({SinkState.RUNNING, SinkState.STORE_AWAY})
"""The states in which the sink is a member of its group; it leaves the group with them."""
