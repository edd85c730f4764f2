"""Place: the position of a capture of PostgreSQL."""

import msgspec

from headwater.capture.reread.incremental import IncrementalSnapshot
from headwater.capture.reread.table_states import TableEvent, TableStates
from headwater.decoders import from_json

__all__ = ["Place", "decode", "encode", "restart_position", "without_gaps"]


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position: the server, the last commit, and from where on the changes of each table are published."""

    system: str
    lsn: str
    tables: dict[str, str] = {}
    """By table, the LSN of its snapshot; a table that is missing has no snapshot yet."""
    snapshots: tuple[IncrementalSnapshot, ...] = ()
    """Incremental snapshots of tables, and how far they are."""
    stopped: dict[str, str] = {}
    """Tables that cannot be captured further, and why."""
    members: dict[str, str] = {}
    """By table, its ids in the catalogue and in the publication since its snapshot (`Catalogue.members`)."""
    again: bool = False
    """Whether the topics have older rows: snapshots then begin with a truncate."""


def encode(place: Place) -> str:
    return msgspec.json.encode(place).decode()


def decode(position: str) -> Place:
    return from_json(position, Place)


def restart_position() -> str:
    """The position of a capture that drops its slot and takes its snapshot again."""
    return encode(Place("", "0/0", again=True))


def without_gaps(place: Place, before: dict[str, str], members: dict[str, str]) -> Place:
    """The place without tables that were not published for a while: they get a new snapshot.

    `before` is what was published at the start of this reading, for positions of older versions without
    members.
    """
    was = before | place.members
    states = TableStates(place.tables, place.stopped)
    for table in {*place.tables, *place.stopped}:
        if table not in members or was.get(table) != members[table] or table not in place.tables:
            states.change(table, TableEvent.INTERRUPTED)
    return msgspec.structs.replace(place, tables=states.read, stopped=states.stopped, members=members)
