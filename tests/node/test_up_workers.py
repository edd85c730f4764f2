"""``headwater up`` runs the workers of an application; commands and reports know them."""

import re

import pytest

from support.upprocess import upping

pytestmark = pytest.mark.timeout(300)

APP = """
    import headwater as hw

    app = hw.App("post")

    class Mail(hw.Event):
        number: int
        to: str

    app.stream("mails", Mail, key="to", time=hw.ARRIVAL)
    sent = app.stream("sent", Mail, key="to", time=hw.ARRIVAL)

    @app.worker("mails", retry=hw.backoff("10ms", attempts=2))
    def send(mail, ctx: hw.Work):
        if mail.number == 13:
            raise ValueError("thirteen")
        ctx.write(sent, mail)
"""


@pytest.fixture(scope="module")
def post(tmp_path_factory):
    with upping(tmp_path_factory.mktemp("up"), APP) as up:
        up.until(lambda: "worker send" in up.report(), "the worker in the report")
        yield up


def numbers(up, *wanted):
    up.send("mails", {f"k{number}": {"number": number, "to": f"k{number}"} for number in wanted})


def worker(up):
    return up.report()["worker send"]


def test_up_runs_the_workers_and_the_report_counts_what_they_did(post):
    before = worker(post)["work"] or {"handled": 0, "dead": 0}
    numbers(post, 1, 2, 13)

    post.until(lambda: (worker(post)["work"] or before)["handled"] == before["handled"] + 2, "two handled")
    post.until(lambda: worker(post)["work"]["dead"] == before["dead"] + 1, "a dead letter")
    post.until(lambda: worker(post)["lag_records"] == 0, "an empty queue")
    part = worker(post)
    assert (part["kind"], part["name"], part["state"]) == ("worker", "send", "running")
    line = next(line for line in post.command("status").stdout.splitlines() if "worker send" in line)
    assert re.search(r"running +\S+ \S+ +0 records +0 in work +\d+ handled +1 retried +\d+ dead$", line), line


def test_health_over_http_has_the_worker(post):
    code, report = post.get("/health")
    assert code == 200
    (part,) = [part for part in report["parts"] if part["kind"] == "worker"]
    assert part["name"] == "send"
    assert set(part["work"]) == {"handled", "retried", "dead", "in_work"}
    assert post.get("/health?part=send")[0] == 200


def test_a_paused_worker_handles_nothing_until_it_is_resumed(post):
    paused = post.command("worker", "pause", "send")
    assert (paused.returncode, paused.stdout) == (
        0,
        "worker send is paused until: headwater worker resume send\n",
    )
    post.until(lambda: worker(post)["state"] == "paused", "a pause")
    handled = worker(post)["work"]["handled"]
    numbers(post, 21, 22, 23)
    post.until(lambda: worker(post)["lag_records"] == 3, "messages that wait")
    assert worker(post)["work"]["handled"] == handled

    resumed = post.command("worker", "resume", "send")

    assert (resumed.returncode, resumed.stdout) == (0, "worker send is resumed\n")
    post.until(lambda: worker(post)["work"]["handled"] == handled + 3, "the messages that waited")


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_a_worker_that_does_not_exist_is_one_line_and_exit_code_2(post, action):
    before = sorted(file.name for file in (post.data / "workers").iterdir())

    refused = post.command("worker", action, "nosuch")

    said = {
        "pause": "headwater: there is no worker 'nosuch' that has run with this data folder; workers are: send\n",
        "resume": "headwater: worker 'nosuch' is not paused; paused are: none\n",
    }
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", said[action])
    assert sorted(file.name for file in (post.data / "workers").iterdir()) == before
