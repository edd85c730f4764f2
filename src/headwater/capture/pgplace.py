"""Place: where a capture of PostgreSQL stands."""

import msgspec

from headwater.capture.chunks import Chunked
from headwater.decoders import from_json

__all__ = ["Place", "anew", "decode", "encode", "still_known"]


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position: of which server, behind which commit, and from where on each table's changes count."""

    system: str
    lsn: str
    tables: dict[str, str] = {}
    """By table, the point that its snapshot stands for; one that is missing has no snapshot yet."""
    snapshots: tuple[Chunked, ...] = ()
    """Tables that are read again beside the stream, and how far that is."""
    stopped: dict[str, str] = {}
    """Tables that cannot go on, and why."""
    members: dict[str, str] = {}
    """By table, what the catalogue has called it and its entry in the publication since its snapshot (`Catalogue.members`)."""
    again: bool = False
    """Whether the topics have rows from before: a snapshot begins with a truncate then."""


def encode(place: Place) -> str:
    return msgspec.json.encode(place).decode()


def decode(position: str) -> Place:
    return from_json(position, Place)


def anew() -> str:
    """The position of a capture that drops its slot and takes its snapshot again."""
    return encode(Place("", "0/0", again=True))


def still_known(place: Place, before: dict[str, str], members: dict[str, str]) -> Place:
    """The place without tables that were not captured for a while: changes in between are missing, so they begin anew.

    `before` is what was published when we came; positions of older versions say nothing of that themselves.
    """
    was = before | place.members
    tables = {
        each: lsn for each, lsn in place.tables.items() if each in members and was.get(each) == members[each]
    }
    stopped = {each: why for each, why in place.stopped.items() if each in tables}
    return msgspec.structs.replace(place, tables=tables, stopped=stopped, members=members)
