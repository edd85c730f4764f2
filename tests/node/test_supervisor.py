"""The supervisor, with children that are a few lines of Python."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from headwater.errors import MachineError, StorageError
from headwater.health.condition import Condition, State
from headwater.node.supervisor import START_S_MAX, Part, Supervisor
from headwater.testing import SettableClock
from support.servers import wait_until


def python(code):
    return (sys.executable, "-c", textwrap.dedent(code))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def supervisor(tmp_path):
    supervisor = Supervisor(tmp_path)
    yield supervisor
    supervisor.close()


def pid_of(supervisor, name):
    return int((supervisor.folder / "run" / f"{name}.pid").read_text())


SLEEPER = """
    import time
    time.sleep(600)
"""


def test_a_dead_child_is_started_again(supervisor):
    supervisor.start(Part("sleeper", python(SLEEPER)))
    first = pid_of(supervisor, "sleeper")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: pid_of(supervisor, "sleeper") != first, what="a second child")
    assert supervisor.restarts() == {"sleeper": 1}
    supervisor.check()


def test_a_pid_file_is_never_seen_empty(supervisor):
    """Whoever reads it while the child is started again finds the old number or the new one."""
    seen, ended = [], threading.Event()

    def read():
        while not ended.is_set():
            seen.append((supervisor.folder / "run" / "sleeper.pid").read_text())

    supervisor.start(Part("sleeper", python(SLEEPER)))
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(2_000):
            supervisor._note_pid("sleeper", number)
    finally:
        ended.set()
        reader.join()
    assert len(seen) > 100
    assert all(text.isdigit() for text in seen)


def test_descendants_of_a_dead_child_are_killed_before_its_successor_starts(supervisor, tmp_path):
    """Even those in a process group of their own, as Spark's Python workers are."""
    code = f"""
        import pathlib, subprocess, sys, time
        known = pathlib.Path({str(tmp_path)!r}, "ghosts")
        if known.exists():
            ghost = known.read_text()
            state = pathlib.Path("/proc", ghost, "stat")
            alive = state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"
            pathlib.Path({str(tmp_path)!r}, "verdict").write_text("alive" if alive else "dead")
        ghost = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        known.write_text(str(ghost.pid))
        time.sleep(600)
    """
    supervisor.start(Part("parent", python(code), (tmp_path / "ghosts").exists))
    os.kill(pid_of(supervisor, "parent"), signal.SIGKILL)
    wait_until((tmp_path / "verdict").exists, what="the successor's verdict")
    assert (tmp_path / "verdict").read_text() == "dead"


def quick(clock):
    """The condition of a child whose pauses a test need not wait for."""
    return Condition(clock, pauses_s=(0.0, 0.1), recovered_s=0.3)


@pytest.fixture
def hasty(tmp_path):
    supervisor = Supervisor(tmp_path, condition=quick)
    yield supervisor
    supervisor.close()


def status(supervisor, name):
    return next(part for part in supervisor._statuses() if part.name == name)


def test_a_child_that_keeps_dying_is_started_again_without_end_and_takes_no_other_with_it(hasty):
    hasty.start(Part("sleeper", python(SLEEPER)))
    hasty.start(Part("moth", python("import sys; sys.exit('drawn to the light')")))
    first = pid_of(hasty, "sleeper")
    wait_until(lambda: hasty.restarts().get("moth", 0) >= 4, what="more restarts than there are pauses")
    moth = status(hasty, "moth")
    assert (moth.state, moth.restarts >= 4) == ("failing", True)
    assert moth.error.startswith("moth ended with exit code 1; got drawn to the light; see ")
    assert status(hasty, "sleeper").state == "running"
    assert pid_of(hasty, "sleeper") == first
    hasty.check()


