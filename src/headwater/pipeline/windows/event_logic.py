"""The common part of operators that keep one value for each key until the horizon has passed it."""

from collections.abc import Callable, Iterable

from headwater.pipeline.operator.logic import InsertOnly
from headwater.pipeline.state import timers
from headwater.pipeline.state.contract import State
from headwater.pipeline.state.layouts import FORGETTING
from headwater.pipeline.time.watermark import Moment

__all__ = ["EventLogic"]

Changes = dict[bytes, bytes | None]


class EventLogic(InsertOnly, frozen=True, kw_only=True):
    """A logic over the event time of a stream.

    k KEY           → TIME VALUE        the value of a key, and the event time at which a part of it is to be
    forgotten t TIME DIGEST   → KEY               the same, by time
    """

    key: tuple[str, ...]
    time: str
    timed: str = "watermark"
    layout: str = FORGETTING

    def update(
        self,
        state: State,
        moment: Moment,
        keys: Iterable[bytes],
        step: Callable[[bytes, bytes | None], bytes | None],
    ) -> tuple[Changes, int | None]:
        """Computes the new values of these keys, and of those whose time-out is due, with ``step(key, old)``.

        Returns the changes of the state, and the watermark at which the next time-out is due.
        """
        due = {key for _, key in timers.due(state, moment.horizon)}
        wanted = sorted(due.union(keys))
        stored = state.get([timers.place(key) for key in wanted])
        changes: Changes = {}
        for key in wanted:
            old = stored.get(timers.place(key))
            new = step(key, old)
            if new != old:
                changes |= timers.changed(key, old, new)
        return dict(sorted(changes.items())), timers.open_at(state, changes, moment)
