"""The report is put together from what each process says, and believes no process that is silent or gone."""

import subprocess
import sys

import msgspec
import pytest

from headwater.health.board import STALE_MS, Board, BoardFile
from headwater.health.condition import PartStatus, State
from headwater.health.process_life import own_life
from headwater.health.report import Report, news, read
from headwater.testing import SettableClock

MEMBERS = {"pipeline": [("view", "revenue"), ("view", "visits")], "sinks": [("sink", "revenue.redis")]}


@pytest.fixture
def clock():
    return SettableClock()


class Processes:
    """What the processes of an application say, with one clock."""

    def __init__(self, folder, clock):
        self.folder, self.clock = folder, clock
        self.files = {name: BoardFile(folder, name, clock) for name in ("up", "pipeline", "sinks")}

    def part(self, kind, name, state="running", **more):
        return PartStatus(kind, name, State(state), self.clock.now_ms(), **more)

    def say_up(self, **states):
        kinds = {"broker": "log", "console": "console", "pipeline": "process", "sinks": "process"}
        parts = []
        for name, kind in kinds.items():
            state, error = states.get(name, ("running", ""))
            parts.append(self.part(kind, name if kind == "process" else kind, state, error=error))
        self.files["up"].write(parts, MEMBERS)

    def say(self, process, *parts):
        self.files[process].write(parts)

    def report(self):
        return read(self.folder, self.clock)

    def states(self):
        return {part.name: str(part.state) for part in self.report().parts}


@pytest.fixture
def processes(tmp_path, clock):
    found = Processes(tmp_path, clock)
    found.say_up()
    found.say("pipeline", found.part("view", "revenue", lag_records=7), found.part("view", "visits"))
    found.say("sinks", found.part("sink", "revenue.redis"))
    return found


def test_all_parts_are_listed_in_the_order_of_the_data(processes):
    report = processes.report()
    assert [part.name for part in report.parts] == ["log", "revenue", "visits", "revenue.redis", "console"]
    assert (report.status, report.is_healthy, report.is_ready) == ("ok", True, True)
    assert next(part for part in report.parts if part.name == "revenue").lag_records == 7


def test_one_view_that_fails_makes_the_whole_failing_and_leaves_the_others_as_they_are(processes):
    stopped = processes.part("view", "visits", "stopped", error="its definition has changed")
    processes.say("pipeline", processes.part("view", "revenue"), stopped)
    report = processes.report()
    assert (report.status, report.is_healthy, report.is_ready) == ("failing", False, False)
    assert report.part("view revenue").is_healthy
    assert report.part("visits").parts[0].error == "its definition has changed"
    assert report.part("nothing") is None


def test_the_parts_of_a_process_that_crashes_are_failing_for_its_reason_with_their_last_lag(processes):
    processes.say_up(pipeline=("failing", "pipeline ended with SIGKILL"))
    revenue = processes.report().part("revenue").parts[0]
    assert (revenue.kind, revenue.state, revenue.error) == ("view", "failing", "pipeline ended with SIGKILL")
    assert revenue.lag_records == 7
    assert processes.states()["revenue.redis"] == "running"


def test_a_part_that_waits_for_help_stays_named_when_its_process_crashes(processes):
    refused = processes.part("view", "visits", "stopped", error="rebuild it")
    processes.say("pipeline", processes.part("view", "revenue"), refused)
    processes.say_up(pipeline=("failing", "pipeline ended with SIGKILL"))
    assert processes.report().part("visits").parts[0].error == "rebuild it"


def test_a_process_that_says_nothing_any_more_cannot_claim_to_work(processes, clock):
    clock.advance(STALE_MS / 1000 + 1)
    processes.say_up()
    processes.say("sinks", processes.part("sink", "revenue.redis"))
    assert processes.states()["revenue"] == "failing"
    revenue = processes.report().part("revenue").parts[0]
    assert revenue.error == "its process has said nothing for more than 30 s: it hangs, or its disk is full"
    assert revenue.error_ms == revenue.since_ms + STALE_MS
    assert processes.states()["revenue.redis"] == "running"


