"""Whether a capture is meant to run: it leaves its database, or comes back, by a change of its state in the log that also a later process obeys."""

from headwater.access import Log
from headwater.capture.control import Command, end, send
from headwater.capture.feed import change
from headwater.capture.ledger import State, last_state
from headwater.client import Client

__all__ = ["come_back", "is_begun", "leave"]


def leave(log: Log, name: str, position: str) -> None:
    """Makes a capture end, and stay ended through restarts until `come_back`; then it goes on from the position."""
    change(log, name, position=position, removed=True, paused=False, control=end(log, name))
    send(log, name, Command("remove"))


def come_back(log: Log, name: str) -> bool:
    """Lets a capture that was removed run again; False if it was not."""
    if not _state(log, name).removed:
        return False
    change(log, name, removed=False, control=end(log, name))
    send(log, name, Command("add"))
    return True


def is_begun(log: Log, name: str, anew: str) -> bool:
    """Whether it has a place in its database that it goes on from: neither none yet, nor ``anew``, nor that of one that was removed."""
    state = _state(log, name)
    return state.position not in {None, anew} and not state.removed


def _state(log: Log, name: str) -> State:
    client = Client(log)
    try:
        known = f"{name}.capture" in client.partitions()
    finally:
        client.close()
    return (last_state(log, name) if known else None) or State()
