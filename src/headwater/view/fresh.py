"""Fresh: rows of a view that hold what a reader has written.

First the view has to take it in (`Reach`), then its table the rows that the view made of it; both within one limit.
"""

import asyncio

from starlette.concurrency import run_in_threadpool

from headwater.errors import Behind, MachineError
from headwater.position import Position
from headwater.view.push import Hub
from headwater.view.query import AtLeast, Query
from headwater.view.reach import Reach
from headwater.view.signal import Signal
from headwater.view.table import Snapshot, ViewTable

__all__ = ["rows"]

LOOK_S = 15.0


async def rows(reach: Reach, hub: Hub, table: ViewTable, query: Query, asked: AtLeast) -> Snapshot:
    """The rows as they are when the table holds all before a position; `Behind` when that is not so in time."""
    view, seconds = table.topic, asked.seconds
    held: Position | None = None
    try:
        async with asyncio.timeout(seconds):
            held = await _held(reach, view, asked.position)
            return await _holding(hub, table, query, held)
    except TimeoutError:
        if held is None:
            raise reach.behind(view, asked.position, seconds) from None
    here = await run_in_threadpool(table.position)
    what = f"the table of view {view!r} has not come so far within {seconds:g} s"
    raise Behind(what, got=str(Position(here.offsets)), expected=str(held), hint="GET /health")


async def _held(reach: Reach, view: str, position: Position) -> Position:
    """Up to where the view's topic has to be in the table. A position may also name that topic itself."""
    own = position.of(view)
    inputs = {topic: offsets for topic, offsets in position.offsets.items() if topic != view and offsets}
    made = (await reach.covering(view, Position(inputs))).of(view) if inputs else {}
    partitions = own.keys() | made.keys()
    return Position({view: {p: max(own.get(p, 0), made.get(p, 0)) for p in partitions}})


async def _holding(hub: Hub, table: ViewTable, query: Query, held: Position) -> Snapshot:
    signal = Signal(LOOK_S)
    subscription = hub.subscribe(table.topic, signal.set)
    try:
        while True:
            if _covers(await run_in_threadpool(table.position), held):
                found = await run_in_threadpool(table.rows, query)
                if _covers(found.position, held):  # it may have been begun anew since the first look
                    return found
            await signal.wait()
            if subscription.take().closed:
                raise MachineError("the console is stopping")
    finally:
        subscription.close()


def _covers(here: Position, held: Position) -> bool:
    """Offsets of the log alone: in which build of the table they are reached does not matter."""
    return Position(here.offsets).covers(held)
