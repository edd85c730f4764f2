"""``headwater status`` shows what the processes of an application say."""

import json
import os
import subprocess
import sys

import click
import pytest
from typer.testing import CliRunner

from headwater.cli.main import cli
from headwater.cli.status import lines
from headwater.clock import SystemClock
from headwater.health.board import BoardFile
from headwater.health.condition import PartStatus, State
from headwater.health.report import Report

NOW = 10_000_000


def part(kind, name, state, since_s=30, **more):
    return PartStatus(kind, name, State(state), NOW - since_s * 1000, **more)


def test_each_part_has_a_line_and_what_fails_says_why_and_when_it_is_tried_again():
    report = Report.of(
        (
            part("log", "log", "running", 7_300),
            part("capture", "shop", "running", lag_ms=1_500),
            part("view", "revenue", "stopped", 200, lag_records=1_204, error="rebuild it"),
            part(
                "view", "visits", "running", lag_records=1, restarts=1, error="no room", error_ms=NOW - 90_000
            ),
            part(
                "sink",
                "revenue.redis",
                "failing",
                error="the store is away",
                restarts=4,
                next_try_ms=NOW + 42_000,
            ),
        )
    )
    assert [click.unstyle(line) for line in lines(report, NOW)] == [
        "part                state     since      lag",
        "log                 running   2 h        -",
        "capture shop        running   30 s       1.5 s",
        "view revenue        stopped   3 min      1,204 records",
        "    rebuild it",
        "view visits         running   30 s       1 record   1 restart",
        "    last error, 90 s ago: no room",
        "sink revenue.redis  failing   30 s       -   4 restarts",
        "    the store is away; next try in 42 s",
    ]


@pytest.fixture
def board(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWATER_LOG", f"embedded:{tmp_path}")
    return BoardFile(tmp_path, "pipeline")


@pytest.mark.parametrize(("state", "code", "said"), [("running", 0, "ok"), ("stopped", 1, "failing")])
def test_the_exit_code_says_whether_a_part_fails(board, state, code, said):
    now_ms = SystemClock().now_ms()
    board.write([PartStatus("view", "revenue", State(state), now_ms, lag_records=3)])
    table = CliRunner().invoke(cli, ["status"])
    assert (table.exit_code, table.output.splitlines()[1].split()[:3]) == (code, ["view", "revenue", state])
    shown = CliRunner().invoke(cli, ["status", "--json"])
    assert shown.exit_code == code
    report = json.loads(shown.output)
    assert (report["status"], report["parts"][0]["lag_records"]) == (said, 3)


def test_nothing_that_runs_is_an_answer_and_not_healthy(board):
    shown = CliRunner().invoke(cli, ["status"])
    assert (shown.exit_code, "nothing runs with these settings" in shown.output) == (1, True)


def test_a_watch_prints_what_has_changed(board):
    now_ms = SystemClock().now_ms()
    board.write([PartStatus("view", "revenue", State.RUNNING, now_ms)])
    command = [sys.executable, "-m", "headwater", "status", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as watching:
        try:
            assert json.loads(watching.stdout.readline())["status"] == "ok"
            board.write([PartStatus("view", "revenue", State.FAILING, now_ms, error="no room")])
            assert json.loads(watching.stdout.readline())["parts"][0]["error"] == "no room"
        finally:
            watching.kill()
