"""The events are those that Debezium 3.5.0 has made of the same statements, but for the differences that docs/capture.md names."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from headwater.capture.loop.feed import Feed
from headwater.capture.postgres.source import PostgresSource
from support.captured import Event, database, events, execute, running, streaming
from support.servers import wait_until

GOLDEN = Path(__file__).parent / "golden"


def debezium() -> list[Event]:
    found = []
    for line in (GOLDEN / "events.txt").read_text().splitlines():
        tombstone = re.fullmatch(r"OTHER (\S+) (.*) null", line)
        event = re.fullmatch(r"(\S+) K=(.*?) V=(.*)", line)
        match = tombstone or event
        assert match is not None
        value = None if tombstone else json.loads(match[3])
        found.append(Event(match[1], json.loads(match[2]), value))
    return found


def differences(event: Event) -> Event:
    """Debezium's event as it has to be where Debezium is wrong."""
    topic, key, value = event
    if topic == "lab.gold.idx":
        # The replica identity is an index on b, so every change names b, and rows are identified by it.
        if value is None:
            b = differences.b
        else:
            row = value["after"] or value["before"]
            b = differences.b = row["b"]
            if value["before"]:
                value["before"]["a"] = None
        return Event(topic, {"b": b}, value)
    if topic == "lab.gold.toast" and value["after"]["big"] == "__debezium_unavailable_value":
        # An update that does not touch a value leaves it as it was; readers know no placeholder.
        value["after"]["big"] = "".join(hashlib.md5(str(i).encode()).hexdigest() for i in range(1, 401))  # noqa: S324
    if topic == "lab.gold.types" and key == {"id": 3}:
        value["after"]["d"] = "infinity"
    if topic == "lab.gold.types" and key == {"id": 5}:
        value["after"]["n"] = "NaN"
    return event


def shape(event: Event) -> Event:
    """What two runs can have in common: no times, no places in the log."""
    if event.value is None:
        return event
    value = json.loads(json.dumps(event.value))
    source = value["source"]
    assert source["ts_ns"] == source["ts_us"] * 1000
    assert source["ts_ms"] == source["ts_us"] // 1000
    last, lsn = json.loads(source["sequence"])
    assert int(lsn) == source["lsn"]
    assert last is None or int(last) <= source["lsn"]
    for name in ("ts_ms", "ts_us", "ts_ns", "version", "db", "txId", "lsn", "sequence"):
        source[name] = None
    for name in ("ts_ms", "ts_us", "ts_ns"):
        if name in value:
            value[name] = None
    return Event(event.topic, event.key, json.dumps(value))


@pytest.fixture(scope="module")
def found(postgres, broker) -> list[Event]:
    url = database(postgres.url)
    execute(url, (GOLDEN / "tables.sql").read_text())
    source = PostgresSource("lab", url, ("gold.*",))
    with running(Feed("lab", source, broker.bootstrap)):
        streaming(url, "headwater_lab")
        statements = (GOLDEN / "changes.sql").read_text()
        execute(url, *[each for each in re.split(r";\s*\n|;(?! *\w.*commit)", statements) if each.strip()])
        wait_until(lambda: any(e.topic == "lab.message" for e in events(broker.bootstrap, "lab")))
    return events(broker.bootstrap, "lab")


@pytest.mark.parametrize("topic", sorted({event.topic for event in debezium()}))
def test_events_are_those_of_debezium(found, topic):
    expected = [shape(differences(event)) for event in debezium() if event.topic == topic]
    got = [shape(event) for event in found if event.topic == topic and not snapshot_or_truncate(event)]

    assert [event.key for event in got] == [event.key for event in expected]
    for mine, theirs in zip(got, expected, strict=True):
        assert mine == theirs
        if mine.value is not None:
            assert list(json.loads(mine.value)) == list(json.loads(theirs.value))


def snapshot_or_truncate(event: Event) -> bool:
    return event.value is not None and event.value["op"] in {"r", "t"}


def test_a_truncate_is_an_event_of_each_table_that_it_empties(found):
    gone = [event.topic for event in found if event.value is not None and event.value["op"] == "t"]

    assert sorted(gone) == ["lab.gold.chi", "lab.gold.par"]


def test_nothing_else_is_in_the_topics(found):
    known = {event.topic for event in debezium()} | {"lab.gold.par", "lab.gold.chi"}

    assert {event.topic for event in found} <= known
