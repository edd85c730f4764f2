"""Process life: which process a process id has meant, since ids are given again."""

import os
from pathlib import Path

__all__ = ["own_life", "runs"]

PROC = Path("/proc")
BOOT_ID = PROC / "sys/kernel/random/boot_id"
START_TIME = 19
"""The place of the start time in ``stat``, counted after the name of the process."""


def own_life() -> str:
    """This run of the machine, the process ids that this process sees, and when it began.

    Empty where the system does not say it.
    """
    return _life(os.getpid())


def runs(pid: int, life: str = "") -> bool | None:
    """Whether the process of this id and life runs; None if that cannot be seen from here.

    A container has process ids of its own, and gives the same small ones at each start.
    """
    if life:
        boot, namespace, _ = life.split()
        here = own_life().split()
        if here and boot != here[0]:
            return False
        if here and namespace != here[1]:
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return not life or _life(pid) in {life, ""}


def _life(pid: int) -> str:
    try:
        boot = BOOT_ID.read_text().strip()
        namespace = (PROC / "self/ns/pid").stat().st_ino
        began = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[START_TIME]
    except (OSError, IndexError):
        return ""
    return f"{boot} {namespace} {began}"
