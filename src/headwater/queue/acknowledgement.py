"""Acknowledgements: what a member says about the records that it holds, and whether it is well formed."""

import enum
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from headwater.errors import ErrorCode, RequestError
from headwater.queue.run import DeliveryState
from headwater.queue.runs import Runs
from headwater.queue.share_config import ShareConfig

__all__ = ["AckBatch", "AckType", "check_batches", "check_held", "check_pledge"]

DELAY_S_MAX = 366 * 86_400
"""A year: the longest delay of a release."""


class AckType(enum.IntEnum):
    """Kafka's numbers."""

    GAP = 0
    """Nothing is at this offset."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckBatch(NamedTuple):
    """Consecutive offsets with one type for all, or one for each."""

    first: int
    last: int
    types: Sequence[int]
    delay_s: float = 0.0
    """How long after a release it is available again."""
    uncounted: bool = False
    """Whether the delivery that a release ends does not count."""

    def parts(self) -> Iterator[tuple[int, int, AckType]]:
        """First and last offset of each part with one type."""
        if len(self.types) == 1:
            yield self.first, self.last, AckType(self.types[0])
            return
        at = self.first
        for kind, group in itertools.groupby(self.types):
            count = sum(1 for _ in group)
            yield at, at + count - 1, AckType(kind)
            at += count


def check_batches(batches: Iterable[AckBatch], *, renewing: bool) -> list[AckBatch]:
    """The batches of one partition, in the order of their offsets; raises RequestError.

    Only a request that is said to renew may hold renewals.
    """
    last_type = AckType.RENEW if renewing else AckType.REJECT
    checked: list[AckBatch] = []
    for batch in batches:
        first, last, types = batch[:3]
        if first < 0 or first > last or (checked and first < checked[-1].last):
            raise _invalid(f"offsets {first} to {last} are not in order")
        if checked and first == checked[-1].last:  # as in Kafka, which sees this only when it is acknowledged
            what = f"offset {first} is acknowledged twice"
            raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)
        if len(types) not in {1, last - first + 1}:
            raise _invalid(f"{len(types)} types for offsets {first} to {last}, expected 1 or one for each")
        kinds = set(types)
        if not all(0 <= kind <= last_type for kind in kinds):
            raise _invalid(f"types {sorted(kinds)}, expected 0 to {int(last_type)}")
        if (batch.delay_s or batch.uncounted) and kinds != {AckType.RELEASE}:
            raise _invalid(f"a delay or an uncounted delivery of types {sorted(kinds)}, expected 2")
        if not 0 <= batch.delay_s <= DELAY_S_MAX:
            raise _invalid(f"a delay of {batch.delay_s} s, expected 0 to {DELAY_S_MAX}")
        checked.append(batch)
    return checked


def check_held(runs: Runs, member: str, batch: AckBatch, config: ShareConfig) -> None:
    """Raises RequestError unless a member holds all that it speaks of, as far as that is not settled."""
    if not config.renew_acknowledge_enable and AckType.RENEW in batch.types:
        what = "locks of this group cannot be renewed, see share.renew.acknowledge.enable"
        raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)
    if batch.last < runs.start:
        return
    if not len(runs):
        what = f"offsets {batch.first} to {batch.last} were not acquired"
        raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)
    if batch.last >= runs.end:
        what = f"offset {batch.last} is after the last one that was delivered, {runs.end - 1}"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    for first, last, kind in batch.parts():
        if last < runs.start:
            continue
        for run in runs.between(max(first, runs.start), last):
            if run.state is DeliveryState.SETTLED and kind is AckType.GAP:
                continue
            if run.state is not DeliveryState.ACQUIRED or run.member != member:
                holder = "another member" if run.member else "no member"
                what = f"offsets {run.first} to {run.last} are held by {holder}"
                raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)


def check_pledge(runs: Runs, member: str, batch: AckBatch, config: ShareConfig) -> None:
    """Raises RequestError unless a transaction may settle it: the member holds all of it.

    Offsets before the start are refused, which are settled or deleted: what was made of them must not be in
    the log twice.
    """
    check_held(runs, member, batch, config)
    if not set(batch.types) <= {AckType.ACCEPT, AckType.REJECT}:
        what = f"a transaction accepts and rejects, got types {sorted(set(batch.types))}"
        raise RequestError(ErrorCode.INVALID_REQUEST, what)
    if batch.first < runs.start:
        what = f"offsets {batch.first} to {min(batch.last, runs.start - 1)} are settled or deleted"
        raise RequestError(ErrorCode.INVALID_RECORD_STATE, what)


def _invalid(what: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"an acknowledgement has {what}")
