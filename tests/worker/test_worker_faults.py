"""Workers when something fails, on the embedded log: handlers that hang, processes that are killed, a broker that goes away."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict

import pytest
from confluent_kafka import Producer

import headwater as hw
from support.servers import wait_until
from worker.running import application, fresh, made, numbers, produce, read, running, started, wait_empty


@pytest.fixture
def topic(bootstrap):
    return made(bootstrap, fresh())


@pytest.fixture
def app(topic):
    return application(topic)


@pytest.fixture
def options(topic):
    return {"group": f"group-{topic}"}


# ---- handlers that hang --------------------------------------------------------------------------------


def test_a_handler_that_hangs_is_replaced_and_its_message_goes_to_another_attempt(
    bootstrap, topic, app, options, caplog
):
    release, seen = threading.Event(), []

    @app.worker("mails", concurrency=1, timeout="3 seconds", retry=hw.backoff("50ms"), **options)
    def send(mail, ctx):
        seen.append((mail.number, ctx.attempt))
        if ctx.attempt == 1 and mail.number == 0:
            release.wait(60)

    numbers(bootstrap, topic, 0)
    with running(bootstrap, app) as loop:
        wait_until(lambda: seen)
        numbers(bootstrap, topic, 1)
        wait_until(lambda: len(seen) == 3)
        wait_empty(loop)
        release.set()
    assert sorted(seen) == [(0, 1), (0, 2), (1, 1)]
    assert any("runs for more than 3 s; it is given up" in each.getMessage() for each in caplog.records)


def test_what_a_handler_writes_after_its_time_is_over_is_never_there(bootstrap, topic, app, options):
    release, errors = threading.Event(), []

    @app.worker("mails", timeout="300 milliseconds", retry=hw.backoff("50ms", attempts=1), **options)
    def send(mail, ctx):
        ctx.write(f"{topic}-out", b"early")
        release.wait(60)
        try:
            ctx.write(f"{topic}-out", b"late")
        except hw.UsageError as error:
            errors.append(str(error))

    numbers(bootstrap, topic, 0)
    with running(bootstrap, app) as loop:
        wait_until(lambda: loop.counts.dead == 1)
        release.set()
        wait_until(lambda: errors)
        wait_empty(loop)
    assert "has ended, and cannot write any more" in errors[0]
    assert not read(bootstrap, f"{topic}-out")


def test_a_coroutine_that_takes_too_long_is_cancelled(bootstrap, topic, app, options):
    import asyncio

    cancelled = threading.Event()

    @app.worker("mails", timeout="300 milliseconds", retry=hw.backoff("50ms", attempts=1), **options)
    async def send(mail):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    numbers(bootstrap, topic, 0)
    with running(bootstrap, app) as loop:
        wait_until(cancelled.is_set)
        wait_until(lambda: loop.counts.dead == 1)


def test_the_process_ends_when_more_handlers_hang_than_there_are_places(bootstrap, topic, app, options):
    release = threading.Event()

    @app.worker("mails", concurrency=2, timeout="200 milliseconds", retry=hw.backoff("10ms"), **options)
    def send(mail):
        release.wait(60)

    numbers(bootstrap, topic, *range(6))
    loop, thread, errors = started(bootstrap, app)
    thread.join(60)
    release.set()
    assert loop.is_hung
    assert "its handlers hang" in str(errors[0])


def test_a_handler_that_runs_longer_than_its_lock_keeps_its_message(bootstrap, topic, app, options):
    """The lock is renewed while the handler runs, and while messages wait for theirs."""
    seen = Counter()

    @app.worker("mails", timeout="20 seconds", concurrency=2, **options)
    def send(mail):
        seen[mail.number] += 1
        time.sleep(6)

    numbers(bootstrap, topic, 1, 2)
    with running(bootstrap, app, lock_s_max=3.0) as loop:
        wait_until(lambda: loop.counts.handled == 2)
        wait_empty(loop)
    assert seen == {1: 1, 2: 1}


# ---- order ---------------------------------------------------------------------------------------------


def test_messages_of_a_key_are_handled_one_at_a_time_in_order_also_when_one_fails(
    bootstrap, topic, app, options
):
    seen, at_once, lock = defaultdict(list), Counter(), threading.Lock()

    @app.worker(
        "mails", concurrency=8, order_by="key", retry=hw.backoff("60ms", jitter=False, attempts=6), **options
    )
    def send(mail, ctx):
        with lock:
            at_once[mail.to] += 1
            assert at_once[mail.to] == 1, mail
        time.sleep(0.002)
        with lock:
            at_once[mail.to] -= 1
            if mail.number == 2 and ctx.attempt < 3:
                raise ConnectionError
            seen[mail.to].append(mail.number)

    for number in range(6):
        for to in ("ada", "bob", "eve", "joe"):
            numbers(bootstrap, topic, number, to=to)
    with running(bootstrap, app) as loop:
        wait_until(lambda: sum(map(len, seen.values())) == 24)
        wait_empty(loop)
        assert loop.counts.dead == 0
    assert dict(seen) == {to: list(range(6)) for to in ("ada", "bob", "eve", "joe")}


def test_a_message_that_fails_for_good_sets_its_key_free(bootstrap, topic, app, options):
    seen = []

    @app.worker("mails", order_by="key", retry=hw.backoff("30ms", attempts=2), **options)
    def send(mail):
        if mail.number == 0:
            raise ValueError("never")
        seen.append(mail.number)

    numbers(bootstrap, topic, 0, 1, 2, to="ada")
    with running(bootstrap, app) as loop:
        wait_until(lambda: seen == [1, 2])
        wait_until(lambda: loop.counts.dead == 1)


# ---- a stop, a kill, a broker that goes away -------------------------------------------------------------


def test_what_a_stop_gives_back_does_not_count_as_delivered(bootstrap, topic, app, options):
    begun, may_end, attempts = threading.Event(), threading.Event(), {}

    @app.worker("mails", concurrency=2, **options)
    def send(mail, ctx):
        attempts[mail.number] = ctx.attempt
        begun.set()
        assert may_end.wait(60)

    numbers(bootstrap, topic, *range(40))
    loop, thread, _ = started(bootstrap, app)
    wait_until(begun.is_set)
    loop._work._mean_s = 0.001  # as if handlers had been quick: messages are fetched ahead
    wait_until(lambda: loop._work.held > 10)
    loop.stop()
    may_end.set()
    thread.join(60)
    with running(bootstrap, app) as second:
        wait_until(lambda: len(attempts) == 40)
        wait_empty(second)
    assert set(attempts.values()) == {1}


APPLICATION = """
import pathlib, time
import headwater as hw

