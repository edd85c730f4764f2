"""The board of the console: it answers, and may still be unable to write its view tables."""

import threading

from headwater.health.board import BoardFile
from headwater.health.condition import Condition
from headwater.view.tables.delivery import Delivery

__all__ = ["CONSOLE", "judge", "say"]

CONSOLE = "console"
"""The process, and its only part."""
LOOK_S = 0.5


def say(delivery: Delivery, board: BoardFile, over: threading.Event) -> None:
    """Says how the console is, until it is over; for a thread of its own."""
    condition = Condition()
    condition.begin()
    while not over.is_set():
        judge(delivery, condition)
        board.write([condition.status(CONSOLE, CONSOLE)])
        over.wait(LOOK_S)
    board.remove()


def judge(delivery: Delivery, condition: Condition) -> None:
    """Reports to the condition whether view tables can be written."""
    trouble = delivery.trouble()
    if trouble:
        condition.fail(trouble)
    else:
        condition.work()
