"""Reset of a view: its results are deleted, and the next start computes them again from the log."""

import shutil

from headwater import result
from headwater.client.client import Client
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.follow import results
from headwater.operate.log import topic
from headwater.operate.views.lost_inputs import refuse_loss
from headwater.operate.views.newest_result import check_has_topic
from headwater.operate.views.running import refuse_while_running
from headwater.pipeline.left_out import failed_records, late_records

__all__ = ["reset"]


def reset(settings: Settings, view: str, *, accept_loss: bool = False) -> None:
    """Deletes the topics and the checkpoint of a view.

    Its streams and other views are not touched.

    UsageError while the pipeline runs the view, for a view without results, and for one that other views
    read, since they could not continue. Also, unless the loss is accepted, if the log no longer holds all
    records that the view has read.
    """
    refuse_while_running(settings, f"view {view!r} cannot be reset", unless_stopped=view)
    client = Client(settings.access)
    check_has_topic(client, view)
    known = client.partitions()
    for reader in (name.removesuffix(result.topic("")) for name in known if name.endswith(result.topic(""))):
        last = results.newest(client, reader) if reader != view else None
        if last is not None and view in last.views:
            raise UsageError(
                f"view {view!r} cannot be reset: view {reader!r} reads it",
                hint=f"reset {reader} first, or use headwater view rebuild {view} APP",
            )
    folder = settings.data / "checkpoints" / view
    refuse_loss(client, folder, view, f"view {view!r} cannot be reset", accept=accept_loss)
    shutil.rmtree(folder, ignore_errors=True)
    # The results last: once they are gone, a pipeline that has stopped the view starts it again.
    for name in (late_records.topic(view), failed_records.topic(view), view, result.topic(view)):
        if name in known:
            topic.delete(settings.access, name)