def test_a_process_that_hangs_is_one_line_for_each_part(processes, clock):
    before, lines = processes.report(), []
    for _ in range(200):
        clock.advance(0.5)
        processes.say_up()
        processes.say("sinks", processes.part("sink", "revenue.redis"))
        after = processes.report()
        lines += news(before, after)
        before = after
    assert lines == [
        f"view {name} is failing: its process has said nothing for more than 30 s: it hangs, or its disk is full"
        for name in ("revenue", "visits")
    ]


def test_the_last_error_of_a_process_stays_with_its_parts_after_its_restart(processes):
    ended = processes.part("process", "sinks", error="sinks ended with SIGKILL", restarts=2, error_ms=5)
    processes.files["up"].write([ended], MEMBERS)
    processes.say("sinks", processes.part("sink", "revenue.redis", restarts=1))
    (sink,) = processes.report().part("revenue.redis").parts
    assert (str(sink.state), sink.error, sink.error_ms) == ("running", "sinks ended with SIGKILL", 5)
    assert sink.restarts == 3
    own = processes.part("sink", "revenue.redis", error="the store is away", error_ms=9)
    processes.say("sinks", own)
    assert processes.report().part("revenue.redis").parts[0].error == "the store is away"


def test_other_numbers_in_an_error_are_not_news():
    def failing(error):
        return Report.of((PartStatus("sink", "s", State.FAILING, 0, error=error),))

    assert not list(news(failing("no answer from port 4711"), failing("no answer from port 4712")))
    assert list(news(failing("no answer"), failing("no room"))) == ["sink s is failing: no room"]


def test_a_process_that_was_started_again_with_another_version_says_which_parts_there_are(processes):
    """A view that is new there is no member, and one that was removed says nothing."""
    processes.say("pipeline", processes.part("view", "visits"), processes.part("view", "new", "stopped"))
    assert processes.states() == {
        "log": "running",
        "new": "stopped",
        "visits": "running",
        "revenue.redis": "running",
        "console": "running",
    }


def dead():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def rewrite(folder, process, **values):
    file = folder / "run" / f"{process}.parts.json"
    board = msgspec.json.decode(file.read_bytes(), type=Board)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(board, **values)))


def test_the_report_of_a_dead_process_is_not_used_once_its_successor_runs(processes, tmp_path):
    rewrite(tmp_path, "pipeline", pid=dead())
    assert (processes.states()["revenue"], processes.states()["visits"]) == ("starting", "starting")


def test_a_clock_that_was_set_back_hides_no_process_that_hangs(processes, tmp_path, clock):
    rewrite(tmp_path, "pipeline", written_ms=clock.now_ms() + 3_600_000)
    assert processes.states()["revenue"] == "failing"


def test_headwater_up_believes_itself_also_if_the_disk_has_no_room_for_its_board(processes, tmp_path, clock):
    (tmp_path / "run" / ".up.parts.json.new").mkdir()  # as little writable as a full disk
    clock.advance(STALE_MS / 1000 + 1)
    processes.say_up()
    processes.say("pipeline", processes.part("view", "revenue"), processes.part("view", "visits"))
    processes.say("sinks", processes.part("sink", "revenue.redis"))
    assert read(tmp_path, clock, own=processes.files["up"].said).status == "ok"
    log = processes.report().part("log").parts[0]
    assert (log.state, "says nothing" in log.error) == (State.FAILING, True)


def test_half_of_a_surrogate_pair_in_an_error_can_be_written(processes):
    processes.say(
        "pipeline", processes.part("view", "revenue", "stopped", error="bad value '\ud83d', Zürich")
    )
    assert processes.report().part("revenue").parts[0].error == "bad value '?', Zürich"


def test_the_console_is_the_console_also_if_a_view_has_its_name():
    view = PartStatus("view", "console", State.STOPPED, 0)
    report = Report.of((view, PartStatus("console", "console", State.RUNNING, 0)))
    assert report.part("console").is_healthy
    assert report.part("view console").parts == (view,)


def test_a_part_without_a_report_of_its_new_process_is_starting(processes, clock):
    processes.files["pipeline"].remove()
    clock.advance(1)
    assert processes.states()["revenue"] == "starting"
    assert processes.report().status == "starting"
    assert not processes.report().is_ready


