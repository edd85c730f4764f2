"""A log with TLS and users: every command and reader of ours gets in, and whoever does not is told why, without secrets."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from headwater.client import Client
from headwater.errors import MachineError
from headwater.operate.group import groups
from headwater.operate.lag import lags
from headwater.operate.topic import create
from headwater.sink import Delivery
from headwater.view import ViewTable
from servers import wait_until
from viewlog import ViewLog


def run(settings, *arguments, text="", fails=False, **more):
    """Runs a command with the settings in its environment, as a service manager would give them."""
    environ = os.environ | settings.environ() | more
    command = [sys.executable, "-m", "headwater", *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=60, check=False, env=environ
    )
    assert (done.returncode != 0) == fails, done.stderr
    assert "horse" not in done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def test_the_commands_work_over_tls_as_a_user(guarded_broker):
    _, settings = guarded_broker
    run(settings, "topic", "create", "t", "--partitions", "2")
    run(settings, "produce", "t", "--partitioner", "round-robin", text="a\nb\nc\nd\n")

    assert sorted(run(settings, "consume", "t", "--from", "earliest", "--end").split()) == list("abcd")
    assert "skew: the fullest partition has 1.00 times the mean" in run(settings, "topic", "show", "t")
    assert "4 records" in run(settings, "replay", "t", "--into", "again")
    run(settings, "group", "reset", "g", "--topic", "t", "--to", "latest")
    assert {json.loads(line)["committed"] for line in run(settings, "lag", "g", "--json").splitlines()} == {2}


def test_an_address_alone_is_reached_as_the_settings_say(guarded_broker):
    process, settings = guarded_broker
    elsewhere = msgspec.structs.replace(settings, log="kafkas://127.0.0.1:1")
    assert "topic" in run(elsewhere, "topic", "list", "--log", process.bootstrap)
    assert "topic" in run(elsewhere, "topic", "list", "--log", f"kafkas://{process.bootstrap}")


def test_a_wrong_password_is_told_at_once_and_not_shown(guarded_broker):
    _, settings = guarded_broker
    wrong = msgspec.structs.replace(settings, log_password="battery-horse")
    assert "Authentication failed" in run(wrong, "topic", "list", fails=True)
    for ask in (lags, groups, lambda log: create(log, "t", 1, {})):
        with pytest.raises(MachineError, match=r"refuses the connection; .*log_password") as caught:
            ask(wrong.access)
        assert "horse" not in str(caught.value)


def test_a_certificate_that_nobody_vouches_for_is_refused(guarded_broker):
    _, settings = guarded_broker
    trusting = msgspec.structs.replace(settings, log_ca="")
    with pytest.raises(MachineError, match=r"refuses the connection; .*certificate verify failed"):
        Client(trusting.access).partitions()


def test_views_are_delivered_over_tls(guarded_broker, tmp_path):
    _, settings = guarded_broker
    log = ViewLog(settings.access)
    view = log.create()
    delivery = Delivery(settings.access, [view], tmp_path / "views", lambda *_: None)
    delivery.start()
    log.put(view, {"a": {"n": 1}})
    table = ViewTable(tmp_path / "views" / f"{view}.db")
    wait_until(lambda: table.path.exists() and table.rows().rows, 20, "the row")
    delivery.stop()
    assert [row.columns() for row in table.rows().rows] == [{"n": 1}]