class Mail(hw.Event):
    number: int
    to: str = ""

app = hw.App("post")
app.stream("mails", Mail, key="to", time=hw.ARRIVAL, topic="{topic}")
middle = app.stream("middle", Mail, key="to", time=hw.ARRIVAL, topic="{topic}-middle")
end = app.stream("end", Mail, key="to", time=hw.ARRIVAL, topic="{topic}-end")
options = dict(concurrency=4, retry=hw.backoff("20ms", attempts=15))

@app.worker("mails", group="{topic}.first", **options)
def first(mail, ctx: hw.Work):
    pathlib.Path("{begun}").touch()
    time.sleep({pause})
    ctx.write(middle, mail)

@app.worker("middle", group="{topic}.second", **options)
def second(mail, ctx: hw.Work):
    ctx.write(end, mail)
"""


@pytest.fixture
def file(tmp_path, topic):
    def write(pause=0.0):
        path = tmp_path / "post.py"
        path.write_text(APPLICATION.format(topic=topic, pause=pause, begun=tmp_path / "begun"))
        return path

    return write


@pytest.fixture
def launched(bootstrap, tmp_path):
    """Worker processes, ended with the test."""
    processes = []

    def launch(path, *arguments, log="worker.log"):
        environ = {
            **os.environ,
            "HEADWATER_LOG": f"kafka://{bootstrap}",
            "HEADWATER_VIEW_TABLES": f"sqlite:{tmp_path}/views",
        }
        command = [sys.executable, "-m", "headwater", "worker", "run", str(path), *arguments]
        with (tmp_path / log).open("ab") as out:
            processes.append(subprocess.Popen(command, env=environ, stdout=out, stderr=out))
        return processes[-1]

    yield launch
    for process in processes:
        process.kill()
        process.wait()


def values(bootstrap, topic):
    return Counter(each.value() for each in read(bootstrap, topic))


def test_what_a_killed_process_held_is_handled_by_another_one_at_once(
    bootstrap, topic, file, launched, tmp_path
):
    path = file(pause=30)
    numbers(bootstrap, topic, 1)
    killed = launched(path, "first")
    wait_until((tmp_path / "begun").exists, what="the handler")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    begun = time.monotonic()
    launched(file(pause=0), "first")
    wait_until(lambda: values(bootstrap, f"{topic}-middle"), what="the message in the next topic")
    assert time.monotonic() - begun < 40, "its lock had at least as many seconds left: it was released"


def test_a_chain_of_two_workers_is_exactly_once_in_effect_though_both_are_killed_twice(
    bootstrap, topic, file, launched
):
    count, path = 600, file(pause=0.02)
    expected = [b'{"number":%d,"to":"k%d"}' % (number, number % 7) for number in range(count)]
    sender, process = Producer({"bootstrap.servers": bootstrap}), launched(path)
    for first in (0, 150, 300, 450):
        for number in range(first, first + 150):
            sender.produce(topic, expected[number], b"k%d" % (number % 7))
        assert sender.flush(60) == 0
        enough = first + 30
        wait_until(lambda enough=enough: values(bootstrap, f"{topic}-end").total() >= enough, what="progress")
        if first in {150, 300}:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = launched(path)
    wait_until(lambda: len(values(bootstrap, f"{topic}-end")) == count, what="all messages")
    process.terminate()
    assert process.wait(60) == 0, path.with_name("worker.log").read_text()[-3_000:]
    assert values(bootstrap, f"{topic}-end") == Counter(expected)
    assert not values(bootstrap, f"{topic}.first.dead")
    assert not values(bootstrap, f"{topic}.second.dead")


def test_a_broker_that_is_killed_in_the_middle_loses_and_doubles_nothing_that_is_written(own_broker):
    bootstrap = own_broker.bootstrap
    topic = made(bootstrap, "killed")
    app = application(topic)
    out = app.stream("out", app.graph().streams["mails"].type, key="to", time=hw.ARRIVAL, topic="killed-out")

    @app.worker("mails", concurrency=4, group="g", retry=hw.backoff("20ms", attempts=15))
    def send(mail, ctx):
        time.sleep(0.005)
        ctx.write(out, mail)

    numbers(bootstrap, topic, *range(300))
    with running(bootstrap, app) as loop:
        for part in (60, 150):
            wait_until(lambda part=part: loop.counts.handled >= part)
            own_broker.end(signal.SIGKILL)
            own_broker.start()
        wait_until(lambda: len(values(bootstrap, "killed-out")) == 300, what="all messages handled")
        wait_empty(loop)
        assert loop.counts.dead == 0
    assert values(bootstrap, "killed-out") == Counter(b'{"number":%d,"to":""}' % n for n in range(300))


def test_several_processes_divide_the_messages_and_one_that_is_killed_is_started_again(
    bootstrap, topic, file, launched
):
    parent = launched(file(pause=0.005), "--processes", "2")
    numbers(bootstrap, topic, *range(50))
    wait_until(lambda: sum(values(bootstrap, f"{topic}-end").values()) == 50, what="the first part")
    children = [int(each) for each in pids_below(parent.pid)]
    assert len(children) == 2
    os.kill(children[0], signal.SIGKILL)
    numbers(bootstrap, topic, *range(50, 100))
    wait_until(lambda: sum(values(bootstrap, f"{topic}-end").values()) == 100, what="the second part")
    wait_until(lambda: len(pids_below(parent.pid)) == 2, what="a new process")
    parent.terminate()
    assert parent.wait(60) == 0
    assert set(values(bootstrap, f"{topic}-end").values()) == {1}


def pids_below(pid):
    """The child processes that run, not those that were not yet waited for."""
    listed = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid=,stat="], check=False, capture_output=True, text=True
    ).stdout
    return [line.split()[0] for line in listed.splitlines() if not line.split()[1].startswith("Z")]


def test_a_secured_log_is_worked_on(guarded_broker):
    _, settings = guarded_broker
    log = settings.access
    app, done = hw.App("guarded"), []

    @app.worker(topic="guarded")
    def take(message: bytes, ctx):
        done.append(message)
        ctx.write("out", message)

    produce(log, "guarded", b"secret")
    with running(log, app) as loop:
        wait_until(lambda: done == [b"secret"])
        wait_until(lambda: loop.counts.handled == 1)
