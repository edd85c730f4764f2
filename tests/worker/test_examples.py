"""The examples of workers do what their READMEs say."""

import importlib.util
import json
from pathlib import Path

import pytest

import headwater as hw
from headwater import testing
from headwater.operate.queues.edit import parse_edit
from headwater.operate.queues.peek import peek
from headwater.operate.queues.redrive import Wanted, redrive
from headwater.worker.letter import PREFIX
from sink.receivers import mail_receiver
from support.servers import wait_until
from worker.running import read, running, wait_empty

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def log():
    with testing.broker() as broker:
        yield broker.bootstrap


def module(path):
    spec = importlib.util.spec_from_file_location(f"example_{Path(path).stem}", EXAMPLES / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def application(path):
    return hw.App.load(str(EXAMPLES / path))


def send(log, stream, *messages, key=None, **options):
    with hw.Writer(log) as writer:
        for message in messages:
            writer.send(stream, json.dumps(message).encode(), key=key and message[key], **options)


def values(log, topic):
    return [json.loads(record.value()) for record in read(log, topic)]


def letters(log, group):
    return [
        (json.loads(letter.value), dict(letter.headers)[f"{PREFIX}reason"])
        for letter in peek(log, f"{group}.dead", limit=1000)
    ]


def test_a_mail_is_tried_until_it_is_sent_and_a_wrong_address_is_a_dead_letter(log, monkeypatch):
    busy = ["450 later", "450 later"]

    def answer(address):
        if address == "nobody@example.org":
            return "550 no such user"
        return busy.pop() if address == "bob@example.org" and busy else "250 fine"

    with mail_receiver() as server:
        server.answer = answer
        monkeypatch.setenv("MAIL_SERVER", f"127.0.0.1:{server.port}")
        app = application("mail/app.py")
        names = ("ada", "bob", "nobody")
        send(log, "mails", *({"to": f"{name}@example.org", "subject": "Hi", "text": "x"} for name in names))
        with running(log, app) as loop:
            wait_empty(loop)
        assert sorted(to[0] for _, to, _ in server.mails) == ["ada@example.org", "bob@example.org"]
        assert len({mail["Message-ID"] for _, _, mail in server.mails}) == 2
        ((mail, reason),) = letters(log, "post.send")
        assert mail["to"] == "nobody@example.org"
        assert "nobody@example.org is refused: 550 no such user" in reason

        wanted = Wanted(edit=parse_edit('{"to": "ada@example.com"}'))
        assert len(list(redrive(log, "post.send", wanted))) == 1
        with running(log, app):
            wait_until(lambda: len(server.mails) == 3, what="the mail with another address")
    assert server.mails[-1][1] == ["ada@example.com"]
    assert not busy


def test_pictures_that_someone_waits_for_come_first_and_the_archive_comes_too(log, tmp_path):
    def picture(name, width=130, height=60):
        (tmp_path / name).write_bytes(b"P6 %d %d 255\n" % (width, height) + bytes(width * height * 3))
        return str(tmp_path / name)

    upload = module("thumbnails/upload.py").upload
    app = application("thumbnails/app.py")
    upload(log, [picture(f"old-{number}.ppm") for number in range(40)], 0)
    upload(log, [picture("portrait.ppm", 20, 128)], 9)
    (tmp_path / "text.ppm").write_text("text")
    upload(log, [str(tmp_path / "text.ppm")], 9)

    with running(log, app, partitions=1) as loop:
        wait_empty(loop)

    done = sorted(values(log, "thumbnails"), key=lambda row: Path(row["file"]).stat().st_mtime_ns)
    names = [Path(row["file"]).name for row in done]
    assert len(names) == 41
    assert names.index("portrait.thumb.ppm") < 10
    (portrait,) = (row for row in done if "portrait" in row["file"])
    assert (portrait["width"], portrait["height"]) == (10, 64)
    assert Path(portrait["file"]).read_bytes() == b"P6 10 64 255\n" + bytes(10 * 64 * 3)
    ((_, reason),) = letters(log, "album.shrink")
    assert "cannot be read" in reason


def test_payments_are_booked_in_the_order_of_their_account_also_after_a_repair(log):
    app = application("payments/app.py")
    payments = [
        {"account": account, "number": number, "amount": "10.00", "currency": "EUR"}
        for number in range(1, 6)
        for account in ("ada", "bob")
    ]
    payments[2]["currency"] = "EURO"  # ada's second one
    send(log, "payments", *payments, key="account")

    def booked(account):
        return [row["number"] for row in values(log, "bookings") if row["account"] == account]

    with running(log, app) as loop:
        wait_empty(loop)
        assert (booked("ada"), booked("bob")) == ([1], [1, 2, 3, 4, 5])
        assert [row["number"] for row, _ in letters(log, "bank.book")] == [2, 3, 4, 5]

        wanted = Wanted(key="ada", edit=parse_edit('{"currency": "EUR"}'))
        assert len(list(redrive(log, "bank.book", wanted))) == 4
        send(
            log,
            "payments",
            {"account": "ada", "number": 6, "amount": "1.00", "currency": "USD"},
            key="account",
        )
        wait_until(lambda: len(booked("ada")) == 6, what="all payments of the account")
    assert booked("ada") == [1, 2, 3, 4, 5, 6]
    assert {row["euros"] for row in values(log, "bookings") if row["number"] == 6} == {"0.90"}
