"""A share partition against a model that keeps each offset by itself, and the rules that examples show best."""

import dataclasses

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.errors import ErrorCode, RequestError
from headwater.queue.acknowledgement import AckBatch, AckType, check_batches
from headwater.queue.acquisition import Acquisition, Span, Wish
from headwater.queue.batch_acquisition import acquire_batches, next_offset
from headwater.queue.run import DeliveryState, Run
from headwater.queue.runs import Runs
from headwater.queue.settlement import settle
from headwater.queue.share_config import ShareConfig
from headwater.queue.share_partition import SharePartition

LOCK_S = 30.0
CONFIG = ShareConfig(delivery_count_limit=5, partition_max_record_locks=100)
MEMBERS = ("ada", "bo")


def acquire(share, member, spans, *, count=500, strict=False, config=CONFIG, now=0.0):
    """What a member gets of a log, from where the share partition wants to read."""
    acquisition = Acquisition(Wish(member, count, strict), config, now)
    first = next_offset(share, config)
    if first is not None:
        acquire_batches(share, acquisition, first, [span for span in spans if span.last >= first])
    return [tuple(each) for each in acquisition.acquired()]


def batch(first: int, last: int) -> Span:
    return Span(first, last, deliver=True)


def test_offsets_without_records_are_passed_over():
    share = SharePartition(0)
    spans = [batch(2, 3), Span(4, 4, deliver=False), batch(7, 8)]
    assert acquire(share, "ada", spans) == [(2, 3, 1), (7, 8, 1)]
    assert (share.start, share.end, share.unsettled) == (2, 9, 4)
    share.acknowledge(
        "ada", [AckBatch(2, 8, (AckType.ACCEPT,) * 2 + (AckType.GAP,) * 3 + (AckType.ACCEPT,) * 2)], CONFIG, 0
    )
    assert (share.start, share.end, share.unsettled) == (9, 9, 0)


def test_records_in_front_of_a_stored_change_are_available_if_the_change_before_it_could_not_be_read():
    runs = Runs(0)
    runs.write(Run(5, 9, DeliveryState.SETTLED))
    assert (runs.start, runs.end) == (0, 10)
    assert [(run.first, run.last, run.state) for run in runs] == [
        (0, 4, DeliveryState.AVAILABLE),
        (5, 9, DeliveryState.SETTLED),
    ]


def test_a_record_that_compaction_has_removed_is_not_waited_for():
    share = SharePartition(0)
    acquire(share, "ada", [batch(0, 9)])
    share.release("ada", CONFIG)
    assert acquire(share, "bo", [batch(5, 9)]) == [(5, 9, 2)]
    assert share.start == 5


def test_settled_records_between_others_are_one_range_however_many_there_are():
    share = SharePartition(0)
    wide = msgspec.structs.replace(CONFIG, partition_max_record_locks=10_000)
    acquire(share, "ada", [batch(0, 9999)], config=wide)
    types = [AckType.ACCEPT, AckType.REJECT, AckType.GAP] * 3332
    share.acknowledge("ada", [AckBatch(1, 9996, tuple(types))], wide, 0)
    assert len(share.runs) == 3
    assert share.settled == 9996


def test_a_lock_that_is_over_settles_the_record_at_the_limit():
    config = ShareConfig(delivery_count_limit=2)
    share = SharePartition(0)
    for deliveries in (1, 2):
        assert acquire(share, "ada", [batch(0, 0)], config=config, now=100.0 * deliveries) == [
            (0, 0, deliveries)
        ]
        assert not share.expire(100.0 * deliveries + LOCK_S - 1, config)
        assert share.expire(100.0 * deliveries + LOCK_S, config)
    assert share.start == 1
    assert share.deadline is None


def test_a_renewed_lock_begins_again():
    share = SharePartition(0)
    acquire(share, "ada", [batch(0, 1)])
    share.acknowledge("ada", [AckBatch(1, 1, (AckType.RENEW,))], CONFIG, 20.0)
    assert share.expire(LOCK_S, CONFIG)
    assert [run.state for run in share.runs] == [DeliveryState.AVAILABLE, DeliveryState.ACQUIRED]
    assert share.deadline == 20.0 + LOCK_S


