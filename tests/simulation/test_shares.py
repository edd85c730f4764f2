"""Lives of a share group in virtual time: nothing is lost, delivered too often, early, out of the order of its key, or with two members at once, whatever happens to the broker.

QUEUE_LIVES sets how many lives of a hundred steps there are, QUEUE_SEED the first hundred of them. A life that fails is named by its seed.
"""

import heapq
import logging
import os
from unittest import mock

import pytest

from headwater.door.kafka import share_acknowledge, share_fetch
from headwater.door.kafka import sharing as sharing_module
from headwater.log.shares import indexed_reading, share_record, share_store, shares
from headwater.log.shares.pledges import Pledges
from headwater.log.shares.share_store import ShareStore
from headwater.queue.record_index import RecordIndex, read_headers
from headwater.queue.run import DeliveryState, Run
from headwater.queue.share_partition import SharePartition
from simulation.model import Wrong
from simulation.shares import live

STEPS = 100
LIVES = int(os.environ.get("QUEUE_LIVES", "15"))
FIRST = int(os.environ.get("QUEUE_SEED", "0")) * 100


@pytest.fixture(autouse=True)
def quiet():
    """Full disks and torn tails are logged, thousands of times."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_record_is_lost_delivered_too_often_or_held_twice():
    wrong = []
    for seed in range(FIRST, FIRST + LIVES):
        try:
            live(seed, STEPS)
        except Exception as error:  # noqa: BLE001  whatever a life ends with is its result
            wrong.append(f"life {seed}: {error!r}")
    assert not wrong, "\n".join(wrong)


def answer_at_once(sharing, compose):
    return sharing_module.answer(sharing, compose)


def apply_any_epoch(store, key, slot, update):
    if key in store._stored:
        for run in update.decoded_runs(store.started_ms):
            store._stored[key].runs.write(run)


def store_without_another_snapshot(store, partitions, *, whole=False):
    pairs = [store._encode(key, partition, whole=whole) for key, partition in partitions.items()]
    store._append([share_store.Record(*pair, (), store._clock.now_ms()) for pair in pairs if pair])


def make_ready_whatever_its_key(index, record):
    if record.offset not in index._is_ready:
        index._is_ready.add(record.offset)
        heapq.heappush(index._ready[record.priority], record.offset)


def forget_what_is_delayed(index, run):
    changed(index, run._replace(state=DeliveryState.SETTLED) if run.state is DeliveryState.DELAYED else run)


def recover_settled(cls, start, runs, *more):
    held = DeliveryState.ACQUIRED
    return recover(cls, start, [run.settled() if run.state is held else run for run in runs], *more)


recover = SharePartition.recover.__func__
changed = RecordIndex.changed
conclude = SharePartition.conclude
expire = SharePartition.expire
MUTATIONS = {
    "an answer does not wait for the disk": (
        mock.patch.object(share_fetch, "when_stored", answer_at_once),
        mock.patch.object(share_acknowledge, "when_stored", answer_at_once),
    ),
    "updates of an earlier snapshot count": (mock.patch.object(ShareStore, "_load_update", apply_any_epoch),),
    "what could not be stored is not undone": (mock.patch.object(SharePartition, "restore"),),
    "after a failed write comes no snapshot": (
        mock.patch.object(ShareStore, "store", store_without_another_snapshot),
    ),
    "locks end early": (
        mock.patch.object(SharePartition, "expire", lambda self, now, config: expire(self, now + 3, config)),
    ),
    "a release forgets the deliveries": (
        mock.patch.object(Run, "released", lambda run, *_: Run(run.first, run.last, DeliveryState.AVAILABLE)),
    ),
    "delays end early": (
        mock.patch.object(
            SharePartition, "expire", lambda self, now, config: expire(self, now + 0.2, config)
        ),
    ),
    "delays are not stored": (mock.patch.object(share_record, "_due_ms", lambda _, started_ms: started_ms),),
    "what has not begun counts as delivered": (
        mock.patch.object(Run, "returned", lambda run, until=0.0: run.released(25, until)),
    ),
    "keys do not count": (mock.patch.object(RecordIndex, "_make_ready", make_ready_whatever_its_key),),
    "a failure does not block its key": (mock.patch.object(RecordIndex, "changed", forget_what_is_delayed),),
    "scheduled records go out at once": (
        mock.patch.object(indexed_reading, "read_headers", lambda headers: (read_headers(headers)[0], 0)),
    ),
    "a record that has not begun is scheduled": (
        mock.patch.object(
            Run,
            "is_scheduled",
            property(lambda run: run.state is DeliveryState.DELAYED and not run.deliveries),
        ),
    ),
    "an abort settles": (
        mock.patch.object(
            SharePartition, "conclude", lambda self, *args, **_: conclude(self, *args, commit=True)
        ),
    ),
    "a restart forgets pledges": (mock.patch.object(Pledges, "of", return_value={}),),
    "pledges are released with their member": (mock.patch.object(shares, "holder", return_value="ada"),),
    "a restart settles what members held": (
        mock.patch.object(SharePartition, "recover", classmethod(recover_settled)),
    ),
}
FOUND_BY = {
    "an answer does not wait for the disk": 0,
    "updates of an earlier snapshot count": 0,
    "what could not be stored is not undone": 22,
    "after a failed write comes no snapshot": 17,
    "locks end early": 10,
    "a release forgets the deliveries": 0,
    "delays end early": 40,
    "delays are not stored": 3,
    "what has not begun counts as delivered": 4,
    "keys do not count": 0,
    "a failure does not block its key": 8,
    "scheduled records go out at once": 0,
    "a record that has not begun is scheduled": 151,
    "an abort settles": 10,
    "a restart forgets pledges": 4,
    "pledges are released with their member": 0,
    "a restart settles what members held": 4,
}
"""A life of eighty steps that finds each."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_defect_is_found(name):
    live(FOUND_BY[name], 80)
    for patch in MUTATIONS[name]:
        patch.start()
    try:
        with pytest.raises(Wrong):
            live(FOUND_BY[name], 80)
    finally:
        for patch in MUTATIONS[name]:
            patch.stop()
