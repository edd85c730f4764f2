"""Exits of child processes: what an exit code says, and which ones are final."""

import signal

from headwater.child_log import ChildLog
from headwater.errors import (
    CaptureError,
    FencedError,
    HeadwaterError,
    MachineError,
    StorageError,
    UsageError,
)

__all__ = ["ERROR_TYPES", "FINAL", "error_of"]

ERROR_TYPES: dict[int, type[HeadwaterError]] = {
    kind.exit_code: kind for kind in (UsageError, MachineError, StorageError, CaptureError, FencedError)
}
FINAL = {UsageError.exit_code, FencedError.exit_code}
"""Exit codes of children that are not restarted: they would fail again, or a successor is running.

One that has worked before, and then finds its application wrong, is tried at long pauses: a user may be
writing the file at this moment.
"""


def error_of(name: str, code: int, log: ChildLog) -> HeadwaterError:
    """The error that a child has printed, or one with the last line of its log, unless it was killed."""
    last = log.last_error()
    printed_error = last.removeprefix("headwater: ")
    if code in ERROR_TYPES and printed_error != last:
        return ERROR_TYPES[code](printed_error)
    how = f"exit code {code}" if code >= 0 else _signal_name(-code)
    said = "" if code == -signal.SIGKILL else last  # who is killed has no time to say why
    return MachineError(f"{name} ended with {how}", got=said, hint=f"see {log.path}")


def _signal_name(number: int) -> str:
    """Real-time signals have numbers only."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
