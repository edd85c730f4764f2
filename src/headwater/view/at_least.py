"""Rows of a view that include what a reader has written (``at_least=``).

The view must read it first (`ViewProgress`), then its table must get the resulting rows; one time limit
holds for both.
"""

import asyncio

from starlette.concurrency import run_in_threadpool

from headwater.errors import MachineError, NotReachedError
from headwater.position import Position
from headwater.view.hub import Hub
from headwater.view.results import ViewProgress
from headwater.view.tables.query import AtLeast, RowQuery
from headwater.view.tables.reader import TableSnapshot, ViewTable
from headwater.view.wakeup import Wakeup

__all__ = ["rows"]

LOOK_S = 15.0


async def rows(
    progress: ViewProgress, hub: Hub, table: ViewTable, query: RowQuery, minimum: AtLeast
) -> TableSnapshot:
    """The rows once the table includes everything before a position.

    `NotReachedError` if that takes too long.
    """
    view, seconds = table.topic, minimum.seconds
    wanted: Position | None = None
    try:
        async with asyncio.timeout(seconds):
            wanted = await _wanted(progress, view, minimum.position)
            return await _rows_at(hub, table, query, wanted)
    except TimeoutError:
        if wanted is None:
            raise progress.not_reached(view, minimum.position, seconds) from None
    reached = await run_in_threadpool(table.position)
    what = f"the table of view {view!r} has not reached the position within {seconds:g} s"
    raise NotReachedError(what, got=str(Position(reached.offsets)), expected=str(wanted), hint="GET /health")


async def _wanted(progress: ViewProgress, view: str, position: Position) -> Position:
    """The position of the view's topic that the table must reach.

    A position may also name that topic itself.
    """
    own = position.of(view)
    inputs = {topic: offsets for topic, offsets in position.offsets.items() if topic != view and offsets}
    outputs = (await progress.covering(view, Position(inputs))).of(view) if inputs else {}
    partitions = own.keys() | outputs.keys()
    return Position({view: {p: max(own.get(p, 0), outputs.get(p, 0)) for p in partitions}})


async def _rows_at(hub: Hub, table: ViewTable, query: RowQuery, wanted: Position) -> TableSnapshot:
    wakeup = Wakeup(LOOK_S)
    subscription = hub.subscribe(table.topic, wakeup.set)
    try:
        while True:
            if _covers(await run_in_threadpool(table.position), wanted):
                snapshot = await run_in_threadpool(table.rows, query)
                if _covers(snapshot.position, wanted):  # it may have been rebuilt since the first look
                    return snapshot
            await wakeup.wait()
            if subscription.take().closed:
                raise MachineError("the console is stopping")
    finally:
        subscription.close()


def _covers(reached: Position, wanted: Position) -> bool:
    """Compares only offsets of the log: the build of the table does not matter."""
    return Position(reached.offsets).covers(wanted)
