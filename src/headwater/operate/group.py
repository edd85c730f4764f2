"""Consumer groups of a log."""

import msgspec
from confluent_kafka import KafkaException

from headwater.access import Log
from headwater.client import TIMEOUT_S, Client, admin
from headwater.errors import MachineError, UsageError

__all__ = ["GroupState", "delete", "groups"]


class GroupState(msgspec.Struct, frozen=True):
    name: str
    state: str


def groups(log: Log) -> list[GroupState]:
    Client(log).partitions()  # says what is wrong with the log, which an admin request does not
    client = admin(log)
    try:
        found = client.list_consumer_groups().result(TIMEOUT_S).valid
    except (KafkaException, TimeoutError) as error:
        raise MachineError(
            f"log {log} does not answer", got=str(error), hint="is the broker running?"
        ) from error
    return sorted((GroupState(g.group_id, g.state.name.lower()) for g in found), key=lambda g: g.name)


def delete(log: Log, name: str) -> None:
    Client(log).partitions()  # says what is wrong with the log, which an admin request does not
    client = admin(log)
    try:
        client.delete_consumer_groups([name])[name].result(TIMEOUT_S)
    except KafkaException as error:
        raise UsageError(f"group {name!r} cannot be deleted", got=error.args[0].str()) from error
