"""Manifest: a clean stop's list of the segments of a partition, with which the next start skips the scan.

manifest   all segments, the active one last. It is present only while it describes the log exactly: the
           first write after a start withdraws it
closed     the withdrawn manifest. The segments that were closed then are still closed, so a start after
           a crash trusts all of it but its end. Compaction exchanges segments, so it removes the file
"""

from pathlib import Path

from headwater.log.storage.closed_segments import ClosedSegments
from headwater.log.storage.disk import Disk
from headwater.log.storage.producers import Producers
from headwater.log.storage.segment import Segment

__all__ = ["forget", "open_listed", "read_withdrawn", "withdraw", "write"]

MANIFEST, WITHDRAWN = "manifest", "closed"


def write(disk: Disk, folder: Path, segments: ClosedSegments) -> None:
    """At a clean stop: lists all segments, the active one last."""
    disk.replace(folder / MANIFEST, segments.encode())


def open_listed(disk: Disk, folder: Path, producers: Producers) -> tuple[ClosedSegments, Segment] | None:
    """The closed segments and the active one after a clean stop; None if there was none.

    Only the last segment is looked at. The producers are restored as of the end of the log.
    """
    segments = ClosedSegments.decode(disk.read(folder / MANIFEST))
    if segments is None:
        return None
    first, last = Segment(disk, folder, segments.bases[0]), segments.pop()
    following = Segment(disk, folder, last.end_offset)
    if not disk.exists(first.path) or (last.size_bytes and disk.exists(following.path)):
        return None  # the log was written to since: a power cut has brought the manifest back
    active = Segment(disk, folder, last.base_offset)
    snapshot = active.load()
    if snapshot is None or active.summary != last:
        active.release()
        return None
    producers.restore(snapshot)
    return segments, active


def withdraw(disk: Disk, folder: Path) -> None:
    """Before the first write, and at a start that finds a manifest that does not fit the log."""
    if disk.exists(folder / MANIFEST):
        disk.rename(folder / MANIFEST, folder / WITHDRAWN)


def read_withdrawn(disk: Disk, folder: Path) -> ClosedSegments:
    """The segments of the last clean stop; none if compaction has exchanged some of them since."""
    return ClosedSegments.decode(disk.read(folder / WITHDRAWN)) or ClosedSegments()


def forget(disk: Disk, folder: Path) -> None:
    """Before segments are exchanged: removes the withdrawn manifest, which lists them."""
    disk.remove(folder / WITHDRAWN)
