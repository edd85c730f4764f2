"""Diagnosis: what ended a view's query, as an error that names the view and says what to do."""

from pathlib import Path

from headwater.errors import FencedError, HeadwaterError, MachineError, StorageError, UsageError
from headwater.pipeline.build.query import first_line
from headwater.pipeline.spark import session

__all__ = ["diagnose", "note_place", "unwritable"]

DISK_FAULTS = ("No space left on device", "Read-only file system", "Disk quota exceeded")
TRACEBACK = "Traceback (most recent call last):"
"""In the text of an error of a function in Python."""
TWO_DRIVERS = "Multiple streaming "
"""Queries or jobs: the beginning of Spark's messages when it finds another driver's files in a checkpoint."""
RECORD = "the record at "
"""How a note on an error begins that has the place of its record."""


def note_place(error: Exception, place: str) -> None:
    """Notes on an error the place of the record with which it has come: its topic, partition and offset."""
    error.add_note(f"{RECORD}{place}")


def diagnose(view: str, error: Exception | None, folder: Path) -> HeadwaterError:
    """The error with which a query has ended, in the terms of its view.

    ``folder`` has checkpoints and Spark's log.
    """
    if isinstance(error, FencedError | UsageError | StorageError):
        return error
    line = first_line(error) if error else "it ended"
    cause = line.partition("terminated with exception: ")[2] or line
    if TWO_DRIVERS in cause:  # Spark has noticed it before our own transaction did
        return FencedError(f"view {view!r} is run by another driver now", hint="this one ends")
    disk = next((fault for fault in DISK_FAULTS if fault in str(error)), "")
    if disk:
        return unwritable(view, disk, folder)
    places = [note for note in getattr(error, "__notes__", ()) if note.startswith(RECORD)]
    if places:
        cause = f"{places[0]}: {cause}"
    hint = f"Spark's log is {session.logs(folder)[0]}"
    if TRACEBACK in str(error):
        place = "" if places else " with its place"
        hint = f"with on_error='skip' such a record goes to {view}.failed{place}; {hint}"
    return MachineError(f"view {view!r} has stopped", got=cause, hint=hint)


def unwritable(view: str, got: str, folder: Path) -> StorageError:
    return StorageError(
        f"view {view!r} has stopped: its checkpoints and state in {folder} cannot be written",
        got=got,
        hint="free some space there, or give this user write access; "
        "the next start continues after the last result",
    )
