"""Settlement: messages of a queue that no member is to get any more, chosen by id or all that are left."""

import re
from collections.abc import Iterable, Sequence
from contextlib import closing

import msgspec

from headwater.access import Log
from headwater.client.client import Client
from headwater.client.share.queue_state import Settled, settle
from headwater.errors import UsageError
from headwater.operate.queues.contents import Content, contents, places_of
from headwater.operate.queues.groups import Place
from headwater.queue_headers import ID_HEADER

__all__ = ["Cancelled", "Purged", "cancel", "purge"]

ID = re.compile(r"(.+)-(\d+)-(\d+)")


class Cancelled(msgspec.Struct, frozen=True):
    """What has become of one message."""

    id: str
    """As `Work.id`: topic, partition, offset."""
    is_cancelled: bool
    """False if a member holds it: it may be handled at this moment."""


class Purged(msgspec.Struct, frozen=True):
    """What has become of one partition."""

    topic: str
    partition: int
    settled: int
    held: int
    """Messages that were left, because members or transactions hold them."""


def cancel(log: Log, name: str, ids: Sequence[str]) -> list[Cancelled]:
    """Settles messages by their ids, ``topic-partition-offset`` or the text of their header ``headwater-id``.

    UsageError, and nothing is settled, if one of them is not there or settled already.
    """
    chosen = _chosen(log, name, list(dict.fromkeys(ids)))
    outcomes = {}
    by_place: dict[Place, list[int]] = {}
    for content in chosen:
        by_place.setdefault(content.place, []).append(content.record.offset)
    ranges = {place: [(offset, offset) for offset in sorted(offsets)] for place, offsets in by_place.items()}
    for place, settled in settle(log, name, ranges).items():
        outcomes[place] = {offset for held in settled.held for offset in range(held.first, held.last + 1)}
    return [Cancelled(content.id, content.record.offset not in outcomes[content.place]) for content in chosen]


def purge(log: Log, name: str) -> list[Purged]:
    """Settles everything that waits or is delayed; what members hold is left to them."""
    places = places_of(log, name)
    ranges = {}
    with closing(Client(log)) as client:
        for place in places:
            start, end = client.bounds(place[0])[place[1]]
            if start < end:
                ranges[place] = [(start, end - 1)]
    settled = settle(log, name, ranges)
    return [Purged(*place, settled[place].records, _count(settled[place])) for place in sorted(settled)]


def _count(settled: Settled) -> int:
    return sum(held.last - held.first + 1 for held in settled.held)


def _chosen(log: Log, name: str, ids: list[str]) -> list[Content]:
    """The messages of some ids, in their order."""
    places = places_of(log, name)
    found: dict[str, Content] = {}
    others = set(ids)
    for text in ids:
        match = ID.fullmatch(text)
        if match is None or (match[1], int(match[2])) not in places:
            continue
        others.discard(text)
        place, offset = (match[1], int(match[2])), int(match[3])
        for content in contents(log, name, places={place: places[place]}, only=(offset, offset)):
            found[text] = content
    if others:
        found |= _by_header(contents(log, name, places=places), others)
    for text in ids:
        if text not in found:
            raise UsageError(
                f"queue {name!r} has no message {text!r} that is not settled",
                hint=f"headwater queue peek {name} shows what is left",
            )
    return [found[text] for text in ids]


def _by_header(left: Iterable[Content], texts: set[str]) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for content in left:
        for header, value in content.record.headers:
            text = (value or b"").decode(errors="replace")
            if header == ID_HEADER and text in texts:
                found.setdefault(text, content)
        if len(found) == len(texts):
            break
    return found
