"""Nexmark's queries that join, each as a view of ours and as Flink SQL, over one topic with events of all kinds.

Flink's text is the published one. Ours takes the form that gives the same rows: where the auctions' own end bounds a join, and where bids come
at most twenty seconds after their auction, it is ``hw.match``, which forgets; Flink keeps both sides for ever.
"""

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import functions as F

import headwater as hw
from headwater.client.client import Client, producer
from nexmark_queries import JSON, Query

SIDE = "side"
SIDE_ROWS = 10_000
BOUND = "20 seconds"
"""How long an auction is open at most, and how long after its begin the last bid comes."""


class Person(hw.Event):
    id: int
    name: str
    emailAddress: str  # noqa: N815 (Nexmark's name)
    creditCard: str  # noqa: N815
    city: str
    state: str
    extra: str


class Auction(hw.Event):
    id: int
    itemName: str  # noqa: N815
    description: str
    initialBid: int  # noqa: N815
    reserve: int
    expires: datetime
    seller: int
    category: int
    extra: str


class Bid(hw.Event):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    extra: str


class Happening(hw.Event):
    kind: int
    happened: datetime
    person: Person | None = None
    auction: Auction | None = None
    bid: Bid | None = None


def reads(declared: hw.App) -> None:
    declared.stream("events", Happening, key="kind", time="happened", delay="4 seconds")


def persons(events: Any) -> Any:
    return events.where("kind = 0").select("person.*", "happened")


def auctions(events: Any) -> Any:
    return events.where("kind = 1").select("auction.*", "happened")


def bids(events: Any) -> Any:
    return events.where("kind = 2").select("bid.*", "happened")


# ---- ours ----------------------------------------------------------------------------------------------


def q3(events: Any) -> Any:
    some = auctions(events).where("category = 10").select("id", "seller")
    sellers = persons(events).where("state IN ('OR', 'ID', 'CA')")
    return hw.join(some, sellers.selectExpr("id AS seller", "name", "city", "state"), on="seller")


def _while_open(events: Any, some: Any, *columns: str) -> Any:
    """Some auctions with the bids that came before their end, of which more columns can be named."""
    theirs = bids(events).selectExpr("auction AS id", "price", "happened AS bid_time", *columns)
    met = hw.match(some, theirs, on="id", time=("happened", "bid_time"), after=BOUND)
    return met.where("bid_time <= expires")


def q4(events: Any) -> Any:
    met = _while_open(events, auctions(events).select("id", "category", "happened", "expires"))
    best = hw.group(met, ["id", "category"], final=F.max("price"))
    mean = hw.group(best, "category", total=F.sum("final"), auctions=F.count("*"))
    return mean.selectExpr("category", "total div auctions AS final")


Q5 = """SELECT start, place, auction.item AS auction, auction.count AS num FROM (
    SELECT start, most, posexplode(most) AS (place, auction) FROM (
        SELECT window.start, approx_top_k(bid.auction, 10, 10000) AS most FROM events
        WHERE kind = 2 GROUP BY window(happened, '10 seconds', '2 seconds')))
WHERE auction.count = most[0].count"""
"""Exact as long as a window has no more than 7,500 auctions, and ten at most have the same count."""

Q7 = """SELECT window, best.* FROM (
    SELECT window, max_by(struct(bid.auction, bid.price, bid.bidder, happened, bid.extra), struct(bid.price, happened), 1)[0] AS best
    FROM events WHERE kind = 2 GROUP BY window(happened, '10 seconds'))"""


def q8(events: Any) -> Any:
    start = "timestamp_seconds(unix_seconds(happened) div 10 * 10) AS start"
    new = persons(events).selectExpr("id", "name", "happened", start)
    sold = auctions(events).selectExpr("seller AS id", "happened AS sold", start)
    met = hw.match(new, sold, on=["id", "start"], time=("happened", "sold"), within="10 seconds")
    return met.select("id", "name", "start")


