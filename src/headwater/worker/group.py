"""The share group of a worker: its settings, and which log it is in."""

import logging
from typing import NamedTuple

from headwater.access import Log
from headwater.client.share.group_settings import has_queues, set_group_settings
from headwater.declare.spec import Worker
from headwater.errors import UsageError

__all__ = ["LOCK_S_MAX", "WorkerGroup", "set_up_group"]

LOCK_S_MAX = 60.0
"""Locks are renewed while a handler runs; so soon others get what a process that has died held."""
LOCK_S_MIN = 1.0
SESSION_MS = 8_000
"""A member that is silent for so long loses its partitions, which others get: it has been killed, perhaps.

Apache Kafka's own least value is 45 seconds.
"""
KAFKA_LOCK_S_MIN = 15.0
"""Apache Kafka's own limit, unless its broker is set up otherwise."""
SPARE_DELIVERIES = 5
"""Deliveries beyond the attempts, for those that end without an outcome."""
KAFKA_DELIVERIES_MAX = 10
"""Apache Kafka's own limit, unless its broker is set up otherwise."""

logger = logging.getLogger(__name__)


class WorkerGroup(NamedTuple):
    """What a worker needs to know of its group."""

    lock_s: float
    is_embedded: bool
    """Whether it is in the embedded log, with delays and transactions that Apache Kafka does not have."""


def set_up_group(log: Log, worker: Worker, lock_s_max: float = LOCK_S_MAX) -> WorkerGroup:
    """Sets the settings of the group. UsageError for what the log does not have."""
    settings = {"headwater.queue": "true", "headwater.order.by": worker.order_by}
    is_embedded = has_queues(log, worker.group, settings)
    if not is_embedded:
        _explain(worker)
    lock_s = min(max(worker.timeout_s, LOCK_S_MIN if is_embedded else KAFKA_LOCK_S_MIN), lock_s_max)
    deliveries = worker.retry.attempts + SPARE_DELIVERIES
    if not is_embedded:
        deliveries = min(deliveries, max(KAFKA_DELIVERIES_MAX, worker.retry.attempts + 1))
    session = {"share.session.timeout.ms": str(SESSION_MS)} if is_embedded else {}
    set_group_settings(
        log,
        worker.group,
        session
        | {
            "share.auto.offset.reset": "earliest",
            "share.isolation.level": "read_committed",
            "share.delivery.count.limit": str(deliveries),
            "share.record.lock.duration.ms": str(round(lock_s * 1000)),
        },
    )
    return WorkerGroup(lock_s, is_embedded)


def _explain(worker: Worker) -> None:
    if worker.order_by:
        raise UsageError(
            f"worker {worker.name!r}: this log does not keep the order of keys in a queue",
            got=f"order_by={worker.order_by!r}",
            hint="Apache Kafka's share groups have no order: use the embedded log, or leave out order_by=",
        )
    logger.warning(
        "worker %s: Apache Kafka does not acknowledge in transactions and does not delay: what a handler"
        " writes may be there twice after a crash, and a message that waits for its next attempt stays"
        " locked, for %s at most",
        worker.name,
        worker.timeout,
    )
