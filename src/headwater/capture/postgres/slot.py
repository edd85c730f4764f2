"""The replication slot of a PostgreSQL capture: its name, and whether it fits the position of the capture."""

import re

from headwater.capture.postgres.catalogue import Catalogue, Slot
from headwater.capture.postgres.messages import lsn_text, parse_lsn
from headwater.capture.postgres.position import Place
from headwater.errors import CaptureError

__all__ = ["check_slot", "slot_name", "starting_place"]


def slot_name(capture: str) -> str:
    """The name of a capture's slot and publication."""
    return "headwater_" + re.sub(r"[^a-z0-9_]", "_", capture.lower())


def check_slot(capture: str, slot: Slot | None, database: str, *, begun: bool) -> None:
    """CaptureError if the slot is not usable, or is missing although the capture has `begun`."""
    what, way_out = f"capture {capture}: slot {slot_name(capture)}", _new_snapshot(capture)
    if slot is None:
        if begun:
            raise CaptureError(f"{what} is gone, and changes with it", hint=way_out)
        return
    if slot.plugin != "pgoutput" or slot.database != database:
        raise CaptureError(
            f"{what} is not ours",
            got=f"plugin {slot.plugin} in database {slot.database}",
            hint="give the capture another name",
        )
    if slot.lost:
        raise CaptureError(
            f"{what} was lost, and with it changes that are not in the topics",
            hint=f"{way_out}; max_slot_wal_keep_size says how much the server keeps for it",
        )


def starting_place(
    capture: str, catalogue: Catalogue, slot: Slot | None, place: Place | None, *, system: str, database: str
) -> Place:
    """Where reading starts: the place of the capture, or that of a new slot.

    CaptureError if changes are missing.
    """
    what, way_out = f"capture {capture}", _new_snapshot(capture)
    if place is not None and place.system != system:
        raise CaptureError(
            f"{what}: the position is from another database server",
            got=f"system {system}",
            expected=place.system,
            hint=way_out,
        )
    check_slot(capture, slot, database, begun=place is not None)
    if place is None:
        return Place(system, lsn_text(slot.confirmed if slot else 0))
    at, end = parse_lsn(place.lsn), catalogue.end()
    if slot is not None and slot.confirmed > at:
        raise CaptureError(
            f"{what}: slot {slot_name(capture)} was moved forward by another process: changes are lost",
            got=lsn_text(slot.confirmed),
            expected=f"{place.lsn} or before",
            hint=way_out,
        )
    if at > end:
        raise CaptureError(
            f"{what}: the position is newer than the server's log; was it restored from a backup?",
            got=f"{place.lsn}, the server is at {lsn_text(end)}",
            hint=way_out,
        )
    return place


def _new_snapshot(capture: str) -> str:
    return f"`headwater capture snapshot {capture} app.py` takes a new snapshot"
