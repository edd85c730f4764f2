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
from headwater.log.shares import administration, indexed_reading, share_record, shares
from headwater.log.shares.parked_scan import ParkedScan
from headwater.log.shares.pledges import Pledges
from headwater.log.shares.share_store import ShareStore, Stored
from headwater.queue import settlement
from headwater.queue.parking import Parking
from headwater.queue.recent_ids import RecentIds
from headwater.queue.record_headers import read_headers
from headwater.queue.record_index import RecordIndex
from headwater.queue.run import DeliveryState, Run
from headwater.queue.schedule import NEVER_DUE
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
    encoded = [store._encode(key, partition, whole=whole) for key, partition in partitions.items()]
    store._append([record for records in encoded for record in records])


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
conclude, settle = settlement.conclude, settlement.settle
facts = Parking.facts
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
        mock.patch.object(
            indexed_reading, "read_headers", lambda headers: read_headers(headers)._replace(due_ms=0)
        ),
    ),
    "a record that has not begun is scheduled": (
        mock.patch.object(
            Run,
            "is_scheduled",
            property(lambda run: run.state is DeliveryState.DELAYED and not run.deliveries),
        ),
    ),
    "an abort settles": (
        mock.patch.object(shares, "conclude", lambda share, *args, **_: conclude(share, *args, commit=True)),
    ),
    "a restart forgets pledges": (mock.patch.object(Pledges, "of", return_value={}),),
    "pledges are released with their member": (mock.patch.object(shares, "holder", return_value="ada"),),
    "it is not stored what has been due": (
        mock.patch.object(
            Parking, "facts", lambda self, *args: facts(self, *args)._replace(due_to=NEVER_DUE)
        ),
    ),
    "a restart forgets which keys have deferred records": (mock.patch.object(Stored, "note_parked"),),
    "a restart looks for nothing that is parked": (mock.patch.object(ParkedScan, "_look_at"),),
    "cancelled records are found again": (mock.patch.object(Parking, "exclude"),),
    "records go out after their time": (
        mock.patch.object(
            indexed_reading, "read_headers", lambda headers: read_headers(headers)._replace(expires_ms=0)
        ),
    ),
    "ids do not count": (mock.patch.object(RecentIds, "is_repeated", return_value=False),),
    "ids are forgotten when a change is undone": (
        mock.patch.object(RecordIndex, "resets", property(lambda _: 0, lambda *_: None), create=True),
    ),
    "administrators settle what members hold": (
        mock.patch.object(administration, "settle", lambda *args, **_: settle(*args, held_too=True)),
    ),
    "a restart settles what members held": (
        mock.patch.object(SharePartition, "recover", classmethod(recover_settled)),
    ),
}
FOUND_BY = {
    "an answer does not wait for the disk": 3,
    "updates of an earlier snapshot count": 0,
    "what could not be stored is not undone": 21,
    "after a failed write comes no snapshot": 60,
    "locks end early": 1,
    "a release forgets the deliveries": 0,
    "delays end early": 66,
    "delays are not stored": 5,
    "what has not begun counts as delivered": 1,
    "keys do not count": 0,
    "a failure does not block its key": 1,
    "scheduled records go out at once": 1,
    "a record that has not begun is scheduled": 55,
    "an abort settles": 33,
    "a restart forgets pledges": 4,
    "pledges are released with their member": 4,
    "it is not stored what has been due": 4,
    "a restart forgets which keys have deferred records": 0,
    "a restart looks for nothing that is parked": 0,
    "cancelled records are found again": 0,
    "records go out after their time": 0,
    "ids do not count": 0,
    "ids are forgotten when a change is undone": 313,
    "administrators settle what members hold": 0,
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
