"""Who may ask the console: by which name, and with what token."""

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.config import Settings, load
from headwater.errors import UsageError
from headwater.node.node import Node, serve_console
from headwater.view.web import Info
from support.servers import free_port, wait_until
from view.conftest import Console

TOKEN = "0123456789abcdef"
PROGRAM = """
import sys
from headwater.config import load
from headwater.node.node import serve_console
from headwater.view.web import Info
serve_console(load(), Info("shop", sys.argv[1], ()))
"""


def ask(port, path="/views", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


@pytest.fixture
def console(bootstrap, tmp_path):
    """Starts a console with a guard of the test's own."""
    running = []

    def start(**guard):
        made = Console(bootstrap, tmp_path / "views", {}, **guard)
        made.start()
        running.append(made)
        return made.port

    yield start
    for each in running:
        each.stop()


def test_a_name_that_is_not_the_consoles_is_refused(console):
    """A stranger's page whose name points to 127.0.0.1 sends its own name as Host."""
    port = console(names=["views.example.com", ""])

    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
    ):
        status, _, body = ask(port, Host=host)
        assert status == 421, host
        assert "console_names" in json.loads(body)["hint"]
    for path in ("/", "/health", "/static/console.css", "/views/none/changes"):
        assert ask(port, path, Host="evil.example")[0] == 421
    for host in ("localhost", f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "Views.Example.com:8080"):
        assert ask(port, Host=host)[0] == 200, host


def test_who_has_no_token_reads_nothing(console):
    port = console(token=TOKEN)

    for path in (
        "/",
        "/views",
        "/views/none",
        "/views/none/changes",
        "/activity",
        "/health",
        "/static/dom.js",
    ):
        status, headers, body = ask(port, path)
        assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), path
        assert TOKEN not in body.decode()
    wrong = ({"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Cookie": "headwater_console=é"})
    for headers in wrong:
        assert ask(port, **headers)[0] == 401
    assert ask(port, "/views?token=wrong")[0] == 401
    assert ask(port, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_browser_gets_a_cookie_for_the_token_and_an_address_without_it(console):
    port = console(token=TOKEN)
    status, headers, _ = ask(port, f"//views?limit=1&token={TOKEN}")

    assert (status, headers["Location"]) == (303, "/views?limit=1")
    cookie = headers["Set-Cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    assert ask(port, "/views", Cookie=cookie.partition(";")[0])[0] == 200


def test_a_console_that_other_machines_reach_wants_a_token(tmp_path, log):
    settings = {"log": f"kafka://{log.log}", "view_tables": f"sqlite:{tmp_path}", "console_port": free_port()}
    users = {"users": {"shop": "secret"}}
    for host in ("0.0.0.0", "::", "10.1.2.3", "views.example.com"):
        open_to_all = Settings(**settings, **users, console_host=host)
        with pytest.raises(UsageError, match="lets every machine that reaches it read all views"):
            serve_console(open_to_all, Info("shop", "", ()))
        with pytest.raises(UsageError, match="console_token"):
            Node(open_to_all, tmp_path / "app.py", None)
    with pytest.raises(UsageError, match="16 or more"):
        load(environ={"HEADWATER_CONSOLE_TOKEN": "short"})
    assert TOKEN not in repr(Settings(console_token=TOKEN))


@pytest.mark.parametrize("open_console", [False, True], ids=["by itself", "asked for"])
def test_the_console_listens_on_this_machine_alone_unless_it_is_asked_otherwise(tmp_path, log, open_console):
    port = free_port()
    environ = {
        "HEADWATER_LOG": f"kafka://{log.log}",
        "HEADWATER_VIEW_TABLES": f"sqlite:{tmp_path}/views",
        "HEADWATER_HOST": "0.0.0.0",
        "HEADWATER_INSECURE": "true",
        "HEADWATER_CONSOLE_PORT": str(port),
    }
    if open_console:
        environ |= {"HEADWATER_CONSOLE_HOST": "0.0.0.0", "HEADWATER_CONSOLE_TOKEN": TOKEN}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, log.log], env=os.environ | environ)
    try:
        wait_until(lambda: listeners(port), 60, "the console listens")
        assert listeners(port) == {"0.0.0.0" if open_console else "127.0.0.1"}
        assert ask(port)[0] == (401 if open_console else 200)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def listeners(port):
    """The IPv4 addresses on which a process listens on a port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    places = [line[1].split(":") for line in lines if line[3] == "0A"]
    found = {address for address, number in places if int(number, 16) == port}
    return {".".join(str(byte) for byte in reversed(bytes.fromhex(address))) for address in found}
