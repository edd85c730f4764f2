"""The supervisor, with children that are a few lines of Python."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from headwater.errors import MachineError, StorageError
from headwater.supervisor import Part, Supervisor
from servers import wait_until


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


def test_a_child_that_keeps_dying_is_given_up_with_its_last_words(tmp_path):
    supervisor = Supervisor(tmp_path, backoff_s=(0.0, 0.1))
    supervisor.start(Part("moth", python("import sys; sys.exit('drawn to the light')")))

    with pytest.raises(MachineError, match="moth ended with exit code 1; got drawn to the light"):
        wait_until(supervisor.check, what="giving up")
    assert supervisor.restarts() == {"moth": 2}
    supervisor.close()


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
        from headwater.supervisor import end_with_supervisor
        end_with_supervisor()
        time.sleep(600)
    """
    parent = f"""
        import pathlib, time
        from headwater.supervisor import Part, Supervisor
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


def test_work_that_ends_is_not_started_again(supervisor):
    supervisor.start(Part("errand", python("print('done')"), restart=False))
    wait_until(lambda: supervisor.exit_code("errand") is not None)
    assert supervisor.exit_code("errand") == 0
    supervisor.check()