REFUSED = """
    import pathlib, sys, time
    first = pathlib.Path(sys.argv[2])
    if not first.exists():
        first.touch()
        time.sleep(600)
    sys.stderr.write("headwater: it cannot run\\n")
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("code", "mended", "state"),
    [
        (2, frozenset(), "failing"),  # its application is wrong now; it was right before
        (6, frozenset(), "stopped"),  # another process does its work
        (6, frozenset({6}), "failing"),  # as before, for a while
    ],
)
def test_a_child_that_says_that_it_cannot_run_stops_or_is_tried_at_long_pauses(tmp_path, code, mended, state):
    def patient(clock):
        return Condition(clock, pauses_s=(0.0, 600.0))

    first = tmp_path / "first"
    supervisor = Supervisor(tmp_path, condition=patient)
    try:
        picky = Part("picky", (*python(REFUSED), str(code), str(first)), first.exists, mended=mended)
        supervisor.start(Part("sleeper", python(SLEEPER)), picky)
        os.kill(pid_of(supervisor, "picky"), signal.SIGKILL)
        wait_until(lambda: status(supervisor, "picky").error == "it cannot run", what="its refusal")
        picky = status(supervisor, "picky")
        assert (picky.state, picky.restarts) == (state, 1)
        assert (picky.next_try_ms is None) == (state == "stopped")
        assert status(supervisor, "sleeper").state == "running"
        supervisor.check()
    finally:
        supervisor.close()


@pytest.mark.parametrize("step", ["_note_pid", "_log"])
def test_a_full_disk_at_a_restart_leaves_every_child_supervised(hasty, monkeypatch, step):
    """Not even the process id can be written, or the log of the next process not opened."""
    hasty.start(Part("first", python(SLEEPER)), Part("second", python(SLEEPER)))
    first, second = (pid_of(hasty, name) for name in ("first", "second"))
    with monkeypatch.context() as full:
        refused = threading.Event()

        def refuse(*_):
            refused.set()
            raise OSError(28, "No space left on device")

        full.setattr(hasty, step, refuse)
        os.kill(first, signal.SIGKILL)
        assert refused.wait(10)
    os.kill(second, signal.SIGKILL)
    for name, pid in (("first", first), ("second", second)):
        wait_until(lambda name=name, pid=pid: pid_of(hasty, name) != pid, what=f"another {name}")
        wait_until(lambda name=name: status(hasty, name).state == "running", what=f"the recovery of {name}")


def test_a_child_that_ends_by_a_signal_without_name_is_started_again(hasty):
    hasty.start(Part("sleeper", python(SLEEPER)))
    os.kill(pid_of(hasty, "sleeper"), signal.SIGRTMIN + 3)
    wait_until(lambda: hasty.restarts() == {"sleeper": 1}, what="its restart")
    assert "sleeper ended with signal 37" in status(hasty, "sleeper").error


def test_a_child_that_hangs_is_failing_until_it_answers_again(hasty, tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.node.supervisor.PROBE_S", 0.05)
    answers = tmp_path / "answers"
    answers.touch()
    hasty.start(Part("broker", python(SLEEPER), answers.exists, kind="log", probe=True))
    wait_until(lambda: status(hasty, "log").state == "running", what="its first answer")
    answers.unlink()
    wait_until(lambda: status(hasty, "log").state == "failing", what="notice of its silence")
    assert status(hasty, "log").error == "it does not answer"
    answers.touch()
    wait_until(lambda: status(hasty, "log").state == "running", what="its recovery")
    assert hasty.restarts() == {}


def test_a_child_that_waits_for_its_next_try_makes_no_probes_of_the_others_more_frequent(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("headwater.node.supervisor.TICK_S", 0.01)
    monkeypatch.setattr("headwater.node.supervisor.PROBE_S", 0.3)
    supervisor = Supervisor(tmp_path, condition=lambda clock: Condition(clock, pauses_s=(600.0,)))
    asked = []

    def answers():
        asked.append(time.monotonic())
        return True

    try:
        supervisor.start(Part("console", python(SLEEPER), answers, kind="console", probe=True))
        supervisor.start(
            Part("moth", python("import sys; sys.exit(1)"), lambda: False),
            patient=True,
        )
        wait_until(lambda: status(supervisor, "moth").state == "failing", what="its end")
        asked.clear()
        wait_until(lambda: len(asked) >= 4, what="probes")
        assert asked[3] - asked[0] >= 3 * 0.28
    finally:
        supervisor.close()


def test_a_check_that_raises_is_one_without_an_answer(hasty, monkeypatch):
    monkeypatch.setattr("headwater.node.supervisor.PROBE_S", 0.05)
    raises = threading.Event()

    def ready():
        if raises.is_set():
            raise RuntimeError("another server is at its port")
        return True

    hasty.start(Part("console", python(SLEEPER), ready, kind="console", probe=True))
    raises.set()
    wait_until(lambda: status(hasty, "console").state == "failing", what="notice of its silence")
    raises.clear()
    wait_until(lambda: status(hasty, "console").state == "running", what="its recovery")


def test_what_an_earlier_process_has_left_is_forgotten_before_each_start(hasty):
    forgotten = []
    hasty.start(Part("sleeper", python(SLEEPER), forget=lambda: forgotten.append(1)))
    os.kill(pid_of(hasty, "sleeper"), signal.SIGKILL)
    wait_until(lambda: hasty.restarts() == {"sleeper": 1}, what="a second child")
    assert len(forgotten) == 2


def test_a_child_runs_once_it_is_ready_however_often_it_was_asked_before(hasty, tmp_path):
    """The probes have asked in vain by then, and it is the start that hears of it."""
    asked = []

    def ready():
        asked.append(1)
        return len(asked) > 40 and threading.current_thread() is threading.main_thread()

    hasty.start(Part("slow", python(SLEEPER), ready))
    wait_until(lambda: status(hasty, "slow").state == "running", what="its state", seconds=3)


def test_a_patient_start_waits_for_no_part_that_fails(hasty):
    hasty.start(
        Part("moth", python("import sys; sys.exit(1)"), ready=lambda: False),
        Part("sleeper", python(SLEEPER)),
        patient=True,
    )
    assert status(hasty, "moth").state == "failing"


def test_a_part_that_a_patient_start_no_longer_waits_for_ends_nothing(hasty, tmp_path):
    code = f"""
        import pathlib, sys, time
        while not pathlib.Path({str(tmp_path / "end")!r}).exists():
            time.sleep(0.01)
        sys.stderr.write("headwater: no Java\\n")
        sys.exit(3)
    """
    hasty.start(Part("slow", python(code), ready=lambda: False, ready_s=0.1), patient=True)
    (tmp_path / "end").touch()
    wait_until(lambda: hasty.restarts().get("slow", 0) >= 1, what="another try")
    hasty.check()


def test_logs_survive_restarts(hasty):
    hasty.start(Part("moth", python("import sys; sys.exit('drawn to the light')")))
    wait_until(lambda: hasty.restarts().get("moth", 0) >= 2, what="restarts")
    hasty.close()
    text = (hasty.folder / "logs" / "moth.log").read_text()
    assert text.count("drawn to the light") >= 2
    again = Supervisor(hasty.folder, condition=quick)
    again.start(Part("moth", python(SLEEPER)))
    assert again.tail("moth") == "", "the last lines of this process, not of an earlier one"
    again.close()
    assert (hasty.folder / "logs" / "moth.log").read_text().startswith(text)


def test_a_child_that_can_never_start_is_quoted_at_once(supervisor):
    code = """
        import sys
        sys.stderr.write("headwater: data folder ./data is in use\\n")
        sys.exit(5)
    """
    with pytest.raises(StorageError, match=r"^data folder \./data is in use$"):
        supervisor.start(Part("broker", python(code), ready=lambda: False))


def test_a_child_that_is_never_ready_is_named_with_its_log(tmp_path):
    supervisor = Supervisor(tmp_path)
    with pytest.raises(MachineError, match=r"idler was not ready within 0 s; .*logs/idler\.log"):
        supervisor.start(Part("idler", python(SLEEPER), ready=lambda: False, ready_s=0.3))
    supervisor.close()


def test_parts_end_in_the_opposite_order_of_their_start(supervisor, tmp_path):
    code = f"""
        import os, pathlib, signal, sys, time
        def end(*_):
            with open({str(tmp_path / "order")!r}, "a") as file:
                file.write(sys.argv[1] + " ")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        pathlib.Path({str(tmp_path)!r}, sys.argv[1] + ".up").touch()
        time.sleep(600)
    """
    for name in ("broker", "console", "traffic"):
        supervisor.start(Part(name, (*python(code), name), (tmp_path / f"{name}.up").exists))
    supervisor.close()
    assert (tmp_path / "order").read_text().split() == ["traffic", "console", "broker"]


def test_a_child_that_ignores_the_request_to_end_is_killed(tmp_path):
    supervisor = Supervisor(tmp_path, stop_s=0.3)
    code = f"""
        import pathlib, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path({str(tmp_path / "up")!r}).touch()
        time.sleep(600)
    """
    supervisor.start(Part("stubborn", python(code), (tmp_path / "up").exists))
    pid = pid_of(supervisor, "stubborn")
    supervisor.stop("stubborn")
    assert not alive(pid)


def test_children_end_when_the_supervisor_is_killed(tmp_path):
    child = """
        import time
        from headwater.node.processes import end_with_supervisor
        end_with_supervisor()
        time.sleep(600)
    """
    parent = f"""
        import pathlib, time
        from headwater.node.supervisor import Part, Supervisor
        supervisor = Supervisor(pathlib.Path({str(tmp_path)!r}))
        supervisor.start(Part("child", {python(child)!r}))
        print("up", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(python(parent), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        pid = int((tmp_path / "run" / "child.pid").read_text())
        assert alive(pid)
        process.kill()
        wait_until(lambda: not alive(pid), what="the child's end")


def test_a_second_supervisor_of_a_folder_is_refused_and_ends_nothing_of_the_first(supervisor, tmp_path):
    supervisor.start(Part("sleeper", python(SLEEPER)))
    supervisor.report()
    second = Supervisor(tmp_path)
    with pytest.raises(StorageError, match=rf"in use by another headwater up; .* process {os.getpid()}; "):
        second.start(Part("sleeper", python(SLEEPER)))
    second.close()
    assert alive(pid_of(supervisor, "sleeper"))
    assert (tmp_path / "run" / "up.parts.json").exists()
    supervisor.close()
    supervisor.close()
    third = Supervisor(tmp_path)
    third.start(Part("sleeper", python(SLEEPER)))
    third.close()


def test_work_that_ends_is_not_started_again(supervisor):
    supervisor.start(Part("errand", python("print('done')"), restart=False))
    wait_until(lambda: supervisor.exit_code("errand") is not None)
    assert supervisor.exit_code("errand") == 0
    supervisor.check()


def test_a_child_that_does_not_get_ready_is_failing_after_a_time_and_runs_once_it_is_ready(tmp_path):
    clock, ready = SettableClock(), threading.Event()
    supervisor = Supervisor(tmp_path, clock)

    def state():
        return supervisor.report().part("log").parts[0]

    try:
        part = Part("broker", python(SLEEPER), kind="log", ready=ready.is_set, ready_s=-1.0)
        supervisor.start(part, patient=True)
        assert state().state is State.STARTING
        clock.advance(START_S_MAX + 1)
        wait_until(lambda: state().state is State.FAILING, what="the end of patience")
        assert state().error == "it is not ready after 300 s"
        ready.set()
        wait_until(lambda: supervisor._children["broker"].was_ready, what="its readiness")
        clock.advance(60)
        wait_until(lambda: state().state is State.RUNNING, what="its recovery")
    finally:
        supervisor.close()
