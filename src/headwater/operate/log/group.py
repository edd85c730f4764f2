"""Consumer groups of a log."""

from collections.abc import Iterable
from difflib import get_close_matches

import msgspec
from confluent_kafka import KafkaException

from headwater.access import Log
from headwater.client.client import TIMEOUT_S, Client, admin
from headwater.errors import MachineError, UsageError

__all__ = ["GroupState", "check_group", "delete", "groups"]


class GroupState(msgspec.Struct, frozen=True):
    name: str
    state: str


def groups(log: Log) -> list[GroupState]:
    """All consumer groups of a log, by name."""
    Client(log).partitions()  # its error says what is wrong with the log; that of an admin request does not
    client = admin(log)
    try:
        listed = client.list_consumer_groups().result(TIMEOUT_S).valid
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
    return sorted((GroupState(g.group_id, g.state.name.lower()) for g in listed), key=lambda g: g.name)


def check_group(name: str, names: Iterable[str]) -> None:
    """UsageError unless a group is among those of its log."""
    listed = list(names)
    if name not in listed:
        near = get_close_matches(name, listed, n=1, cutoff=0.5)
        raise UsageError(
            f"there is no group {name!r}",
            hint=f"did you mean {near[0]!r}?" if near else "headwater group list shows all groups",
        )


def delete(log: Log, name: str) -> None:
    """Deletes a group with its offsets."""
    check_group(name, (group.name for group in groups(log)))
    client = admin(log)
    try:
        client.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    except KafkaException as error:
        raise UsageError(f"group {name!r} cannot be deleted", got=error.args[0].str()) from error
