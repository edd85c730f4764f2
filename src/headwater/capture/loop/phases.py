"""The life of a capture: its phases, and what leads from one to the next.

`LIFE` has every phase and its outcomes. `Feed.run` goes by it, and docs/capture.md shows it.
"""

from collections.abc import Mapping
from enum import Enum

__all__ = ["COMMANDS", "LIFE", "Outcome", "Phase"]


class Phase(Enum):
    """What a process of a capture does: a word, and its meaning."""

    STARTING = "starting", "it fences earlier processes of the capture, and reads its state in the log"
    READING = "reading", "it publishes the snapshots that are due, and every change"
    PAUSED = "paused", "it reads nothing; the database keeps its log"
    WAITING = "waiting", "it waits for 0.1 to 10 seconds"
    REMOVED = "removed", "nothing of the capture is in its database"
    ENDED = "ended", "the process has ended with 0"
    STOPPED = "stopped", "the process has ended with an error that says what to do"
    FENCED = "fenced", "the process has ended with an error: another one runs the capture"


class Outcome(Enum):
    """Why a phase has ended: its description."""

    READY = "its state is neither paused nor removed"
    IS_PAUSED = "its state is paused"
    IS_REMOVED = "its state is removed"
    PAUSE = "`headwater capture pause`"
    RESUME = "`headwater capture resume`"
    SNAPSHOT = "`snapshot --table`"
    REMOVE = "`headwater capture remove`"
    ADD = "`headwater capture add`"
    UNSUPERVISED = "it does not run under `headwater up`"
    UNAVAILABLE = "the database or the log does not answer"
    RETRY = "the time has passed"
    LOST = "its slot or the changes after its position are lost, a right is missing, or the like"
    LIMIT = 'the database keeps more than `limit_bytes=`, with `past_limit="stop"`: the slot is dropped'
    TAKEN_OVER = "another process has claimed its name, as `headwater capture snapshot` does"
    STOP = "the process is asked to end"


ENDINGS: Mapping[Outcome, Phase] = {
    Outcome.UNAVAILABLE: Phase.WAITING,
    Outcome.LOST: Phase.STOPPED,
    Outcome.LIMIT: Phase.STOPPED,
    Outcome.TAKEN_OVER: Phase.FENCED,
    Outcome.REMOVE: Phase.STARTING,
    Outcome.STOP: Phase.ENDED,
}
"""Outcomes of all phases that use the database or the log."""

LIFE: Mapping[Phase, Mapping[Outcome, Phase]] = {
    Phase.STARTING: {
        Outcome.READY: Phase.READING,
        Outcome.IS_PAUSED: Phase.PAUSED,
        Outcome.IS_REMOVED: Phase.REMOVED,
        **ENDINGS,
    },
    Phase.READING: {
        Outcome.PAUSE: Phase.PAUSED,
        Outcome.RESUME: Phase.READING,
        Outcome.SNAPSHOT: Phase.READING,
        Outcome.ADD: Phase.READING,
        **ENDINGS,
    },
    Phase.PAUSED: {
        Outcome.PAUSE: Phase.PAUSED,
        Outcome.RESUME: Phase.READING,
        Outcome.SNAPSHOT: Phase.PAUSED,
        Outcome.ADD: Phase.PAUSED,
        **ENDINGS,
    },
    Phase.REMOVED: {
        Outcome.ADD: Phase.STARTING,
        Outcome.UNSUPERVISED: Phase.ENDED,
        Outcome.STOP: Phase.ENDED,
    },
    Phase.WAITING: {
        Outcome.RETRY: Phase.STARTING,
        Outcome.STOP: Phase.ENDED,
    },
    Phase.ENDED: {},
    Phase.STOPPED: {},
    Phase.FENCED: {},
}
"""By phase and outcome, the next phase. A phase without outcomes is the last one."""

COMMANDS: Mapping[str, Outcome] = {
    "pause": Outcome.PAUSE,
    "resume": Outcome.RESUME,
    "snapshot": Outcome.SNAPSHOT,
    "remove": Outcome.REMOVE,
    "add": Outcome.ADD,
}
"""By the word of a command, the outcome of the phase in which it arrives."""
