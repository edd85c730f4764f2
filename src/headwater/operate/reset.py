"""Reset: throws a view's results away, so that the next start makes them anew from the log."""

import shutil

from headwater import result
from headwater.client import Client
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.operate import topic
from headwater.operate.loss import refuse_loss
from headwater.operate.running import refuse_while_running
from headwater.pipeline import failed, late

__all__ = ["reset"]


def reset(settings: Settings, view: str, *, accept_loss: bool = False) -> None:
    """Removes a view's topics, its late and failed records with them, and its checkpoint; its streams and other views are not touched.

    Raises UsageError while the pipeline runs, for a view that has published nothing, for one that others read: they could not go on; and, unless that is accepted, for one
    that the log no longer holds all records of.
    """
    refuse_while_running(settings, f"view {view!r} cannot be reset")
    client = Client(settings.access)
    known = client.partitions()
    if result.topic(view) not in known:
        raise UsageError(
            f"there is no view {view!r} with results", hint="headwater topic list shows what there is"
        )
    for reader in (name.removesuffix(result.topic("")) for name in known if name.endswith(result.topic(""))):
        last = result.newest(client, reader) if reader != view else None
        if last is not None and view in last.views:
            raise UsageError(
                f"view {view!r} cannot be reset: view {reader!r} reads it",
                hint=f"headwater view reset {reader} first, or make it anew beside the old one: headwater view rebuild {view} APP",
            )
    folder = settings.data / "checkpoints" / view
    refuse_loss(client, folder, view, f"view {view!r} cannot be reset", accept=accept_loss)
    for name in (view, result.topic(view), late.topic(view), failed.topic(view)):
        if name in known:
            topic.delete(settings.access, name)
    shutil.rmtree(folder, ignore_errors=True)
