"""The commands for queues, as a person types them."""

import io
import json
import sys

import pytest

import headwater as hw
from headwater.cli.main import main
from headwater.client.share.session import AckKind
from operate.queues.shares import Queue
from support.servers import both_logs, wait_until
from worker.running import read, running, wait_empty


@pytest.fixture
def headwater(bootstrap, monkeypatch, capfd):
    """Runs a command; returns what it printed, or with ``code`` what it complained about."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["headwater", "queue", *arguments, "--log", bootstrap])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said, complaint = capfd.readouterr()
        assert (ended.value.code or 0) == code, complaint
        return complaint if code > 1 else said

    return run


@pytest.fixture
def queue(bootstrap):
    """One that has settled its first message; two more wait."""
    found = Queue(bootstrap)
    found.produce("first", "second", "third", key="ada")
    found.settle(1)
    return found


def objects(said):
    return [json.loads(line) for line in said.splitlines()]


def bury_all(queue):
    app = hw.App("post")

    @app.worker(topic=queue.topic, group=queue.name)
    def bury(message: bytes) -> None:
        raise hw.RejectError("no address")

    with running(queue.bootstrap, app) as loop:
        wait_empty(loop)


@both_logs
def test_queues_are_listed(headwater, queue):
    wait_until(
        lambda: any(
            (one["queue"], one["unsettled"]) == (queue.name, 2)
            for one in objects(headwater("list", "--json"))
        ),
        what="the queue with two messages",
    )
    row = next(line for line in headwater("list").splitlines() if line.startswith(queue.name))
    assert row.split()[1:4] == [queue.topic, "0", "2"]


def test_status_shows_each_partition(headwater, queue):
    with queue.member() as member:
        member.hold(1)
        title, head, row = headwater("status", queue.name).splitlines()
        assert title.startswith(f"{queue.name}: 1 members, 0 dead letters, the oldest has waited for ")
        assert head.split()[:4] == ["topic", "partition", "members", "waiting"]
        assert row.split()[:8] == [queue.topic, "0", "1", "1", "1", "0", "0", "0"]
        (found,) = objects(headwater("status", queue.name, "--json"))
        assert (found["waiting"], found["held"]) == (1, 1)
        member.say(AckKind.RELEASE)


def test_peek_shows_messages(headwater, queue):
    head, *rows = headwater("peek", queue.name).splitlines()
    assert head.split() == ["message", "state", "attempts", "due", "age", "key", "headers", "value"]
    assert [(row.split()[0], row.split()[1], row.split()[-1]) for row in rows] == [
        (f"{queue.topic}-0-1", "waiting", "second"),
        (f"{queue.topic}-0-2", "waiting", "third"),
    ]
    (found,) = objects(headwater("peek", queue.name, "--json", "--limit", "1", "--state", "waiting"))
    assert (found["id"], found["key"], found["attempts"]) == (f"{queue.topic}-0-1", "ada", 0)


def test_a_value_that_looks_like_markup_is_shown_as_it_is(headwater, queue):
    queue.produce("[red]x[/red] [/]")
    assert headwater("peek", queue.name).splitlines()[-1].endswith("[red]x[/red] [/]")


def test_cancel_says_what_became_of_each_message(headwater, queue):
    assert headwater("cancel", queue.name, f"{queue.topic}-0-2") == f"{queue.topic}-0-2 is cancelled\n"
    with queue.member() as member:
        member.hold(1)
        said = headwater("cancel", queue.name, f"{queue.topic}-0-1", code=1)
        assert said == f"{queue.topic}-0-1 is held by a member, and was left\n"
        (found,) = objects(headwater("cancel", queue.name, f"{queue.topic}-0-1", "--json", code=1))
        assert found == {"id": f"{queue.topic}-0-1", "is_cancelled": False}


def test_purge_asks_first(headwater, queue):
    headwater("purge", queue.name, code=130)  # standard input has no answer
    assert len(objects(headwater("peek", queue.name, "--json"))) == 2
    assert headwater("purge", queue.name, "--yes") == f"settled 2 offsets of {queue.name}\n"
    assert headwater("peek", queue.name, "--json") == ""


def test_reset_shows_what_comes_again(headwater, queue):
    shown = headwater("reset", queue.name, "--to", "earliest", "--key", "ada", "--dry-run")
    assert shown.splitlines()[1].split() == [queue.topic, "0", "1", "0", "1"]
    assert shown.splitlines()[-1] == "nothing was changed (--dry-run)"
    assert headwater("reset", queue.name, "--to", "earliest").endswith(f"queue {queue.name} was moved\n")
    assert len(objects(headwater("peek", queue.name, "--json"))) == 3


def test_redrive_moves_letters_and_says_so(headwater, queue):
    bury_all(queue)
    shown = headwater("redrive", queue.name, "--dry-run").splitlines()
    assert shown[0] == f"{queue.name}.dead-0-0 to {queue.topic}: 1 attempts, RejectError: no address"
    assert shown[-1] == f"would move 2 to {queue.topic}; nothing was changed (--dry-run)"
    (found,) = objects(headwater("redrive", queue.name, "--limit", "1", "--json"))
    assert (found["letter"], found["topic"], found["key"]) == (f"{queue.name}.dead-0-0", queue.topic, "ada")
    assert headwater("redrive", queue.name, "--rate", "100/s") == f"moved 1 to {queue.topic}\n"
    assert headwater("redrive", queue.name) == "moved no letters\n"
    assert len(read(queue.bootstrap, queue.topic)) == 5
