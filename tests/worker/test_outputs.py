"""What handlers have written, brought into the embedded log with the acknowledgements: one message that cannot be committed takes no other one with it."""

import uuid
from contextlib import contextmanager

import pytest

from headwater.client.share.consumer import ShareConsumer
from headwater.client.share.group_settings import set_group_settings
from headwater.client.share.membership import Membership, new_member_id
from headwater.client.share.session import Ack, AckKind
from headwater.record import Record
from headwater.worker.outcome import Succeeded
from headwater.worker.outputs import Finale, TransactionalOutputs
from headwater.worker.topics import Topics
from headwater.worker.work import Written
from headwater.worker.work_list import Task
from support.servers import wait_until
from worker.running import fresh, made, produce, read


@pytest.fixture
def topic(bootstrap):
    return made(bootstrap, fresh())


class Side:
    """A consumer that holds messages, and the outputs that commit them."""

    def __init__(self, bootstrap, topic):
        self.out = f"{topic}-out"
        group = f"outputs of {topic}"
        set_group_settings(bootstrap, group, {"share.auto.offset.reset": "earliest"})
        self.consumer = ShareConsumer(bootstrap, group, new_member_id())
        self.membership = Membership(
            bootstrap, group, self.consumer.member, [topic], on_change=self.consumer.assign
        )
        self.topics = Topics(bootstrap, 1)
        self.results = {}
        self.outputs = TransactionalOutputs(bootstrap, self.consumer, self.topics, self.note)
        self.membership.start()
        self.held = {}

    def note(self, results):
        self.results |= {result.finale.task.record.value: result for result in results}

    def turns(self, condition, room=100):
        def turn():
            for each in self.consumer.turn(room, 100, 0.1).deliveries:
                self.held[each.record.value] = Task(each.topic, each.place, each.record, each.deliveries, 0.0)
            return condition()

        wait_until(turn, what="the turns of the consumer")

    def finale(self, value, *written):
        task = self.held[value]
        records = [Written(self.out, Record(b"k", record)) for record in written or (value,)]
        return Finale(task, records, Succeeded())

    def commit(self, *finales):
        """In one transaction."""
        batch = iter(finales)
        first = next(batch)
        commit = self.outputs._commit
        taken = []

        def commit_all(finales, **options):
            if not taken:
                taken.append(finales)
                finales = [*finales, *batch]
            return commit(finales, **options)

        self.outputs._commit = commit_all
        self.outputs.put(first)
        self.turns(lambda: len(self.results) == len(finales), room=0)

    def close(self):
        self.consumer.close(10)
        self.outputs.close()
        self.membership.stop()
        self.topics.close()


@contextmanager
def side(bootstrap, topic, *values):
    """Values of one word are in partition 0, others in partition 1."""
    for value in values:
        produce(bootstrap, topic, value, partition=int(b" " in value))
    one = Side(bootstrap, topic)
    try:
        one.turns(lambda: len(one.held) == len(values))
        yield one
    finally:
        one.close()


def outcomes(one):
    return {
        value: (not result.error, result.is_acknowledged, result.is_released)
        for value, result in one.results.items()
    }


DONE, RELEASED = (True, True, False), (False, False, True)


def test_a_message_that_is_no_longer_held_leaves_the_others_of_its_partition_committed(bootstrap, topic):
    with side(bootstrap, topic, b"a", b"b", b"c", b"d") as one:
        lost = one.held[b"b"]
        one.consumer.acknowledge(lost.place, Ack(lost.record.offset, AckKind.RELEASE, 3_600_000))
        one.turns(lambda: one.consumer.is_settled, room=0)

        one.commit(*map(one.finale, (b"a", b"b", b"c", b"d")))

        assert outcomes(one) == {b"a": DONE, b"b": RELEASED, b"c": DONE, b"d": DONE}
        assert "held by no member" in one.results[b"b"].error
    assert sorted(each.value() for each in read(bootstrap, one.out)) == [b"a", b"c", b"d"]


def test_messages_of_another_partition_that_were_part_of_the_transaction_come_again(bootstrap, topic):
    """The broker has released them with the transaction; the worker then ends them as before."""
    with side(bootstrap, topic, b"a", b"b", b"in 1") as one:
        lost = one.held[b"b"]
        one.consumer.acknowledge(lost.place, Ack(lost.record.offset, AckKind.RELEASE, 3_600_000))
        one.turns(lambda: one.consumer.is_settled, room=0)

        one.commit(*map(one.finale, (b"a", b"b", b"in 1")))

        assert outcomes(one) == {b"a": DONE, b"b": RELEASED, b"in 1": RELEASED}
        one.turns(lambda: one.held[b"in 1"].attempt == 2)
    assert [each.value() for each in read(bootstrap, one.out)] == [b"a"]


def test_a_record_that_is_too_large_leaves_the_messages_of_all_others_committed(bootstrap, topic):
    made(bootstrap, f"{topic}-out", 1, max_message_bytes="2000")
    with side(bootstrap, topic, b"a", b"b", b"c", b"d", b"in 1") as one:
        large = uuid.uuid4().bytes + bytes(range(256)) * 4 + b"".join(uuid.uuid4().bytes for _ in range(200))

        one.commit(*map(one.finale, (b"a", b"b")), one.finale(b"c", large), *map(one.finale, (b"d", b"in 1")))

        assert one.results.pop(b"c").is_hopeless
        assert set(outcomes(one).values()) == {DONE}
        assert len(one.results) == 4
    assert sorted(each.value() for each in read(bootstrap, one.out)) == [b"a", b"b", b"d", b"in 1"]


def test_what_was_made_of_a_message_is_not_committed_once_another_member_has_settled_it(bootstrap):
    """Its process was suspended, for example, and the group's start is already past the message."""
    topic = made(bootstrap, fresh(), 1)  # of two partitions, each of two members would get one
    with side(bootstrap, topic, b"a") as slow:
        finale = slow.finale(b"a", b"twice")
        slow.consumer.acknowledge(finale.task.place, Ack(finale.task.record.offset, AckKind.RELEASE))
        with side(bootstrap, topic) as quick:

            def arrives():
                for again in slow.consumer.turn(0, 0, 0.1).deliveries:  # by a fetch that was under way
                    slow.consumer.acknowledge(again.place, Ack(again.record.offset, AckKind.RELEASE))
                return b"a" in quick.held

            quick.turns(arrives)
            quick.commit(quick.finale(b"a", b"once"))
            assert outcomes(quick) == {b"a": DONE}

        slow.commit(finale)

        assert outcomes(slow) == {b"a": RELEASED}
        assert "settled" in slow.results[b"a"].error
    assert [each.value() for each in read(bootstrap, slow.out)] == [b"once"]


def test_a_message_whose_lock_was_lost_is_left_out_of_the_transaction(bootstrap, topic):
    """It may have come again already, and be in the same transaction a second time."""
    with side(bootstrap, topic, b"a", b"b") as one:
        lost = one.finale(b"b", b"earlier")
        lost.task.is_lost = True

        one.outputs.put(lost)
        one.outputs.put(one.finale(b"a"))
        one.turns(lambda: len(one.results) == 2, room=0)

        assert outcomes(one) == {b"a": DONE, b"b": RELEASED}
    assert [each.value() for each in read(bootstrap, one.out)] == [b"a"]
