"""Room: a disk that is full, noticed and said once."""

import errno
import logging
from collections.abc import Callable

__all__ = ["FULL", "Room", "has_room"]

logger = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def has_room(write: Callable[[], None]) -> bool:
    """Writes what can be done without; False when the disk is full."""
    try:
        write()
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False
    return True


class Room:
    """Whether the disk of a partition had room the last time. It says so when that changes."""

    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._full = False

    def is_there(self) -> None:
        if self._full:
            logger.info("partition %s: there is room again", self._partition)
        self._full = False

    def is_gone(self) -> None:
        if not self._full:
            logger.error(
                "partition %s: the disk is full; refusing records until there is room", self._partition
            )
        self._full = True

    def takes(self, write: Callable[[], None]) -> bool:
        """Writes what can be done without; False, and said, when the disk is full."""
        taken = has_room(write)
        if not taken:
            self.is_gone()
        return taken
