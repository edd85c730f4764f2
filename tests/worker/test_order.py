"""The order of messages of a key when a worker crashes: lost without order by key, kept with it, and refused where a log cannot keep it."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import headwater as hw
from support.servers import wait_until
from worker.running import application, fresh, made, numbers, started

APPLICATION = """
import pathlib, time
import headwater as hw

class Mail(hw.Event):
    number: int
    to: str = ""

app = hw.App("post")
app.stream("mails", Mail, key="to", time=hw.ARRIVAL, topic="{topic}")
folder = pathlib.Path("{folder}")

@app.worker("mails", group="{topic}", concurrency=1, order_by="{order}", timeout="1 hour")
def send(mail):
    time.sleep(0.3)  # slow, so that nothing is fetched ahead
    if mail.number == 3 and not (folder / "crashed").exists():
        (folder / "crashed").touch()
        time.sleep(600)
    with (folder / "seen").open("a") as seen:
        seen.write(f"{{mail.to}}{{mail.number}} ")
"""


@pytest.fixture
def launched(bootstrap, tmp_path):
    processes = []

    def launch(topic, order):
        path = tmp_path / "post.py"
        path.write_text(APPLICATION.format(topic=topic, folder=tmp_path, order=order))
        environ = {
            **os.environ,
            "HEADWATER_LOG": f"kafka://{bootstrap}",
            "HEADWATER_VIEW_TABLES": f"sqlite:{tmp_path}/views",
        }
        with (tmp_path / "log").open("ab") as out:
            command = [sys.executable, "-m", "headwater", "worker", "run", str(path)]
            processes.append(subprocess.Popen(command, env=environ, stdout=out, stderr=out))
        return processes[-1]

    yield launch
    for process in processes:
        process.kill()
        process.wait()


def crash_at_3(bootstrap, tmp_path, launched, order):
    """One process crashes in the middle of m3 while another one is ready for m4; what was handled, in order."""
    topic = made(bootstrap, fresh(), 1)
    file = tmp_path / "seen"

    def seen():
        return file.read_text().split() if file.exists() else []

    crashing = launched(topic, order)
    numbers(bootstrap, topic, 1, 2, 3, to="m")
    wait_until((tmp_path / "crashed").exists, what="the handler of m3")
    launched(topic, order)
    numbers(bootstrap, topic, 4, 5, to="m")
    numbers(bootstrap, topic, 1, to="other")
    wait_until(lambda: "other1" in seen(), what="a message of another key in the second process")
    if not order:
        wait_until(lambda: {"m4", "m5"} <= set(seen()), what="the later messages of the key")
    crashing.send_signal(signal.SIGKILL)
    crashing.wait()
    wait_until(lambda: {"m3", "m4", "m5"} <= set(seen()), what="all messages")
    return [name for name in seen() if name != "other1"]


def test_without_order_m4_is_handled_before_m3_after_a_crash(bootstrap, tmp_path, launched):
    assert crash_at_3(bootstrap, tmp_path, launched, "") == ["m1", "m2", "m4", "m5", "m3"]


def test_with_order_by_key_m4_waits_for_m3_also_after_a_crash(bootstrap, tmp_path, launched):
    assert crash_at_3(bootstrap, tmp_path, launched, "key") == ["m1", "m2", "m3", "m4", "m5"]


@pytest.mark.parametrize("bootstrap", ["kafka"], indirect=True)
def test_order_by_key_is_refused_on_apache_kafka_in_one_line(bootstrap):
    topic = made(bootstrap, fresh())
    app = application(topic)

    @app.worker("mails", group=f"group-{topic}", order_by="key")
    def send(mail): ...

    loop, thread, errors = started(bootstrap, app)
    thread.join(60)

    assert [type(error) for error in errors] == [hw.UsageError]
    assert str(errors[0]) == (
        "worker 'send': this log does not keep the order of keys in a queue; got order_by='key'; Apache Kafka's"
        " share groups have no order: use the embedded log, or leave out order_by="
    )
    assert not loop.is_running


def test_in_order_a_process_whose_handler_does_not_end_is_to_be_replaced(bootstrap):
    """The next message of the key waits for the end of the call; only the end of the process frees it."""
    topic = made(bootstrap, fresh(), 1)
    app, release, seen = application(topic), threading.Event(), []

    @app.worker(
        "mails",
        group=f"group-{topic}",
        order_by="key",
        timeout="500 milliseconds",
        retry=hw.backoff("10ms", attempts=3),
    )
    def send(mail, ctx):
        seen.append((mail.number, ctx.attempt))
        if len(seen) == 1:
            release.wait(60)

    numbers(bootstrap, topic, 1, 2, to="ada")
    loop, thread, errors = started(bootstrap, app)
    thread.join(60)
    assert loop.is_hung
    assert "for whose end the next message of its key waits" in str(errors[0])
    assert seen == [(1, 1)]

    loop, thread, errors = started(bootstrap, app)
    wait_until(lambda: loop.counts.handled == 2)
    release.set()
    loop.stop()
    thread.join(60)
    assert seen == [(1, 1), (1, 2), (2, 1)]


def test_in_order_a_call_that_ends_late_is_tried_again_before_the_next_message_of_its_key(bootstrap):
    topic = made(bootstrap, fresh(), 1)
    app, seen = application(topic), []

    @app.worker(
        "mails",
        group=f"group-{topic}",
        order_by="key",
        timeout="600 milliseconds",
        retry=hw.backoff("10ms", attempts=3),
    )
    def send(mail, ctx):
        seen.append(("begins", mail.number, ctx.attempt))
        if len(seen) == 1:
            time.sleep(0.9)
        seen.append(("ends", mail.number, ctx.attempt))

    numbers(bootstrap, topic, 1, 2, to="ada")
    loop, thread, errors = started(bootstrap, app)
    wait_until(lambda: loop.counts.handled == 2)
    loop.stop()
    thread.join(60)
    assert not errors
    assert seen == [
        (what, number, attempt) for number, attempt in ((1, 1), (1, 2), (2, 1)) for what in ("begins", "ends")
    ]
