"""What the console's HTTP reads of the queues of a log."""

from headwater.access import Log
from headwater.operate.queues.groups import letter_queues, queues
from headwater.operate.queues.peek import peek
from headwater.operate.queues.status import statuses
from headwater.view.queues import QueueReader

__all__ = ["queue_reader"]


def queue_reader(log: Log) -> QueueReader:
    """Reads the queues of a log, those of dead letters by their own names."""
    return QueueReader(
        lambda: sorted({*queues(log), *letter_queues(log)}),
        lambda name: statuses(log, name),
        lambda name, state, limit: peek(log, name, state, limit),
    )
