"""Effect: one change as it is delivered to a receiver that cannot take it back, and its outcome."""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from headwater.change import Change
from headwater.decoders import from_json
from headwater.errors import UsageError
from headwater.sink.store import SinkFeed

__all__ = [
    "MODES",
    "Dead",
    "Delivered",
    "Effect",
    "Gone",
    "JournalEntry",
    "Mode",
    "Outcome",
    "ReceiverClient",
    "Reject",
    "Retry",
    "Start",
    "check_options",
    "make_effect",
]

Mode = Literal["live", "shadow", "replay"]
MODES = ("live", "shadow", "replay")
Start = Literal["now", "beginning"]
STARTS = ("now", "beginning")


class Effect(msgspec.Struct, frozen=True):
    """What a webhook, a mail or a function gets: one change, with an id that is the same at each attempt."""

    id: str
    mode: Mode
    type: str
    """``orders.changed``, ``orders.deleted`` or, if each record is a row of its own, ``orders.added``."""
    key: str
    row: dict[str, Any]
    """The columns of the row; of a deleted row, those of its key."""
    timestamp_ms: int
    partition: int
    offset: int

    @property
    def deleted(self) -> bool:
        return self.type.endswith(".deleted")


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An unfinished effect in the journal, from before its first attempt."""

    effect: Effect
    due_ms: int
    attempts: int = 0
    """Failed attempts. An attempt whose outcome was not recorded is repeated, and not counted."""
    reason: str = ""


class Delivered(msgspec.Struct, frozen=True):
    """The receiver has accepted it."""


class Retry(msgspec.Struct, frozen=True):
    """It did not arrive, or the outcome is unknown."""

    reason: str
    after_s: float = 0.0
    """The receiver asked for at least this pause."""


class Dead(msgspec.Struct, frozen=True):
    """It can never be delivered: it becomes a dead letter."""

    reason: str


class Gone(msgspec.Struct, frozen=True):
    """The receiver wants no effects any more: all of them wait until an operator restarts the sink."""

    reason: str


Outcome = Delivered | Retry | Dead | Gone


class Reject(Exception):  # noqa: N818  a decision, not a fault
    """Raised by a function of `Call`: this effect must never be tried again."""


class ReceiverClient(Protocol):
    """The client of one receiver. Several threads call it."""

    name: str
    """For messages, without secrets."""
    patience_s: float
    """How long `deliver` may take; a release waits that long."""

    def wants(self, effect: Effect) -> bool:
        """Whether the receiver gets effects of this kind at all."""

    def deliver(self, effect: Effect) -> Outcome:
        """Makes one attempt. Reasons in outcomes have no secrets."""

    def close(self) -> None:
        """Closes connections; `deliver` is not called afterwards."""


class _Revision(msgspec.Struct):
    revision: int = msgspec.field(default=0, name="_revision")


_decode = msgspec.json.Decoder(dict[str, Any]).decode
_revision = msgspec.json.Decoder(_Revision).decode


def check_options(mode: str, start: str) -> None:
    """UsageError if a mode or a start does not exist."""
    if mode not in MODES:
        raise UsageError("a sink's mode is wrong", got=repr(mode), expected=" or ".join(MODES))
    if start not in STARTS:
        raise UsageError("a sink's start is wrong", got=repr(start), expected=" or ".join(STARTS))


def make_effect(feed: SinkFeed, change: Change, mode: Mode) -> Effect:
    """The effect of a change. ValueError if its value is not a JSON object."""
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


def _id(feed: SinkFeed, change: Change) -> str:
    """The record's place in the log, and a hash of key and revision.

    Revisions restart at 1 when a key was deleted and comes back, offsets at 0 when a topic is created
    again: neither alone identifies one change for ever, and a receiver drops effects whose id it has seen.
    """
    revision = 0 if change.value is None else _revision(change.value).revision
    content = msgspec.json.encode([change.key, revision])
    return f"{feed.topic}-{change.partition}-{change.offset}-{hashlib.sha256(content).hexdigest()[:12]}"


def _key_columns(feed: SinkFeed, key: str) -> dict[str, Any]:
    if len(feed.key) == 1:
        return {feed.key[0]: key}
    try:
        values = from_json(key, list[Any])
    except msgspec.MsgspecError:
        return {"key": key}
    columns: Mapping[str, Any] = dict(zip(feed.key, values, strict=False))
    return dict(columns) or {"key": key}