def test_everything_is_down_when_what_has_started_it_is_gone(processes, tmp_path):
    pid = dead()
    for process in ("up", "pipeline", "sinks"):
        rewrite(tmp_path, process, pid=pid)
    report = processes.report()
    assert report.status == "down"
    assert {part.state for part in report.parts} == {State.DOWN}
    assert [part.name for part in report.parts] == ["log", "revenue", "visits", "revenue.redis", "console"]


def test_views_that_run_without_headwater_up_are_reported_too(tmp_path, clock):
    alone = Processes(tmp_path, clock)
    assert alone.report() == Report("down", ())
    alone.say("pipeline", alone.part("view", "revenue"))
    assert alone.states() == {"revenue": "running"}
    assert alone.report().is_ready


def test_a_half_written_board_is_not_an_error(processes, tmp_path):
    (tmp_path / "run" / "pipeline.parts.json").write_bytes(b'{"process": "pipe')
    assert processes.states()["revenue"] == "starting"


def test_a_line_is_printed_when_a_part_ends_is_restarted_and_recovers(processes, clock):
    reported = []

    def becomes(**status):
        parts = processes.report().parts
        after = [
            msgspec.structs.replace(part, since_ms=clock.now_ms(), **status)
            if part.name == "revenue"
            else part
            for part in before.parts
        ]
        assert len(parts) == len(after)
        return Report.of(tuple(after))

    before = processes.report()
    for status in (
        {"state": State.FAILING, "error": "no room"},
        {"state": State.FAILING, "error": "no room", "restarts": 1},
        {"state": State.FAILING, "error": "no room", "restarts": 2},
        {"state": State.RUNNING, "error": "no room", "restarts": 2},
        {"state": State.PAUSED},
        {"state": State.RUNNING},
        {"state": State.STOPPED, "error": "rebuild it"},
    ):
        clock.advance(4)
        after = becomes(**status)
        reported += news(before, after)
        before = after
    assert reported == [
        "view revenue is failing: no room",
        "view revenue was started again",
        "view revenue was started again (2 times so far)",
        "view revenue has recovered, after 4.0 s",
        "view revenue is paused",
        "view revenue is resumed",
        "view revenue has stopped: rebuild it",
    ]


def test_the_first_report_names_only_parts_that_do_not_work(processes):
    processes.say("pipeline", processes.part("view", "revenue"), processes.part("view", "visits", "stopped"))
    assert list(news(Report.of(()), processes.report())) == ["view visits has stopped: "]


def other_life(number, value):
    """The life of this process with another boot, namespace or start."""
    words = own_life().split()
    words[number] = value
    return " ".join(words)


@pytest.mark.parametrize(("number", "value"), [(0, "another-boot"), (2, "1")], ids=["boot", "start"])
def test_another_process_that_has_got_the_id_is_not_taken_for_one_that_hangs(
    processes, tmp_path, clock, number, value
):
    """After a power cut, and in a container, the id of `headwater up` is often given again."""
    for process in ("up", "pipeline", "sinks"):
        rewrite(tmp_path, process, life=other_life(number, value))
    assert processes.report().status == "down"
    clock.advance(3 * 86_400)
    report = processes.report()
    assert (report.status, {part.error for part in report.parts}) == ("down", {"headwater up does not run"})


def test_processes_in_another_container_are_believed_while_they_write(processes, tmp_path, clock):
    """Their ids mean nothing here."""
    for process in ("up", "pipeline", "sinks"):
        rewrite(tmp_path, process, pid=dead(), life=other_life(1, "4026531000"))
    assert processes.report().status == "ok"
    clock.advance(STALE_MS / 1000 + 1)
    assert processes.report().status == "down"


def test_a_part_of_a_kind_that_this_version_does_not_know_comes_last(tmp_path, clock):
    newer = Processes(tmp_path, clock)
    newer.say("pipeline", newer.part("alert", "fraud"), newer.part("view", "revenue"))
    assert [part.name for part in newer.report().parts] == ["revenue", "fraud"]


def test_a_recovery_takes_no_negative_time_after_the_clock_was_set_back():
    def report(state, since_ms):
        return Report.of((PartStatus("view", "v", state, since_ms, error="no room"),))

    line = "view v has recovered, after 0.0 s"
    assert list(news(report(State.FAILING, 3_600_000), report(State.RUNNING, 0))) == [line]
