"""A log with TLS and users: every command and reader of ours gets in, and others get the reason, without secrets."""

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

from headwater.cli.main import main
from headwater.client.client import Client
from headwater.config import Settings
from headwater.declare.app import App
from headwater.errors import MachineError
from headwater.node.node import Node
from headwater.operate.log.group import groups
from headwater.operate.log.lag import lags
from headwater.operate.log.topic import create
from headwater.view.tables.delivery import Delivery
from headwater.view.tables.reader import ViewTable
from support.servers import make_certificate, wait_until
from support.viewlog import ViewLog

EXAMPLE = Path(__file__).parents[1] / "examples" / "orders" / "app.py"


@pytest.fixture
def run(monkeypatch, capfd):
    """Runs a command with the settings in its environment, as a service manager would give them."""

    def command(settings, *arguments, text="", fails=False):
        for name, value in settings.environ().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["headwater", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        with pytest.raises(SystemExit) as ended:
            main()
        said, complaint = capfd.readouterr()
        assert (ended.value.code not in {0, None}) == fails, complaint
        assert "horse" not in said + complaint
        return complaint if fails else said

    return command


def test_the_commands_work_over_tls_as_a_user(run, guarded_broker):
    _, settings = guarded_broker
    run(settings, "topic", "create", "t", "--partitions", "2")
    run(settings, "produce", "t", "--partitioner", "round-robin", text="a\nb\nc\nd\n")

    assert sorted(run(settings, "consume", "t", "--from", "earliest", "--end").split()) == list("abcd")
    assert "skew: the largest partition has 1.00 times the mean" in run(settings, "topic", "show", "t")
    assert "4 records" in run(settings, "replay", "t", "--into", "again")
    assert json.loads(run(settings, "ledger", "t", "--json"))["produced"] == 4
    run(settings, "group", "reset", "g", "--topic", "t", "--to", "latest")
    assert {json.loads(line)["committed"] for line in run(settings, "lag", "g", "--json").splitlines()} == {2}


def test_an_address_alone_is_reached_as_the_settings_say(run, guarded_broker):
    process, settings = guarded_broker
    elsewhere = msgspec.structs.replace(settings, log="kafkas://127.0.0.1:1")
    assert "topic" in run(elsewhere, "topic", "list", "--log", process.bootstrap)
    assert "topic" in run(elsewhere, "topic", "list", "--log", f"kafkas://{process.bootstrap}")


def test_a_wrong_password_is_reported_at_once_and_not_shown(run, guarded_broker):
    _, settings = guarded_broker
    wrong = msgspec.structs.replace(settings, log_password="battery-horse")
    assert "Authentication failed" in run(wrong, "topic", "list", fails=True)
    for ask in (lags, groups, lambda log: create(log, "t", 1, {})):
        with pytest.raises(MachineError, match=r"refuses the connection; .*log_password") as caught:
            ask(wrong.access)
        assert "horse" not in str(caught.value)


def test_a_certificate_without_a_trusted_issuer_is_refused(guarded_broker):
    _, settings = guarded_broker
    trusting = msgspec.structs.replace(settings, log_ca="")
    with pytest.raises(MachineError, match=r"refuses the connection; .*certificate verify failed"):
        Client(trusting.access).partitions()


def test_a_node_reaches_its_own_guarded_log_without_further_settings(tmp_path):
    certificate, key = make_certificate(tmp_path)
    settings = Settings(
        log=f"embedded:{tmp_path / 'data'}",
        view_tables=f"sqlite:{tmp_path / 'views'}",
        broker_port=0,
        console_port=0,
        users={"alice": "correct horse"},
        tls_certificate=str(certificate),
        tls_key=str(key),
    )
    with Node(settings, EXAMPLE, App.load(str(EXAMPLE)).graph()) as node:
        node.start_log()
        assert "__consumer_offsets" in Client(node.settings.access).partitions()
        with pytest.raises(MachineError):
            Client(node.settings.bootstrap, timeout_s=1).partitions()


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
