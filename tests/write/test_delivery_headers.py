"""How a record says when, how soon and how long a queue is to deliver it; what cannot be is one clear line."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

import headwater as hw
from headwater.queue.record_headers import RecordHeaders, read_headers
from headwater.write.delivery_headers import delivery_headers
from support.servers import wait_until
from worker.running import Mail, application, fresh, made, read

NOW_MS = 1_700_000_000_000
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.mark.parametrize(
    ("options", "headers"),
    [
        ({}, {}),
        ({"delay": "10s"}, {"headwater-due": b"1700000010000"}),
        ({"at": NOW + timedelta(milliseconds=7)}, {"headwater-due": b"1700000000007"}),
        ({"at": NOW.astimezone(timezone(timedelta(hours=5)))}, {"headwater-due": b"1700000000000"}),
        ({"at": NOW + timedelta(microseconds=1)}, {"headwater-due": b"1700000000001"}),
        ({"priority": 0}, {"headwater-priority": b"0"}),
        (
            {"expires": "1 day", "id": "é"},
            {"headwater-expires": b"1700086400000", "headwater-id": "é".encode()},
        ),
        (
            {"delay": "1h", "expires": NOW + timedelta(hours=2)},
            {"headwater-due": b"1700003600000", "headwater-expires": b"1700007200000"},
        ),
    ],
)
def test_what_is_said_of_a_record_is_in_its_headers(options, headers):
    assert dict(delivery_headers(NOW_MS, **options)) == headers


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"priority": 11}, "a priority is wrong; got 11; expected 0 to 9"),
        ({"priority": True}, "a priority is wrong; got True; expected 0 to 9"),
        ({"delay": "-5s"}, "delay=: '-5s' is not a duration; expected '500ms', '10s'"),
        ({"delay": 5}, "delay= is not a duration; got 5; expected text like '10s'"),
        ({"delay": "99999 days"}, "delay= is too long; got '99999 days'; expected at most 100 years"),
        ({"at": NOW.replace(tzinfo=None)}, "at= has no time zone; got datetime.datetime(2023, 11, 14"),
        ({"at": "tomorrow"}, "at= is not a time; got 'tomorrow'; expected a datetime with a time zone"),
        ({"at": NOW, "delay": "1s"}, "a record has both delay= and at=; expected one of them"),
        ({"expires": "1s", "delay": "2s"}, "a record expires before it is delivered; got expires='1s'"),
        ({"expires": NOW - timedelta(1)}, "a record expires before it is delivered"),
        ({"id": "x" * 201}, "expected at most 200 characters"),
    ],
)
def test_what_cannot_be_is_one_clear_line(options, line):
    with pytest.raises(hw.UsageError) as raised:
        delivery_headers(NOW_MS, **options)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_queues_of_the_log_read_the_headers_that_are_written():
    headers = delivery_headers(NOW_MS, delay="10s", priority=9, expires="1h", id="mail-1")
    read_back = RecordHeaders(9, NOW_MS + 10_000, NOW_MS + 3_600_000, b"mail-1")
    assert read_headers(headers) == read_back


def test_a_handler_and_a_writer_write_the_same_headers(bootstrap):
    topic = made(bootstrap, fresh())
    mails = application(topic).graph().streams["mails"]
    at = datetime(2100, 1, 1, tzinfo=UTC)
    said = {"at": at, "priority": 9, "expires": at + timedelta(1), "id": "mail-1"}
    work = hw.Work()
    work.write(mails, Mail(number=1, to="ada"), headers={"trace": "t1"}, **said)
    with hw.Writer(bootstrap) as writer:
        writer.send(mails, Mail(number=1, to="ada"), **said)
        writer.send(mails, [Mail(number=2), Mail(number=3)], priority=lambda mail: mail.number, id=str)
        with pytest.raises(hw.UsageError, match="a priority is wrong; got 11"):
            writer.send(mails, Mail(number=4), priority=11)
        with pytest.raises(hw.UsageError, match="at= has no time zone"):
            writer.send(mails, Mail(number=5), at=datetime(2100, 1, 1))  # noqa: DTZ001

    written = {each.value(): dict(each.headers() or ()) for each in read(bootstrap, topic)}

    (record,) = [each.record for each in work.written]
    assert dict(record.headers) == {"trace": b"t1"} | written[record.value]
    assert written[record.value]["headwater-due"] == b"4102444800000"
    others = [headers["headwater-priority"] for value, headers in written.items() if value != record.value]
    assert sorted(others) == [b"2", b"3"]


def test_a_record_that_waits_in_the_file_of_its_writer_keeps_its_headers(tmp_path, own_broker):
    """It has come later than others for which there was no room, and goes the way over the file."""
    topic = made(own_broker.bootstrap, "spilled", 1)
    with hw.Writer(own_broker.bootstrap, full="spill", name="till", folder=tmp_path, limit="20/s") as writer:
        for number in range(30):
            writer.send(topic, b"%d" % number, priority=number % 10, id=f"id-{number}")
        assert writer.counts().waiting
        wait_until(lambda: not writer.counts().waiting, what="an empty file")
    for record in read(own_broker.bootstrap, topic):
        headers = dict(record.headers())
        assert headers["headwater-id"] == b"id-" + record.value()
        assert headers["headwater-priority"] == record.value()[-1:]
