"""The command line from outside: one clear line and the right exit code for each bad input."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEADER = """
from datetime import datetime
import headwater as hw
app = hw.App("shop")
class Order(hw.Event):
    order_id: int
    at: datetime
app.stream("orders", Order, key="order_id", time="at")
"""
USAGE, MACHINE, STORAGE = 2, 3, 5


def environment(**changes):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HEADWATER_")}
    return kept | {"COLUMNS": "200", "TERM": "dumb"} | changes


def headwater(*arguments, cwd=None, **changes):
    command = [sys.executable, "-m", "headwater", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=400, check=False, cwd=cwd, env=environment(**changes)
    )


def complaint(result, code):
    """The one line on standard error; nothing else, and no traceback."""
    assert result.returncode == code, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("headwater: ")
    return lines[0].removeprefix("headwater: ")


@pytest.fixture
def app(tmp_path):
    def write(code):
        file = tmp_path / "app.py"
        file.write_text(HEADER + code)
        return file

    return write


@pytest.mark.parametrize(
    "command",
    [
        "",
        "demo",
        "up",
        "run",
        "broker",
        "graph",
        "doctor",
        "view",
        "view list",
        "view rows",
        "view scale",
        "view state",
    ],
)
def test_every_command_has_help_with_examples(command):
    result = headwater(*command.split(), "--help")
    assert result.returncode == 0
    assert "Examples:" in result.stdout
    assert f"headwater {command}".strip() in result.stdout


def test_help_is_quick_and_loads_no_spark():
    code = "import sys, headwater.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_graph_of_an_application_is_drawn(app):
    file = app(
        'app.sql("per_minute", "SELECT window, count(*) AS n FROM orders GROUP BY window(at, \'1 minute\')", key=["window"])'
    )
    result = headwater("graph", file)
    assert result.returncode == 0
    assert re.search(r"orders .*\n.*per_minute", result.stdout)


def test_an_unknown_view_input_is_named_with_the_nearest_right_one(app):
    file = app("@app.view(key='order_id')\ndef late(oders):\n    return oders\n")
    assert (
        complaint(headwater("graph", file), USAGE)
        == "view 'late': unknown input 'oders'; did you mean 'orders'?"
    )


def test_views_in_a_circle_are_named(app):
    file = app("@app.view(key='k')\ndef a(b):\n    return b\n@app.view(key='k')\ndef b(a):\n    return a\n")
    assert "views read each other in a circle: a -> b -> a" in complaint(headwater("run", file), USAGE)


def test_a_view_without_key_is_refused(app):
    file = app("@app.view()\ndef late(orders):\n    return orders\n")
    assert "view 'late' has no key" in complaint(headwater("up", file), USAGE)


def test_an_application_file_that_is_not_there_is_named():
    assert "nowhere.py does not exist" in complaint(headwater("graph", "nowhere.py"), USAGE)


def test_an_application_file_with_a_mistake_is_named_with_the_line(app):
    said = complaint(headwater("graph", app("nonsense")), USAGE)
    assert said.endswith("app.py: NameError: name 'nonsense' is not defined; got app.py, line 9: nonsense")


def test_a_wrong_setting_is_named_with_the_nearest_right_one(app):
    result = headwater("up", app(""), HEADWATER_CONSOL_PORT="9000")
    assert complaint(result, USAGE) == "unknown setting 'consol_port'; did you mean 'console_port'?"


def test_a_port_in_use_is_named(broker, tmp_path):
    port = broker.port
    line = complaint(headwater("broker", "--data", tmp_path / "other", "--port", port), MACHINE)
    assert f"port {port}" in line
    assert "in use" in line


def test_up_names_the_port_in_use_before_it_starts_anything(broker, app, tmp_path):
    port = broker.port
    file = app("@app.view(key='order_id')\ndef late(orders):\n    return orders\n")
    settings = {
        "HEADWATER_LOG": f"embedded:{tmp_path / 'other'}",
        "HEADWATER_VIEW_TABLES": f"sqlite:{tmp_path / 'other'}",
    }
    result = headwater("up", file, cwd=tmp_path, HEADWATER_CONSOLE_PORT=str(port), **settings)
    assert f"port {port} on 127.0.0.1 cannot be used" in complaint(result, MACHINE)
    assert not (tmp_path / "other" / "topics.json").exists()


def test_a_data_folder_in_use_by_another_broker_is_named(broker):
    folder = broker.folder
    line = complaint(headwater("broker", "--data", folder, "--port", 0), STORAGE)
    assert f"data folder {folder} is in use" in line


def test_up_on_a_data_folder_in_use_says_what_its_broker_said(broker, app, tmp_path):
    folder = broker.folder
    file = app("@app.view(key='order_id')\ndef late(orders):\n    return orders\n")
    ports = {"HEADWATER_BROKER_PORT": "0", "HEADWATER_CONSOLE_PORT": "0"}
    result = headwater("up", file, cwd=tmp_path, HEADWATER_LOG=f"embedded:{folder}", **ports)
    assert f"data folder {folder} is in use" in complaint(result, STORAGE)


@pytest.mark.parametrize("command", ["up", "demo", "run"])
def test_a_machine_without_java_is_told_what_to_install(command, app, tmp_path):
    file = app("@app.view(key='order_id')\ndef late(orders):\n    return orders\n")
    arguments = [command] if command == "demo" else [command, file]
    bare = {
        "PATH": str(tmp_path),
        "JAVA_HOME": "",
        "HEADWATER_BROKER_PORT": "0",
        "HEADWATER_CONSOLE_PORT": "0",
    }
    line = complaint(headwater(*arguments, cwd=tmp_path, **bare), MACHINE)
    assert "Java" in line
    assert "install" in line


def test_a_log_that_does_not_answer_is_named(app, tmp_path):
    file = app("@app.view(key='order_id')\ndef late(orders):\n    return orders\n")
    result = headwater(
        "up", file, cwd=tmp_path, HEADWATER_LOG="kafka://127.0.0.1:1", HEADWATER_CONSOLE_PORT="0"
    )
    assert "log 127.0.0.1:1 does not answer" in complaint(result, MACHINE)


def test_a_demo_does_not_begin_in_a_folder_with_something_in_it(tmp_path):
    (tmp_path / "mine").touch()
    assert "is not empty" in complaint(headwater("demo", "--data", tmp_path), USAGE)


def test_rows_of_a_view_that_is_not_there_are_refused(tmp_path):
    result = headwater("view", "rows", "revenue", HEADWATER_VIEW_TABLES=f"sqlite:{tmp_path}")
    assert complaint(result, USAGE) == f"there is no view 'revenue' in {tmp_path}; views are: none yet"


def test_a_condition_without_a_value_is_refused(tmp_path):
    (tmp_path / "revenue.db").touch()
    result = headwater(
        "view", "rows", "revenue", "--where", "country", HEADWATER_VIEW_TABLES=f"sqlite:{tmp_path}"
    )
    assert complaint(result, USAGE) == "--where is wrong; got 'country'; expected COLUMN=VALUE"


def test_a_broker_is_not_started_beside_an_apache_kafka():
    line = complaint(headwater("broker", HEADWATER_LOG="kafka://there:9092"), USAGE)
    assert line.startswith("there is no embedded log to run: the setting 'log' names an Apache Kafka")


def test_the_doctor_finds_a_machine_without_java_and_says_what_to_do(tmp_path):
    result = headwater("doctor", cwd=tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    assert result.returncode == 1
    assert re.search(r"fail.*Java.*install Java 17", result.stdout)


def test_the_doctor_names_a_wrong_setting(tmp_path):
    result = headwater("doctor", cwd=tmp_path, HEADWATER_PARTITION="3")
    assert result.returncode == 1
    assert "did you mean 'partitions'?" in result.stdout


@pytest.mark.skipif(shutil.which("java") is None, reason="the doctor would rightly complain")
def test_the_doctor_is_content_with_a_machine_that_has_everything(tmp_path):
    result = headwater("doctor", cwd=tmp_path, HEADWATER_BROKER_PORT="0", HEADWATER_CONSOLE_PORT="0")
    assert "fail" not in result.stdout
    assert result.returncode == 0
    assert list(Path(tmp_path).iterdir()) == []
