"""The doctor knows its own processes: a port that one of them holds is in order, and any other process is named."""

import os
import socket
from pathlib import Path

from headwater.config import Settings
from headwater.operate.machine import doctor
from headwater.operate.machine.port_user import port_user


def port_of(finding) -> tuple[bool, str]:
    return finding.ok, finding.found


def test_a_port_of_our_own_broker_is_in_order(own_broker):
    host, _, port = own_broker.bootstrap.rpartition(":")
    user = port_user(int(port))
    assert user is not None
    words = user.command.split()
    data = Path(words[words.index("--data") + 1])
    settings = Settings(log=f"embedded:{data}", host=host, broker_port=int(port))
    ok, found = port_of(doctor._port(settings, "broker port", host, int(port), "HEADWATER_BROKER_PORT"))
    assert ok
    assert found.startswith(f"{port} is used by our own process {user.pid}: headwater broker")
    elsewhere = Settings(log="embedded:elsewhere", host=host, broker_port=int(port))
    assert not doctor._port(elsewhere, "broker port", host, int(port), "HEADWATER_BROKER_PORT").ok


def test_a_port_of_another_process_names_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings = Settings(log=f"embedded:{tmp_path}", broker_port=port)
        ok, found = port_of(doctor._port(settings, "broker port", "127.0.0.1", port, "HEADWATER_BROKER_PORT"))
    assert not ok
    assert found.startswith(f"{port} is used by process {os.getpid()}: ")


def test_a_free_port_has_no_user():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert port_user(port) is None
