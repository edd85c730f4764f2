"""Settings of a share group: Kafka's own, and those that only the embedded log has."""

from collections.abc import Mapping

from headwater.access import Log
from headwater.client.bulk.connection import compose
from headwater.client.bulk.routes import Routes, refusal
from headwater.errors import ErrorCode, MachineError, RequestError, UsageError

__all__ = ["has_queues", "set_group_settings"]

GROUP = 32
"""Kafka's number for the resource type."""
SET = 0


def set_group_settings(log: Log, group: str, settings: Mapping[str, str]) -> None:
    """Sets settings of a group. UsageError if the log refuses a value, MachineError if it does not answer."""
    answer = _alter(log, group, settings)
    if answer is not None and answer.code is ErrorCode.INVALID_CONFIG:
        raise UsageError(
            f"group {group!r}: the log refuses its settings",
            got=str(answer),
            hint="the broker's own limits are its settings group.share.*",
        ) from answer
    if answer is not None:
        raise MachineError(f"group {group!r} cannot be set up", got=str(answer)) from answer


def has_queues(log: Log, group: str, settings: Mapping[str, str]) -> bool:
    """Whether the log has queues beyond Kafka's; then the group has these settings. Apache Kafka has none."""
    answer = _alter(log, group, settings)
    if answer is not None and answer.code is not ErrorCode.INVALID_CONFIG:
        raise MachineError(f"group {group!r} cannot be set up", got=str(answer)) from answer
    return answer is None


def _alter(log: Log, group: str, settings: Mapping[str, str]) -> RequestError | None:
    """The log's refusal, if it refuses."""
    path = "resources.configs"
    configs = [
        compose("IncrementalAlterConfigs", path, name=name, config_operation=SET, value=value)
        for name, value in settings.items()
    ]
    resource = compose(
        "IncrementalAlterConfigs", "resources", resource_type=GROUP, resource_name=group, configs=configs
    )
    routes = Routes(log)
    request = compose("IncrementalAlterConfigs", resources=[resource])
    try:
        answer = routes.ask("IncrementalAlterConfigs", request)
    except OSError as error:
        hint = "is the broker running?"
        raise MachineError(f"log {log} does not answer", got=str(error), hint=hint) from error
    finally:
        routes.close()
    (response,) = answer.responses
    if not response.error_code:
        return None
    refused = refusal(response.error_code, "settings of a group", response.error_message)
    if isinstance(refused, MachineError):
        raise refused
    return refused
