"""Scale: another number of shards for the state of a view that stands."""

import shutil
import uuid

from headwater import result
from headwater.clock import SystemClock
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.operate.running import refuse_while_running
from headwater.pipeline import session
from headwater.pipeline.checkpoint import Checkpoint
from headwater.pipeline.differing import PUBLISH
from headwater.pipeline.progress import Progress
from headwater.pipeline.publish import places
from headwater.pipeline.scale import scaled
from headwater.pipeline.topics import Topics

__all__ = ["SHARDS_MAX", "scale"]

SHARDS_MAX = 1024


def scale(settings: Settings, view: str, shards: int) -> int:
    """Divides the state of a view's run among so many shards and returns how many it had; its results and its topic stay as they are.

    New files are written beside the old ones, then one transaction names them: until then nothing has changed, and whatever is killed
    may be done again. A driver that runs all the same is fenced. What Spark keeps for its own operators keeps its partitions.
    Raises UsageError while the pipeline runs, and for a view without results.
    """
    refuse_while_running(settings, f"view {view!r} cannot be scaled")
    if not 1 <= shards <= SHARDS_MAX:
        raise UsageError("a view has one or more shards", got=str(shards), expected=f"1 to {SHARDS_MAX}")
    topics = Topics(settings.access)
    try:
        if result.topic(view) not in topics.partitions():
            raise UsageError(
                f"there is no view {view!r} with results", hint="headwater topic list shows what there is"
            )
        return _scale(settings, topics, view, shards)
    finally:
        topics.close()


def _scale(settings: Settings, topics: Topics, view: str, shards: int) -> int:
    seen = result.newest(topics, view)
    if seen is None:
        raise UsageError(
            f"view {view!r} has no results yet", hint="its first run takes the setting 'partitions'"
        )
    checkpoint = Checkpoint(session.data(settings) / "checkpoints" / view / seen.run)
    progress = Progress(topics, view, seen.run, SystemClock())
    progress.open(checkpoint.last)
    reached = checkpoint.last()
    try:
        last = progress.last or seen
        generation = uuid.uuid4().hex[:8]
        copies = session.copies(settings)
        where = places(checkpoint, copies, last.state, generation)
        # A batch that Spark has not closed is run once more, on the state before it.
        open_batch = {last.batch - 1} if last.batch > reached else set()
        wanted = [*sorted(open_batch & progress.results.keys()), last.batch]
        progress.revise([scaled(progress.results[batch], where, shards, generation) for batch in wanted])
        if copies.is_absolute():  # those of executors go with them
            shutil.rmtree(copies / seen.run, ignore_errors=True)
        return len(last.state[PUBLISH])
    finally:
        progress.close()
