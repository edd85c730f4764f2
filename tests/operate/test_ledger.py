"""The account adds up after all that may happen to a record, on both logs, and names what was lost, doubled or miscounted."""

import json
import sys
import uuid

import pytest
from confluent_kafka import Consumer, TopicPartition

from headwater.cli.main import main
from headwater.client.client import admin, producer
from headwater.operate.log.census import Census, Stretch
from headwater.operate.log.ledger import Unbalanced, account, accounts, check
from headwater.operate.log.readings import Reading, Tally
from headwater.result import Taken
from support.resultlog import Driver
from support.servers import both_logs, create_topic, wait_until


class Written:
    """A topic of its own, and what is written to it and read from it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.topic = f"account-{uuid.uuid4().hex[:8]}"
        self.view = f"{self.topic}-view"
        self.admin = admin(bootstrap)
        self._driver: Driver | None = None
        self.create(self.topic)

    def create(self, name: str, **config: str) -> None:
        create_topic(self.admin, name, **config)

    def put(self, count: int, topic: str = "", *, key: str = "k", headers: list | None = None) -> None:
        made = producer(self.bootstrap)
        for n in range(count):
            made.produce(topic or self.topic, f"{n}", key, headers=headers)
        assert made.flush(30) == 0

    def transaction(self, count: int, *, commit: bool) -> None:
        made = producer(
            self.bootstrap, **{"transactional.id": uuid.uuid4().hex, "message.timeout.ms": 30_000}
        )
        made.init_transactions(30)
        made.begin_transaction()
        for n in range(count):
            made.produce(self.topic, f"{n}", "k")
        assert made.flush(30) == 0
        (made.commit_transaction if commit else made.abort_transaction)(30)

    def result(self, position: int, taken: Taken | None = None) -> None:
        """One more batch of a view that has read the topic up to a position."""
        self._driver = self._driver or Driver(self.bootstrap, self.view)
        more = {"taken": {self.topic: taken}} if taken else {}
        self._driver.publish({self.topic: {0: position}}, {"a": b"{}"}, **more)

    def commit(self, sink: str, offset: int, said: str = "") -> str:
        """What a sink tells of its position."""
        name = f"{self.topic}.{sink}"
        self._commit(f"headwater.sink.{name}", offset, said)
        return name

    def commit_in_real_time(self, offset: int, said: str = "") -> None:
        """What a real-time view tells of its position: it has a topic of results, and none in it."""
        create_topic(self.admin, self.view)
        create_topic(self.admin, f"{self.view}.progress")
        self._commit(f"headwater.{self.view}", offset, said)

    def _commit(self, group: str, offset: int, said: str) -> None:
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        reader.commit(offsets=[TopicPartition(self.topic, 0, offset, said)], asynchronous=False)
        reader.close()

    def bury(self, sink: str, *offsets: int) -> None:
        for offset in offsets:
            about = {
                "sink": f"{self.topic}.{sink}",
                "topic": self.topic,
                "partition": "0",
                "offset": f"{offset}",
            }
            self.put(1, f"{self.topic}.dead", headers=list(about.items()))

    def terms(self, consumer: str) -> dict[str, int]:
        """The account of a consumer, without what is nothing."""
        (found,) = (each for each in accounts(self.bootstrap, [self.topic]) if each.consumer == consumer)
        assert found.fault == ""
        return {name: getattr(found, name) for name in found.__struct_fields__[2:] if getattr(found, name)}

    def faults(self) -> list[str]:
        return [
            each.fault.partition(" → ")[2] for each in accounts(self.bootstrap, [self.topic]) if each.fault
        ]


@pytest.fixture
def written(bootstrap):
    return Written(bootstrap)


@both_logs
def test_records_of_a_view_are_counted_without_markers_and_aborted_ones(written):
    written.put(5)
    written.transaction(3, commit=True)
    written.transaction(2, commit=False)
    written.result(12, Taken(5, 1, 2))
    written.put(4)

    assert written.terms(written.view) == {
        "produced": 14,
        "processed": 5,
        "late": 1,
        "invalid": 2,
        "aborted": 2,
        "waiting": 4,
    }


@both_logs
@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (Taken(9, 0, 0), "1 of 10 records are missing"),
        (Taken(11, 0, 0), "1 records more than the 10 that were produced"),
        (Taken(9, 1, 1), "1 records more than the 10 that were produced"),
    ],
    ids=["lost", "doubled", "miscounted"],
)
def test_a_view_that_lost_or_doubled_a_record_is_named(written, taken, said):
    written.put(10)
    written.result(10, taken)

    assert written.faults() == [f"{written.view}: {said}"]
    with pytest.raises(Unbalanced, match=f"{written.topic} → {written.view}: {said}"):
        check(written.bootstrap, [written.view])


@both_logs
def test_a_real_time_view_has_an_account_with_what_it_has_left_out(written):
    written.put(6)
    written.transaction(2, commit=False)
    written.put(4)
    written.commit_in_real_time(11, "1 late, 2 invalid since 0")
    terms = {"produced": 12, "processed": 5, "late": 1, "invalid": 2, "aborted": 2, "waiting": 2}
    assert written.terms(written.view) == terms


@both_logs
@pytest.mark.parametrize(
    "said", ["", "1 late, 2 invalid since 0"], ids=["never", "since a record that is gone"]
)
def test_what_a_real_time_view_has_left_out_counts_only_with_the_records_that_it_was_counted_from(
    written, said
):
    written.put(10)
    written.commit_in_real_time(8, said)
    place = TopicPartition(written.topic, 0, 3)
    written.admin.delete_records([place])[place].result(30)
    assert written.terms(written.view) == {"produced": 7, "processed": 5, "waiting": 2}


@both_logs
def test_a_sink_has_processed_what_is_before_its_position_but_for_dead_letters(written):
    written.put(6)
    written.transaction(2, commit=False)
    written.put(4)
    name = written.commit("out", 11)
    written.create(f"{written.topic}.dead")
    written.bury("out", 1, 3, 3, 12)
    written.bury("other", 2)

    assert written.terms(name) == {"produced": 12, "processed": 6, "dead": 2, "aborted": 2, "waiting": 2}

    written.bury("out", 7)  # an aborted record is nobody's to bury
    assert written.faults() == [f"{name}: 1 records more than the 12 that were produced"]


@both_logs
@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("6 since 2", []),
        ("5 since 2", ["1 of 9 records are missing"]),
        ("7 since 2", ["1 records more than the 9 that were produced"]),
    ],
    ids=["right", "lost", "doubled"],
)
def test_what_a_sink_counts_itself_is_held_against_the_log(written, said, fault):
    written.put(9)
    name = written.commit("out", 8, said)

    assert written.faults() == [f"{name}: {each}" for each in fault]


@both_logs
def test_a_position_behind_the_end_is_named(written):
    written.put(3)
    name = written.commit("out", 5)

    assert written.faults() == [f"{name}: the consumer's position is 2 offsets past the end of the topic"]


@both_logs
def test_shed_records_are_part_of_the_account_of_their_topic(written):
    written.put(3)
    written.create(f"{written.topic}.shed")
    written.put(2, f"{written.topic}.shed")
    name = written.commit("out", 3)

    assert written.terms(name) == {"produced": 5, "processed": 3, "shed": 2}


@both_logs
def test_what_the_log_removed_is_expired_for_who_had_not_read_it(written):
    written.put(10)
    slow, quick = written.commit("slow", 2), written.commit("quick", 9, "9 since 0")
    places = [TopicPartition(written.topic, 0, 6)]
    written.admin.delete_records(places)[places[0]].result(60)

    assert written.terms(slow) == {"produced": 8, "expired": 4, "waiting": 4}
    assert written.terms(quick) == {"produced": 4, "processed": 3, "waiting": 1}


@both_logs
def test_a_view_is_held_against_the_log_from_the_oldest_result_on_that_it_still_covers(written):
    written.put(10)
    written.result(4, Taken(3, 1, 0))
    written.result(10, Taken(8, 1, 1))
    places = [TopicPartition(written.topic, 0, 4)]
    written.admin.delete_records(places)[places[0]].result(60)

    assert written.terms(written.view) == {"produced": 6, "processed": 5, "invalid": 1}

    written.result(10, Taken(9, 1, 1))
    assert written.faults() == [f"{written.view}: 1 records more than the 6 that were produced"]


@both_logs
def test_what_compaction_took_is_told_and_counts_before_it_are_not_held_against_the_log(bootstrap):
    written = Written(bootstrap)
    topic = written.topic = f"{written.topic}-compact"
    quick = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.01", "max_compaction_lag_ms": "500"}
    written.create(topic, cleanup_policy="compact", **quick)
    written.put(20)
    name = written.commit("out", 20, "20 since 0")

    def compacted() -> bool:
        written.put(1, key="roll")
        return "compacted" in written.terms(name)

    wait_until(compacted, 60, "compaction")
    found = written.terms(name)
    assert found["produced"] == found["processed"] + found["compacted"] + found["waiting"]


@both_logs
def test_a_topic_that_nobody_reads_waits(written):
    written.put(3)

    assert written.terms("-") == {"produced": 3, "waiting": 3}


@both_logs
def test_the_command_prints_accounts_and_ends_with_1_when_one_does_not_add_up(written, monkeypatch, capfd):
    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["headwater", "ledger", *arguments, "--log", written.bootstrap])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capfd.readouterr()

    written.put(4)
    name = written.commit("out", 3, "3 since 0")
    code, said, _ = run(name, "--json")
    assert code in {0, None}
    assert json.loads(said) | {
        "topic": written.topic,
        "produced": 4,
        "processed": 3,
        "waiting": 1,
    } == json.loads(said)
    assert "processed" in run(written.topic)[1]

    written.commit("out", 3, "2 since 0")
    code, _, complaint = run(written.topic)
    assert code == 1
    assert f"{written.topic} → {name}: 1 of 4 records are missing" in complaint
    assert "there is no topic, view or sink 'nothing'" in run("nothing")[2]


def test_counts_are_used_from_where_the_log_is_whole_on():
    holes = {0: Census(10, 30, [Stretch(10, 15, "record"), Stretch(18, 30, "record")])}
    longer, shorter = Tally({0: 12}, 99), Tally({0: 20}, 7, late=1)
    found = account(Reading("t", "v", {0: 28}, [[Tally({0: 0}, 99), longer, shorter]]), holes)

    assert (found.processed, found.late, found.compacted, found.waiting) == (14, 1, 3, 2)
    assert found.fault == ""


def test_a_hole_in_a_topic_that_is_not_compacted_is_a_loss_and_is_named():
    holes = {0: Census(10, 30, [Stretch(10, 15, "record"), Stretch(18, 30, "record")])}
    reading = Reading("t", "v", {0: 28})

    assert account(reading, holes, compacted=True).fault == ""
    found = account(reading, holes, compacted=False)
    assert (found.lost, found.compacted, found.produced, found.missing) == (3, 0, 20, 3)
    assert found.fault.startswith("t → v: the log has lost 3 records")


def test_a_dead_letter_whose_record_was_compacted_away_is_in_one_term_only():
    holes = {0: Census(0, 10, [Stretch(0, 3, "record"), Stretch(4, 10, "record")])}
    found = account(Reading("t", "s", {0: 10}, dead={(0, 3), (0, 5)}), holes)

    assert (found.produced, found.processed, found.dead, found.compacted) == (10, 8, 1, 1)
    assert found.fault == ""


def test_effects_that_died_or_have_not_ended_are_taken_back_from_what_was_counted():
    whole = {0: Census(0, 10, [Stretch(0, 10, "record")])}
    effects = {(0, 1), (0, 4)}
    counted = Reading("t", "s", {0: 8}, [[Tally({0: 3}, 5)]], effects, effects, {(0, 2), (0, 5), (0, 9)})
    found = account(counted, whole)

    assert (found.processed, found.dead, found.waiting) == (4, 2, 4)
    assert found.fault == ""
