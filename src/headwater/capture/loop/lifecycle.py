"""Changes of a capture's state in the log from outside, for processes that run and that start later."""

import msgspec

from headwater.access import Log
from headwater.capture.loop.control import end, send
from headwater.capture.loop.publisher import Publisher
from headwater.capture.messages import Command
from headwater.capture.state import State, last_state, state_record
from headwater.client.client import Client
from headwater.client.topic_defaults import STATE
from headwater.clock import SystemClock

__all__ = ["add", "is_begun", "remove", "restart"]


def restart(log: Log, name: str, position: str) -> None:
    """Makes the next start of a capture read from another position; fences a running process."""
    _change(log, name, position=position)


def remove(log: Log, name: str, position: str) -> None:
    """Marks a capture as removed, through restarts, until `add`; it then reads from the position."""
    _change(log, name, position=position, removed=True, paused=False, control=end(log, name))
    send(log, name, Command("remove"))


def add(log: Log, name: str) -> bool:
    """Marks a removed capture as added; False if it was not removed."""
    if not _state(log, name).removed:
        return False
    _change(log, name, removed=False, control=end(log, name))
    send(log, name, Command("add"))
    return True


def is_begun(log: Log, name: str, restart_position: str) -> bool:
    """Whether the capture has published, was not removed, and does not restart."""
    state = _state(log, name)
    return state.position not in {None, restart_position} and not state.removed


def _change(log: Log, name: str, **fields: object) -> None:
    """Changes the state of a capture; fences a running process."""
    client = Client(log)
    client.ensure_topics([f"{name}.capture"], 1, STATE)
    client.close()
    publisher = Publisher(log, name)
    try:
        publisher.claim()
        state = last_state(log, name) or State()
        publisher.begin()
        now_ms = SystemClock().now_ms()
        publisher.send([state_record(name, msgspec.structs.replace(state, at_ms=now_ms, **fields))])
        publisher.commit()
    finally:
        publisher.close()


def _state(log: Log, name: str) -> State:
    client = Client(log)
    try:
        exists = f"{name}.capture" in client.partitions()
    finally:
        client.close()
    return (last_state(log, name) if exists else None) or State()