def q9(events: Any) -> Any:
    met = _while_open(events, auctions(events), "bidder", "extra AS bid_extra")
    best = "max_by(struct(*), struct(price, -unix_micros(bid_time)), 1)[0]"
    return met.groupBy("id").agg(F.expr(best).alias("won")).select("won.*")


def q13(events: Any) -> Any:
    side = events.sparkSession.range(SIDE_ROWS).selectExpr("id AS key", "concat('value ', id) AS value")
    found = bids(events).join(F.broadcast(side), F.expr("auction % 10000 = key"))
    return found.select("auction", "bidder", "price", "happened", "value")


def q20(events: Any) -> Any:
    names = {"id": "auction", "happened": "begun", "extra": "auction_extra"}
    of_kind = auctions(events).where("category = 10").withColumnsRenamed(names)
    return hw.match(of_kind, bids(events), on="auction", time=("begun", "happened"), after=BOUND)


# ---- both ----------------------------------------------------------------------------------------------

HOP = """SELECT auction, count(*) AS num, window_start, window_end
    FROM HOP(TABLE bid, DESCRIPTOR(happened), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
    GROUP BY auction, window_start, window_end"""
OPEN = "FROM auction A, bid B WHERE A.id = B.auction AND B.happened BETWEEN A.happened AND A.expires"
TIME = "TIMESTAMP_LTZ(3)"

JOINS = [
    Query(
        "q3",
        "name STRING, city STRING, state STRING, id BIGINT",
        ("id",),
        q3,
        """SELECT P.name, P.city, P.state, A.id FROM auction A INNER JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
        closed=True,
        reads=reads,
    ),
    Query(
        "q4",
        "category BIGINT, `final` BIGINT",
        ("category",),
        q4,
        f"""SELECT category, AVG(top) FROM (SELECT MAX(B.price) AS top, A.category {OPEN} GROUP BY A.id, A.category)
        GROUP BY category""",
        reads=reads,
    ),
    Query(
        "q5",
        "auction BIGINT, num BIGINT",
        ("start", "place"),
        Q5,
        f"""SELECT C.auction, C.num FROM ({HOP}) C JOIN (
            SELECT max(num) AS most, window_start, window_end FROM ({HOP}) GROUP BY window_start, window_end) M
        ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num >= M.most""",
        closed=True,
        reads=reads,
    ),
    Query(
        "q7",
        f"auction BIGINT, price BIGINT, bidder BIGINT, happened {TIME}, extra STRING",
        ("window",),
        Q7,
        """SELECT B.auction, B.price, B.bidder, B.happened, B.extra FROM bid B JOIN (
            SELECT MAX(price) AS most, window_end FROM TUMBLE(TABLE bid, DESCRIPTOR(happened), INTERVAL '10' SECOND)
            GROUP BY window_start, window_end) M
        ON B.price = M.most WHERE B.happened BETWEEN M.window_end - INTERVAL '10' SECOND AND M.window_end""",
        closed=True,
        reads=reads,
    ),
    Query(
        "q8",
        "id BIGINT, name STRING, `start` TIMESTAMP(3)",
        ("id", "start"),
        q8,
        """SELECT P.id, P.name, P.window_start FROM (
            SELECT id, name, window_start, window_end FROM TUMBLE(TABLE person, DESCRIPTOR(happened), INTERVAL '10' SECOND)
            GROUP BY id, name, window_start, window_end) P
        JOIN (
            SELECT seller, window_start, window_end FROM TUMBLE(TABLE auction, DESCRIPTOR(happened), INTERVAL '10' SECOND)
            GROUP BY seller, window_start, window_end) A
        ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end""",
        closed=True,
        reads=reads,
    ),
    Query(
        "q9",
        f"""id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, happened {TIME}, expires {TIME},
        seller BIGINT, category BIGINT, extra STRING, bidder BIGINT, price BIGINT, bid_time {TIME}, bid_extra STRING""",
        ("id",),
        q9,
        f"""SELECT id, itemName, description, initialBid, reserve, happened, expires, seller, category, extra,
            bidder, price, bid_time, bid_extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY price DESC, bid_time ASC) AS place FROM (
                SELECT A.*, B.bidder, B.price, B.happened AS bid_time, B.extra AS bid_extra {OPEN}))
        WHERE place <= 1""",
        reads=reads,
    ),
    Query(
        "q13",
        f"auction BIGINT, bidder BIGINT, price BIGINT, happened {TIME}, `value` STRING",
        ("auction",),
        q13,
        """SELECT B.auction, B.bidder, B.price, B.happened, S.`value`
        FROM (SELECT *, MOD(auction, 10000) AS place FROM bid) B
        JOIN side FOR SYSTEM_TIME AS OF B.happened AS S ON B.place = S.`key`""",
        append=True,
        reads=reads,
    ),
    Query(
        "q20",
        f"""auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, happened {TIME}, extra STRING, itemName STRING,
        description STRING, initialBid BIGINT, reserve BIGINT, begun {TIME}, expires {TIME}, seller BIGINT, category BIGINT,
        auction_extra STRING""",
        ("auction",),
        q20,
        """SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.happened, B.extra, A.itemName, A.description, A.initialBid, A.reserve,
            A.happened, A.expires, A.seller, A.category, A.extra
        FROM bid B INNER JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
        append=True,
        reads=reads,
    ),
]


