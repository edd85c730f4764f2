"""Disk space: how a full disk is noticed and reported."""

import errno
import logging
from collections.abc import Callable

__all__ = ["FULL", "DiskSpace", "try_write"]

logger = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def try_write(write: Callable[[], None]) -> bool:
    """Writes something optional; returns False if the disk is full."""
    try:
        write()
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False
    return True


class DiskSpace:
    """Whether the last write of a partition found space. A change is logged once, not at every write."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._full = False

    def mark_free(self) -> None:
        if self._full:
            logger.info("partition %s: the disk has space again", self._partition)
        self._full = False

    def mark_full(self) -> None:
        if not self._full:
            logger.error(
                "partition %s: the disk is full; records are refused until it has space", self._partition
            )
        self._full = True

    def try_write(self, write: Callable[[], None]) -> bool:
        """Writes something optional; returns False, and logs it, if the disk is full."""
        done = try_write(write)
        if not done:
            self.mark_full()
        return done
