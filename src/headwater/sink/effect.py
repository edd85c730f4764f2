"""Effect: one change as it is told to an outside that cannot take anything back, and what became of telling it."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from headwater.change import Change
from headwater.decoders import from_json
from headwater.errors import UsageError
from headwater.sink.store import Feed

__all__ = [
    "MODES",
    "Again",
    "Carrier",
    "Dead",
    "Done",
    "Effect",
    "Entry",
    "Gone",
    "Mode",
    "Outcome",
    "Reject",
    "Start",
    "check_telling",
    "effect_of",
]

Mode = Literal["live", "shadow", "replay"]
MODES = ("live", "shadow", "replay")
Start = Literal["now", "beginning"]
STARTS = ("now", "beginning")


class Effect(msgspec.Struct, frozen=True):
    """What a webhook, a mail or a function is told: one change, with an id that is the same each time it is told."""

    id: str
    mode: Mode
    type: str
    """``orders.changed``, ``orders.deleted`` or, where each record is a row of its own, ``orders.added``."""
    key: str
    row: dict[str, Any]
    """The columns of the row; of a deleted one, those of its key."""
    timestamp_ms: int
    partition: int
    offset: int

    @property
    def deleted(self) -> bool:
        return self.type.endswith(".deleted")


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An unfinished effect as the journal keeps it, from before its first attempt on."""

    effect: Effect
    due_ms: int
    attempts: int = 0
    """Those that are known to have failed; one whose end nobody has recorded is made again and not counted."""
    reason: str = ""


class Done(msgspec.Struct, frozen=True):
    """The receiver has it."""


class Again(msgspec.Struct, frozen=True):
    """It did not get there, or nobody knows."""

    reason: str
    after_s: float = 0.0
    """The receiver asked not to be called before."""


class Dead(msgspec.Struct, frozen=True):
    """It will never get there: it goes to the dead letters."""

    reason: str


class Gone(msgspec.Struct, frozen=True):
    """The receiver wants nothing any more: everything waits until somebody has looked."""

    reason: str


Outcome = Done | Again | Dead | Gone


class Reject(Exception):  # noqa: N818  a decision, not a fault
    """Raised by a function of `Call`: this effect is never to be tried again."""


class Carrier(Protocol):
    """The way to one receiver. Several threads call it."""

    name: str
    """For messages; without anything secret."""
    patience_s: float
    """How long `carry` takes at most, for whoever waits for its end."""

    def wants(self, effect: Effect) -> bool:
        """Whether there is anything to tell of it."""

    def carry(self, effect: Effect) -> Outcome:
        """Tells the receiver. Reasons say nothing secret."""

    def close(self) -> None:
        """Gives back connections; nobody calls `carry` afterwards."""


class _Revision(msgspec.Struct):
    revision: int = msgspec.field(default=0, name="_revision")


_decode = msgspec.json.Decoder(dict[str, Any]).decode
_revision = msgspec.json.Decoder(_Revision).decode


def check_telling(mode: str, start: str) -> None:
    """UsageError when one of them is none."""
    if mode not in MODES:
        raise UsageError("a sink's mode is wrong", got=repr(mode), expected=" or ".join(MODES))
    if start not in STARTS:
        raise UsageError("a sink's start is wrong", got=repr(start), expected=" or ".join(STARTS))


def effect_of(feed: Feed, change: Change, mode: Mode) -> Effect:
    """The effect of a change. ValueError when its value is no JSON object."""
    if change.value is None:
        word, row = "deleted", _key_columns(feed, change.key)
    else:
        word = "added" if feed.append else "changed"
        row = {name: value for name, value in _decode(change.value).items() if not name.startswith("_")}
    return Effect(
        id=_id(feed, change),
        mode=mode,
        type=f"{feed.topic}.{word}",
        key=change.key,
        row=row,
        timestamp_ms=change.timestamp_ms,
        partition=change.partition,
        offset=change.offset,
    )


def _id(feed: Feed, change: Change) -> str:
    """The record's place, and a hash of key and revision.

    A revision begins with 1 again when a key was deleted and comes back, and an offset with 0 when a topic is made anew: neither alone
    names one fact for ever, and a receiver drops what has an id that it knows.
    """
    revision = 0 if change.value is None else _revision(change.value).revision
    told = msgspec.json.encode([change.key, revision])
    return f"{feed.topic}-{change.partition}-{change.offset}-{hashlib.sha256(told).hexdigest()[:12]}"


def _key_columns(feed: Feed, key: str) -> dict[str, Any]:
    if len(feed.key) == 1:
        return {feed.key[0]: key}
    try:
        values = from_json(key, list[Any])
    except msgspec.MsgspecError:
        return {"key": key}
    named: Mapping[str, Any] = dict(zip(feed.key, values, strict=False))
    return dict(named) or {"key": key}