def test_a_suspicious_record_is_not_delivered_with_others():
    share = SharePartition(0)
    for _ in range(3):
        acquire(share, "ada", [batch(0, 0)])
        share.release("ada", CONFIG)
    assert acquire(share, "ada", [batch(0, 0), batch(1, 5)]) == [(0, 0, 4)]
    assert acquire(share, "bo", [batch(1, 5)]) == [(1, 5, 1)]
    share.release("bo", CONFIG)
    share.release("ada", CONFIG)
    assert acquire(share, "ada", [batch(0, 0), batch(1, 5)]) == [(0, 0, 5)]


def test_a_later_suspicious_record_ends_the_delivery_before_it():
    share = SharePartition(0)
    acquire(share, "bo", [batch(0, 9)])
    for _ in range(3):
        share.acknowledge("bo", [AckBatch(5, 5, (AckType.RELEASE,))], CONFIG, 0)
        acquire(share, "bo", [batch(5, 5)])
    share.release("bo", CONFIG)
    assert acquire(share, "ada", [batch(0, 9)]) == [(0, 4, 2)]
    assert acquire(share, "ada", [batch(5, 9)]) == [(5, 5, 5)]
    assert acquire(share, "ada", [batch(6, 9)]) == [(6, 9, 2)]


@pytest.mark.parametrize(
    ("member", "acks", "code"),
    [
        ("bo", [(0, 0, (1,))], ErrorCode.INVALID_RECORD_STATE),
        ("ada", [(0, 10, (1,))], ErrorCode.INVALID_REQUEST),
        ("ada", [(0, 0, (1,)), (12, 12, (1,))], ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_acknowledgement_that_is_refused_changes_nothing(member, acks, code):
    share = SharePartition(0)
    acquire(share, "ada", [batch(0, 9)])
    share.take_changes()
    before = share.runs
    with pytest.raises(RequestError) as refused:
        share.acknowledge(member, check_batches([AckBatch(*ack) for ack in acks], renewing=False), CONFIG, 0)
    assert refused.value.code == code
    assert share.runs == before
    assert share.take_changes() == []


def test_what_is_before_the_start_may_be_acknowledged_again():
    """A member whose answer was lost sends it again."""
    share = SharePartition(0)
    acquire(share, "ada", [batch(0, 9)])
    for _ in range(2):
        share.acknowledge("ada", [AckBatch(0, 4, (AckType.ACCEPT,))], CONFIG, 0)
    assert share.start == 5
    with pytest.raises(RequestError):
        SharePartition(0).acknowledge("ada", [AckBatch(0, 0, (AckType.ACCEPT,))], CONFIG, 0)


def test_offsets_that_the_log_has_lost_are_unknown_again():
    share = SharePartition(0)
    acquire(share, "ada", [batch(0, 9)])
    assert share.drop_from(4)
    assert not share.drop_from(4)
    assert (share.end, share.unsettled) == (4, 4)
    share.drop_before(20)
    assert (share.start, share.end, share.unsettled, share.runs) == (20, 20, 0, [])


# ---- the model -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class One:
    """The model of one offset."""

    state: str = "new"
    deliveries: int = 0
    member: str = ""
    deadline: float = 0.0

    def release(self, limit: int, until: float = 0.0, *, uncounted: bool = False) -> None:
        self.member = ""
        self.deliveries -= uncounted
        self.state = "delayed" if until else "available"
        self.deadline = until
        if self.deliveries >= limit and not uncounted:
            self.state = "settled"


class Sharing(RuleBasedStateMachine):
    """One log of batches, gaps and markers; two members; time; restarts from what was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.config = ShareConfig(delivery_count_limit=3, partition_max_record_locks=100)
        self.share = SharePartition(0)
        self.stored = Runs(0)
        self.spans: list[Span] = []
        self.model: dict[int, One] = {}
        self.end = 0
        self.log_start = 0
        self.now = 0.0

    @rule(
        size=st.sampled_from([1, 1, 2, 5, 40]),
        gap=st.sampled_from([0, 0, 0, 1, 3]),
        deliver=st.sampled_from([True, True, True, False]),
    )
    def append(self, size, gap, deliver):
        first = self.end + gap
        self.spans.append(Span(first, first + size - 1, deliver))
        self.end = first + size
        if deliver:
            self.model |= {offset: One() for offset in range(first, self.end)}

    @rule(
        member=st.sampled_from(MEMBERS),
        count=st.sampled_from([1, 3, 500]),
        strict=st.booleans(),
        chunk=st.integers(1, 4),
    )
    def acquire(self, member, count, strict, chunk):
        self.share.drop_before(self.log_start)
        acquisition = Acquisition(Wish(member, count, strict), self.config, self.now)
        first, more = next_offset(self.share, self.config), True
        if first is None:
            in_flight = [o for o, one in self.model.items() if one.state in {"acquired", "available"}]
            assert len(in_flight) >= self.config.partition_max_record_locks
            return
        spans = [span for span in self.spans if span.last >= first]
        while spans and more:
            more = acquire_batches(self.share, acquisition, first, spans[:chunk])
            first, spans = spans[:chunk][-1].last + 1, spans[chunk:]
        got = acquisition.acquired()
        offsets = [(o, each.deliveries) for each in got for o in range(each.first, each.last + 1)]
        if strict:
            assert len(offsets) <= count
        for offset, deliveries in offsets:
            one = self.model[offset]
            assert one.state in {"new", "available"}, (offset, one)
            assert deliveries == one.deliveries + 1 <= self.config.delivery_count_limit
            one.state, one.deliveries, one.member = "acquired", deliveries, member
            one.deadline = self.now + LOCK_S
        if not offsets:  # it has seen all there is
            assert not any(one.state in {"new", "available"} for one in self.model.values())

    @precondition(lambda self: any(one.state == "acquired" for one in self.model.values()))
    @rule(member=st.sampled_from(MEMBERS), data=st.data())
    def acknowledge(self, member, data):
        held = [offset for offset, one in self.model.items() if one.member == member]
        if not held:
            return
        first = data.draw(st.sampled_from(held))
        last = first
        while last + 1 in held and data.draw(st.booleans()):
            last += 1
        kinds = [AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW, AckType.GAP]
        types = tuple(data.draw(st.sampled_from(kinds)) for _ in range(last - first + 1))
        delay_s, uncounted = data.draw(st.sampled_from([0.0, 1.0, LOCK_S])), data.draw(st.booleans())
        acks = AckBatch(first, last, types, delay_s, uncounted)
        self.share.acknowledge(member, [acks], self.config, self.now)
        until = self.now + delay_s if delay_s else 0.0
        for offset, kind in zip(range(first, last + 1), types, strict=True):
            one = self.model[offset]
            if kind is AckType.RENEW:
                one.deadline = self.now + LOCK_S
            elif kind is AckType.RELEASE:
                one.release(self.config.delivery_count_limit, until, uncounted=uncounted)
            else:
                one.state, one.member = "settled", ""

    @rule(member=st.sampled_from(MEMBERS), first=st.integers(0, 60), last=st.integers(0, 60))
    def acknowledge_what_is_not_held(self, member, first, last):
        span = range(min(first, last), max(first, last) + 1)
        if all(o in self.model and self.model[o].member == member for o in span if o >= self.share.start):
            return
        before = self.share.runs
        with pytest.raises(RequestError):
            self.share.acknowledge(
                member, [AckBatch(span[0], span[-1], (AckType.ACCEPT,))], self.config, self.now
            )
        assert self.share.runs == before

    @rule(first=st.integers(0, 80), length=st.integers(1, 30), held_too=st.booleans())
    def settle(self, first, length, held_too):
        """By an administrator, also before the records come up; what is not in the log yet never."""
        last = min(first + length, self.end) - 1
        if last < first:
            return
        held = [o for o in range(first, last + 1) if o in self.model and self.model[o].state == "acquired"]
        done = settle(self.share, first, last, held_too=held_too)
        left = [o for r in done.held for o in range(r.first, r.last + 1)]
        assert left == ([] if held_too else held)
        for offset in range(first, last + 1):
            if offset in self.model and offset not in left:
                self.model[offset] = One("settled")

    @rule(member=st.sampled_from(MEMBERS))
    def vanish(self, member):
        self.share.release(member, self.config)
        for one in self.model.values():
            if one.member == member:
                one.release(self.config.delivery_count_limit)

    @rule(seconds=st.sampled_from([1.0, LOCK_S - 1, LOCK_S + 1]))
    def pass_time(self, seconds):
        self.now += seconds
        self.share.expire(self.now, self.config)
        for one in self.model.values():
            if one.state == "acquired" and one.deadline <= self.now:
                one.release(self.config.delivery_count_limit)
            elif one.state == "delayed" and one.deadline <= self.now:
                one.state = "available"

    @rule(steps=st.integers(0, 10))
    def delete_records(self, steps):
        self.log_start = min(self.log_start + steps, self.end)
        self.share.drop_before(self.log_start)
        for offset in [offset for offset in self.model if offset < self.log_start]:
            del self.model[offset]
        self.spans = [span for span in self.spans if span.last >= self.log_start]

    @rule(limit=st.sampled_from([2, 3, 5]))
    def change_the_limit(self, limit):
        highest = max((one.deliveries for one in self.model.values() if one.state == "available"), default=0)
        if limit > highest:  # a lowered limit allows one more delivery, which the model leaves out
            self.config = msgspec.structs.replace(self.config, delivery_count_limit=limit)

    @rule()
    def restart(self):
        """Only the changes that were taken, one after the other, are known afterwards."""
        self.store()
        runs = list(self.stored)
        ahead = self.share.settled_ahead
        self.share = SharePartition.recover(self.stored.start, runs, self.config)
        self.share.settled_ahead = ahead
        self.stored = Runs(self.share.start, self.share.runs)
        for one in self.model.values():
            if one.state == "acquired":
                one.release(self.config.delivery_count_limit)

    @rule(member=st.sampled_from(MEMBERS))
    def fail_to_store(self, member):
        """What cannot be stored is undone."""
        self.store()
        copy, runs = self.share.copy(), self.share.runs
        self.acquire_and_forget(member)
        self.share.release(member, self.config)
        self.share.restore(copy)
        assert self.share.runs == runs

    def acquire_and_forget(self, member):
        first = next_offset(self.share, self.config)
        if first is not None:
            acquisition = Acquisition(Wish(member, 500), self.config, self.now)
            acquire_batches(
                self.share, acquisition, first, [span for span in self.spans if span.last >= first]
            )

    def store(self):
        for run in self.share.take_changes():
            self.stored.write(run)
        self.stored.drop_before(self.share.start)

    @invariant()
    def agrees_with_the_model(self):
        share = self.share
        at, unsettled = share.start, 0
        for run in share.runs:
            assert run.first == at
            at = run.last + 1
            unsettled += run.length if run.state is not DeliveryState.SETTLED else 0
            for offset in range(run.first, run.last + 1):
                one = self.model.get(offset, One("settled"))
                assert run.state.name.lower() == one.state, (offset, run, one)
                if run.state is not DeliveryState.SETTLED:
                    assert (run.deliveries, run.member) == (one.deliveries, one.member)
        assert (at, unsettled) == (share.end, share.unsettled)
        assert all(one.state == "settled" for offset, one in self.model.items() if offset < share.start)
        ahead = share.settled_ahead
        assert all(
            one.state == ("settled" if ahead.has(offset) else "new")
            for offset, one in self.model.items()
            if offset >= share.end
        )
        assert len(share.runs) <= 2 * share.unsettled + 1
        acquired = sum(one.state == "acquired" for one in self.model.values())
        assert acquired <= self.config.partition_max_record_locks
        assert share.delayed == sum(one.state == "delayed" for one in self.model.values())
        locks = [one.deadline for one in self.model.values() if one.state in {"acquired", "delayed"}]
        if locks:
            assert share.deadline <= min(locks)


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_a_run_continues_another_only_in_the_same_state():
    first = Run(0, 4, DeliveryState.AVAILABLE, 1, 5)
    assert Run(5, 9, DeliveryState.AVAILABLE, 1, 5).continues(first)
    assert not Run(5, 9, DeliveryState.AVAILABLE, 2, 5).continues(first)
    assert not Run(6, 9, DeliveryState.AVAILABLE, 1, 5).continues(first)
