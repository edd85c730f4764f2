"""Commands that cannot be right, or name what does not exist: one clear line, the right exit code, at once."""

import socket

import pytest

from headwater.client.client import Client
from support.commandline import complaint, headwater

USAGE, MACHINE = 2, 3
APP = """
from datetime import datetime
import headwater as hw
app = hw.App("shop")
class Order(hw.Event):
    order_id: int
    country: str
    at: datetime
app.stream("orders", Order, key="order_id", time="at")
app.sql("per_country", "SELECT country, count(*) AS n FROM orders GROUP BY country", key="country")
app.sink("per_country", hw.sink.Sqlite("rows.db"))
"""

LINES = {
    "nosuch": "no such command 'nosuch'; headwater --help shows what there is",
    "vew": "no such command 'vew'; did you mean 'view'?",
    "view nosuch": "view: no such command 'nosuch'; headwater view --help",
    "sink": None,
    "--nosuch": "no such option: --nosuch",
    "graph": "graph: missing argument",
    "graph app.py other.py": "graph: got unexpected extra argument",
    "graph nosuch.py": "application file nosuch.py does not exist",
    "graph folder": "application file folder does not exist",
    "up nosuch.py": "application file nosuch.py does not exist",
    "run nosuch.py": "application file nosuch.py does not exist",
    "up app.py --once": "up: no such option: --once",
    "init notes.txt": "notes.txt cannot be a folder; got a file; expected a folder, or a name that is free",
    "init notes.txt/shop": "notes.txt/shop cannot be a folder; got notes.txt, which is a file",
    "demo --data notes.txt": "notes.txt cannot be a folder; got a file",
    "doctor --prepare nosuch.py": "application file nosuch.py does not exist",
    "demo --rate 0": "demo: invalid value for '--rate'",
    "demo --seconds x": "demo: invalid value for '--seconds'",
    "demo --seconds 5 --port 123456": "demo: invalid value for '--port'",
    "broker --port x": "broker: invalid value for '--port'",
    "broker --port 99999": "broker: invalid value for '--port'",
    "broker --flush maybe": "setting 'flush' is wrong; got 'maybe'; expected 'commit' or 'os'",
    "view rows": "view rows: missing argument 'name'",
    "view rows nosuch": "there is no view 'nosuch' in data/views; views are: none yet",
    "view rows per_country --limit 0": "view rows: invalid value for '--limit'",
    "view scale per_country": "view scale: missing option '--shards'",
    "view state per_country --at x": "view state: invalid value for '--at'",
    "view rebuild nosuch app.py": "unknown view 'nosuch'; expected per_country",
    "view check nosuch app.py": "unknown view 'nosuch'; expected per_country",
    "view check per_country nosuch.py": "application file nosuch.py does not exist",
    "sink run app.py nosuch": "application 'shop' has no sink 'nosuch'; sinks are: per_country.sqlite",
    "sink pause nosuch app.py": "there is no sink 'nosuch' in app.py; sinks are: per_country.sqlite",
    "sink resume nosuch": "sink 'nosuch' is not paused; paused are: none",
    "worker run app.py nosuch": "application 'shop' has no worker 'nosuch'; workers are: none",
    "worker pause nosuch": "there is no worker 'nosuch' that has run with this data folder; workers are: none",
    "worker pause nosuch app.py": "there is no worker 'nosuch' in app.py; workers are: none yet",
    "worker resume nosuch": "worker 'nosuch' is not paused; paused are: none",
    "sink status nosuch.py": "application file nosuch.py does not exist",
    "capture run nosuch app.py": "app.py declares no capture 'nosuch'; captures are: none",
    "capture add nosuch app.py": "app.py declares no capture 'nosuch'",
    "capture remove nosuch app.py": "app.py declares no capture 'nosuch'",
    "capture snapshot nosuch app.py": "app.py declares no capture 'nosuch'",
    "capture audit nosuch app.py": "app.py declares no capture 'nosuch'",
    "queue peek mailer --limit 0": "queue peek: invalid value for '--limit'",
    "queue peek": "queue peek: missing argument 'NAME'",
    "queue cancel mailer": "queue cancel: missing argument 'ID",
    "queue reset mailer": "queue reset: missing option '--to'",
    "queue reset mailer --to never": "this is not a position in a topic; got 'never'",
    "queue reset mailer --to earliest --where country": "--where is wrong; got 'country'; expected 'field = value'",
    "queue redrive mailer --rate fast": "the limit is wrong; got 'fast'; expected '1000/s'",
    "queue redrive mailer --edit repair": "--edit is wrong; got 'repair'; expected FILE.PY:FUNCTION",
    "queue redrive mailer --edit nosuch.py:repair": "there is no function 'repair' in nosuch.py",
    "queue redrive mailer --limit 0": "queue redrive: invalid value for '--limit'",
    "topic create orders --partitions 0": "topic create: invalid value for '--partitions'",
    "topic create orders --config retention": "--config is wrong; got 'retention'; expected KEY=VALUE",
    "topic list --log localhost:9092x": "--log is wrong; got 'localhost:9092x'; expected HOST:PORT",
    "topic list --log localhost": "--log is wrong; got 'localhost'; expected HOST:PORT",
    "topic list --log kafka://localhost:9092x": "setting 'log' is wrong; got 'localhost:9092x'",
    "topic list --log kafka://localhost:99999": "setting 'log' is wrong; got 'localhost:99999'",
    "topic list --log http://localhost:9092": "setting 'log' is wrong; got 'http://localhost:9092'",
    "produce orders --partitioner nosuch": "partitioner 'nosuch' does not exist",
    "produce orders --limit fast": "the limit is wrong; got 'fast'; expected '1000/s'",
    "consume orders --count 0": "consume: invalid value for '--count'",
    "wait per_country --at-least x": "this is not a position; got 'x'",
    "wait per_country --at-least x --timeout -1": "wait: invalid value for '--timeout'",
    "group reset billing --topic orders": "group reset: missing option '--to'",
    "replay orders": "replay: missing option '--into'",
}
"""Command lines for which no log is needed."""
OF_THE_LOG = {
    "view reset nosuch": "there is no view 'nosuch' with results",
    "view scale nosuch --shards 2": "there is no view 'nosuch' with results",
    "view state nosuch": "there is no view 'nosuch' with results",
    "view backup nosuch backup": "there is no view 'nosuch' with results",
    "view restore nosuch backup": "there is no view 'nosuch' with results",
    "sink pause nosuch": "there is no sink 'nosuch' that has run with this log",
    "capture pause nosuch": "there is no capture 'nosuch' in this log",
    "capture resume nosuch": "there is no capture 'nosuch' in this log",
    "capture status nosuch": "there is no capture 'nosuch' in this log",
    "queue status nosuch": "there is no queue 'nosuch'; headwater queue list shows all queues",
    "queue peek nosuch": "there is no queue 'nosuch'",
    "queue peek nosuch.dead": "there is no queue 'nosuch.dead'",
    "queue cancel nosuch mails-0-1": "there is no queue 'nosuch'",
    "queue purge nosuch --yes": "there is no queue 'nosuch'",
    "queue reset nosuch --to earliest": "there is no queue 'nosuch'",
    "queue redrive nosuch": "there is no queue 'nosuch'",
    "topic show nosuch": "there is no topic 'nosuch'; headwater topic list shows all topics",
    "topic delete nosuch": "there is no topic 'nosuch'; headwater topic list shows all topics",
    "topic delete nosuch --yes": "there is no topic 'nosuch'; headwater topic list shows all topics",
    "topic create a/b": "topic 'a/b' cannot be created; got topic name 'a/b' is not legal",
    "group delete nosuch": "there is no group 'nosuch'; headwater group list shows all groups",
    "group reset nosuch --topic nosuch --to earliest": "there is no topic 'nosuch'",
    "lag nosuch": "there is no group 'nosuch'; headwater group list shows all groups",
    "ledger nosuch": "there is no topic, view or sink 'nosuch'",
    "consume nosuch --end": "there is no topic 'nosuch'",
    "replay nosuch --into other": "there is no topic 'nosuch'",
    "wait nosuch --at-least 0~orders:0=1 --timeout 1": "there is no view 'nosuch' with results",
}
"""Command lines about things that a log does not have."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("milk")
    return tmp_path


@pytest.mark.parametrize("line", [line for line, said in LINES.items() if said])
def test_a_wrong_command_is_one_clear_line(capsys, folder, line):
    outcome = headwater(capsys, folder, *line.split())
    assert LINES[line] in complaint(outcome, USAGE)
    assert outcome.stdout == ""


@pytest.mark.parametrize("line", OF_THE_LOG)
def test_a_command_about_what_a_log_does_not_have_says_so(capsys, folder, bootstrap, line):
    host, _, port = bootstrap.rpartition(":")
    settings = {"HEADWATER_HOST": host, "HEADWATER_BROKER_PORT": port, "HEADWATER_LOG": f"embedded:{folder}"}
    topics = set(Client(bootstrap).partitions())
    assert OF_THE_LOG[line] in complaint(headwater(capsys, folder, *line.split(), **settings), USAGE)
    assert set(Client(bootstrap).partitions()) <= topics
    assert not (folder / "sinks").exists()


def test_there_are_sixty_of_them():
    assert len(LINES | OF_THE_LOG) >= 60


def test_a_log_that_is_away_is_the_machine_and_not_the_user(capsys, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for line in ("lag", "queue list"):
        outcome = headwater(capsys, folder, *line.split(), HEADWATER_BROKER_PORT=str(port))
        assert f"log 127.0.0.1:{port} does not answer" in complaint(outcome, MACHINE)


def test_a_command_without_arguments_shows_its_help(capsys, folder):
    outcome = headwater(capsys, folder, "sink")
    assert (outcome.code, outcome.stderr) == (USAGE, "")
    assert "Usage: headwater sink" in outcome.stdout


def test_a_name_is_not_broken_in_a_pipe(capsys, folder, bootstrap):
    name = f"a-topic-with-a-name-of-many-parts-{'x' * 120}"
    Client(bootstrap).ensure_topics([name], 1)
    outcome = headwater(capsys, folder, "topic", "list", "--log", bootstrap)
    assert any(line.startswith(name) for line in outcome.stdout.splitlines())
