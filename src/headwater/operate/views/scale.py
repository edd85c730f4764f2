"""Scaling: another number of shards for the state of a stopped view."""

import shutil
import uuid

from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.operate.views.newest_result import newest_result
from headwater.operate.views.running import refuse_while_running
from headwater.pipeline.engine.checkpoint import Checkpoint
from headwater.pipeline.output.changed_rows import PUBLISH
from headwater.pipeline.run.results import RunResults
from headwater.pipeline.run.state_files import places
from headwater.pipeline.spark import session
from headwater.pipeline.state.reshard import scaled
from headwater.pipeline.topics import Topics

__all__ = ["SHARDS_MAX", "scale"]

SHARDS_MAX = 1024


def scale(settings: Settings, view: str, shards: int) -> int:
    """Divides the state of a view's run into this number of shards, and returns the former number.

    The rows of the view do not change. New files are written next to the old ones, then one transaction names
    them. Until then nothing has changed, and a command that was killed can be repeated. A driver that runs
    nevertheless is fenced. The state of Spark's own operators keeps its partitions. UsageError while the
    pipeline runs, and for a view without results.
    """
    refuse_while_running(settings, f"view {view!r} cannot be scaled")
    if not 1 <= shards <= SHARDS_MAX:
        raise UsageError(
            "the number of shards is out of range", got=str(shards), expected=f"1 to {SHARDS_MAX}"
        )
    topics = Topics(settings.access)
    try:
        return _scale(settings, topics, view, shards)
    finally:
        topics.close()


def _scale(settings: Settings, topics: Topics, view: str, shards: int) -> int:
    newest = newest_result(
        topics, view, hint="its first start takes the number of shards from the setting 'shards'"
    )
    checkpoint = Checkpoint(session.data(settings) / "checkpoints" / view / newest.run)
    run_results = RunResults(topics, view, newest.run, SystemClock())
    run_results.open(checkpoint.last)
    reached = checkpoint.last()
    try:
        last = run_results.last or newest
        generation = uuid.uuid4().hex[:8]
        copies = session.copies(settings)
        where = places(checkpoint, copies, last.state, generation)
        # Spark runs a batch that it has not closed once more, on the state before it.
        open_batch = {last.batch - 1} if last.batch > reached else set()
        wanted = [*sorted(open_batch & run_results.by_batch.keys()), last.batch]
        run_results.revise(
            [scaled(run_results.by_batch[batch], where, shards, generation) for batch in wanted]
        )
        if copies.is_absolute():  # a relative path is on executors, which delete their copies themselves
            shutil.rmtree(copies / newest.run, ignore_errors=True)
        return len(last.state[PUBLISH])
    finally:
        run_results.close()