# ---- Flink ---------------------------------------------------------------------------------------------

FIELDS = {
    "person": "id BIGINT, name STRING, emailAddress STRING, creditCard STRING, city STRING, state STRING, extra STRING",
    "auction": f"""id BIGINT, itemName STRING, description STRING, initialBid BIGINT, reserve BIGINT, expires {TIME}, seller BIGINT,
        category BIGINT, extra STRING""",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, extra STRING",
}


def tables(bootstrap: str) -> list[str]:
    """The topic with all kinds, a view of each kind as Nexmark has them, and the side input."""
    structs = ", ".join(f"{name} ROW<{fields}>" for name, fields in FIELDS.items())
    bounded = f"'properties.bootstrap.servers' = '{bootstrap}', 'scan.bounded.mode' = 'latest-offset'"
    events = f"""CREATE TABLE events (kind BIGINT, happened {TIME}, {structs},
        WATERMARK FOR happened AS happened - INTERVAL '4' SECOND) WITH ('connector' = 'kafka', 'topic' = 'events', {bounded},
        'scan.startup.mode' = 'earliest-offset', {JSON.format("", "")})"""
    views = [
        f"""CREATE VIEW {name} AS SELECT {", ".join(f"{name}.{part.split()[0]}" for part in fields.split(","))}, happened
        FROM events WHERE kind = {kind}"""
        for kind, (name, fields) in enumerate(FIELDS.items())
    ]
    side = f"""CREATE TABLE side (`key` BIGINT, `value` STRING, since {TIME}, PRIMARY KEY (`key`) NOT ENFORCED,
        WATERMARK FOR since AS since) WITH ('connector' = 'upsert-kafka', 'topic' = '{SIDE}', {bounded},
        'key.format' = 'csv', {JSON.format("value.", "value.")})"""
    return [events, *views, side]


def fill_side(bootstrap: str) -> None:
    """The table that q13 reads, which was there before the first event."""
    Client(bootstrap).ensure_topics([SIDE], 2)
    out = producer(bootstrap)
    since = datetime(2026, 1, 1, tzinfo=UTC).isoformat(timespec="milliseconds")[:-6].encode() + b"Z"
    for n in range(SIDE_ROWS):
        value = b'{"key":%d,"value":"value %d","since":"%b"}' % (n, n, since)
        out.produce(SIDE, key=b"%d" % n, value=value)
        out.poll(0)
    if out.flush(60):
        raise RuntimeError("records were not acknowledged")
