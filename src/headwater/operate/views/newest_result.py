"""The newest result of a view, for commands that need a view with results."""

from headwater import result
from headwater.client.client import Client
from headwater.errors import UsageError
from headwater.follow import results
from headwater.result import Result

__all__ = ["check_has_topic", "newest_result"]


def check_has_topic(client: Client, view: str) -> None:
    """UsageError unless the log has a topic with results of this view."""
    if result.topic(view) not in client.partitions():
        raise UsageError(
            f"there is no view {view!r} with results", hint="headwater topic list shows all topics"
        )


def newest_result(client: Client, view: str, hint: str = "") -> Result:
    """The newest result that readers see. UsageError if the view has none."""
    check_has_topic(client, view)
    newest = results.newest(client, view)
    if newest is None:
        raise UsageError(f"view {view!r} has no results yet", hint=hint)
    return newest
