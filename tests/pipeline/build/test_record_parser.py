"""Topics as typed frames: what is valid, what is not, and why Spark's leniency is not ours."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

import headwater as hw
from headwater.pipeline.build import inputs as source
from headwater.pipeline.topics import Topics
from support.servers import both_logs

pytestmark = pytest.mark.spark


class Place(hw.Event):
    city: str
    zip: str | None = None


class Visit(hw.Event):
    visit_id: int
    at: datetime
    score: float
    price: Decimal = Decimal("0.5")
    place: Place | None = None
    source: str = "web"
    tags: list[str] = []  # noqa: RUF012 (msgspec copies it)
    since: datetime = datetime(2026, 1, 1, tzinfo=UTC)


VALID = [
    b'{"visit_id":1,"at":"2026-01-05T09:00:00.000001Z","score":1,"price":"1.5","place":{"city":"Rome"},"more":[1]}',
    b' {"visit_id":2,"at":"2026-01-05T10:00:00+01:00","score":1.5,"source":"app"}',
]
INVALID = [
    None,
    b"",
    b"null",
    b"[]",
    b"\xff\xfe",
    b"nonsense",
    b'{"visit_id":"1","at":"2026-01-05T09:00:00Z","score":1}',
    b'{"visit_id":1.5,"at":"2026-01-05T09:00:00Z","score":1}',
    b'{"visit_id":99999999999999999999,"at":"2026-01-05T09:00:00Z","score":1}',
    b'{"visit_id":1,"at":1767603600000,"score":1}',
    b'{"visit_id":1,"at":"yesterday","score":1}',
    b'{"visit_id":1,"at":"2026-01-05T09:00:00Z","score":"1"}',
    b'{"visit_id":1,"at":"2026-01-05T09:00:00Z"}',
    b'{"visit_id":1,"at":"2026-01-05T09:00:00Z","score":null}',
    b'{"visit_id":1,"at":"2026-01-05T09:00:00Z","score":1,"place":{"zip":"1"}}',
    b'{"visit_id":1,"at":"2026-01-05T09:00:00Z","score":1',
]


@pytest.fixture
def graph(shop):
    app = hw.App("visits")
    app.stream("visits", Visit, key="visit_id", time="at", topic=shop.name("visits"))
    app.stream("all", Visit, key="visit_id", time="at", pattern=rf"{shop.prefix}\..*")
    app.sql(shop.name("view"), "SELECT * FROM visits", key="visit_id")
    shop.make("visits", "view", "visits.invalid")
    return app.graph()


@both_logs
def test_valid_records_become_typed_rows(spark, shop, graph):
    shop.send([*VALID, *INVALID], "visits")
    frame = source.batch(spark, shop.bootstrap, graph.streams["visits"], graph)
    found = [row.asDict(recursive=True) for row in frame.orderBy("visit_id").collect()]
    moment = datetime(2026, 1, 5, 9, tzinfo=UTC).astimezone().replace(tzinfo=None)
    defaults = {"tags": [], "since": datetime(2026, 1, 1, tzinfo=UTC).astimezone().replace(tzinfo=None)}
    assert found == [
        {
            "visit_id": 1,
            "at": moment.replace(microsecond=1),
            "score": 1.0,
            "price": Decimal("1.5"),
            "place": {"city": "Rome", "zip": None},
            "source": "web",
            **defaults,
        },
        {"visit_id": 2, "at": moment, "score": 1.5, "price": Decimal("0.5"), "place": None, "source": "app"}
        | defaults,
    ]


def test_every_other_record_is_invalid(spark, shop, graph):
    shop.send([*VALID, *INVALID], "visits")
    topic = shop.name("visits")
    ends = Topics(shop.bootstrap).ends([topic])
    frame = source.invalid(spark, shop.bootstrap, graph.streams["visits"], {}, ends)
    found = [None if row.value is None else bytes(row.value) for row in frame.orderBy("offset").collect()]
    assert found == INVALID


@both_logs
def test_only_the_stretch_that_was_asked_for_is_read_again(spark, shop, graph):
    shop.send(INVALID, "visits")
    topic = shop.name("visits")
    (partition,) = [p for p, end in Topics(shop.bootstrap).ends([topic])[topic].items() if end]
    frame = source.invalid(
        spark, shop.bootstrap, graph.streams["visits"], {topic: {partition: 3}}, {topic: {partition: 5}}
    )
    assert [row.offset for row in frame.collect()] == [3, 4]


@both_logs
def test_a_pattern_leaves_out_views_and_invalid_records(shop, graph):
    assert Topics(shop.bootstrap).of(graph.streams["all"], graph) == [shop.name("visits")]


def test_reading_stretches_again_and_again_opens_no_more_connections(spark, shop, graph):
    """Each batch with an invalid or a late record is read once more; Spark would keep new consumers of each for minutes."""
    shop.send([*VALID, *INVALID], "visits")
    topic, stream = shop.name("visits"), graph.streams["visits"]
    ends = Topics(shop.bootstrap).ends([topic])

    def read() -> int:
        assert source.invalid(spark, shop.bootstrap, stream, {topic: {}}, ends).count() == len(INVALID)
        return connections(shop.bootstrap)

    first = [read() for _ in range(3)][-1]
    assert [read() for _ in range(6)][-1] <= first


def connections(bootstrap: str) -> int:
    """How many connections to a log this machine has."""
    port = f":{int(bootstrap.rpartition(':')[2]):04X}"
    lines = [
        line.split() for file in ("tcp", "tcp6") for line in Path("/proc/net", file).read_text().splitlines()
    ]
    return sum(line[2].endswith(port) and line[3] == "01" for line in lines)
