"""Nexmark's queries of bids alone, each as a view of ours and as Flink SQL. Both read and write the same columns."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import functions as F

import headwater as hw

MISSING = {
    "q6": "the average over the last ten rows of something that changes: Flink SQL refuses it as it is published",
    "q10": "writes files, no topic",
    "q23": "each bid with every auction of its bidder: the hot ones make 150 rows of each event, and time goes into writing them",
}


class Bid(hw.Event):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    happened: datetime
    extra: str


@dataclass(frozen=True)
class Query:
    """``columns`` are those of the result with Flink's types. ``ours`` is SQL or a function; without ``theirs`` both are the same text."""

    name: str
    columns: str
    key: tuple[str, ...]
    ours: str | Callable[[Any], Any]
    theirs: str = ""
    append: bool = False
    approximate: tuple[str, ...] = ()
    """Columns that ours estimates."""
    closed: bool = False
    """Whether Flink only appends: windows, once they are closed, and joins of streams."""
    reads: Callable[[hw.App], Any] | None = None
    """Declares what it reads, if that is not bids alone (``nexmark_joins.py``)."""


EURO = "CAST(0.908 * price AS DECIMAL(23, 3))"
RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}


def _counts(distinct: str, names: tuple[str, ...]) -> str:
    """Bids of each price range, and how many different bidders and auctions they have."""
    parts = [
        "count(*) AS total_bids",
        *(f"count(*) FILTER (WHERE {where}) AS {rank}_bids" for rank, where in RANKS.items()),
    ]
    for name in names:
        column = name.removesuffix("s")
        counted = distinct.format(column)
        parts.append(f"{counted} AS total_{name}")
        parts += [f"{counted} FILTER (WHERE {where}) AS {rank}_{name}" for rank, where in RANKS.items()]
    return ", ".join(parts)


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{rank}_{name}" for name in names for rank in ("total", *RANKS))


BOTH = ("bidders", "auctions")
DISTINCT = "count(DISTINCT {})"
ABOUT = "approx_count_distinct({}, 0.05)"
COUNTED = ", ".join(f"{name} BIGINT" for name in _names(("bids", *BOTH)))
DAY = "DATE_FORMAT(happened, 'yyyy-MM-dd')"
CHANNEL = """CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
    WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3' ELSE {id} END"""
ID = "REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)"
NAMED = "lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"


def sessions(bids: Any) -> Any:
    return hw.sessions(bids, "bidder", time="happened", gap="10 seconds", bid_count=F.count("*")).select(
        "bidder", "bid_count", "window.start", "window.end", "window"
    )


def latest(bids: Any) -> Any:
    return hw.latest(bids, ["bidder", "auction"], time="happened")


QUERIES = [
    Query(
        "q0",
        "auction BIGINT, bidder BIGINT, price BIGINT, happened TIMESTAMP_LTZ(3), extra STRING",
        ("auction",),
        "SELECT auction, bidder, price, happened, extra FROM bids",
        append=True,
    ),
    Query(
        "q1",
        "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), happened TIMESTAMP_LTZ(3), extra STRING",
        ("auction",),
        f"SELECT auction, bidder, {EURO} AS price, happened, extra FROM bids",
        append=True,
    ),
    Query(
        "q2",
        "auction BIGINT, price BIGINT",
        ("auction",),
        "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0",
        append=True,
    ),
    Query(
        "q11",
        "bidder BIGINT, bid_count BIGINT, `start` TIMESTAMP(3), `end` TIMESTAMP(3)",
        ("bidder", "window"),
        sessions,
        """SELECT bidder, count(*), window_start, window_end
        FROM SESSION(TABLE bids PARTITION BY bidder, DESCRIPTOR(happened), INTERVAL '10' SECOND)
        GROUP BY bidder, window_start, window_end""",
        closed=True,
    ),
    Query(
        "q12",
        "bidder BIGINT, bid_count BIGINT, `start` TIMESTAMP(3), `end` TIMESTAMP(3)",
        ("bidder", "window"),
        """SELECT bidder, count(*) AS bid_count, window.start, window.end, window
        FROM arrived GROUP BY bidder, window(_arrival, '10 seconds')""",
        """SELECT bidder, count(*), window_start, window_end
        FROM TUMBLE(TABLE arrived, DESCRIPTOR(arrival), INTERVAL '10' SECOND) GROUP BY bidder, window_start, window_end""",
        closed=True,
    ),
    Query(
        "q14",
        """auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), bidTimeType STRING, happened TIMESTAMP_LTZ(3), extra STRING,
        c_counts BIGINT""",
        ("auction",),
        f"""SELECT auction, bidder, {EURO} AS price,
            CASE WHEN HOUR(happened) >= 8 AND HOUR(happened) <= 18 THEN 'dayTime'
                 WHEN HOUR(happened) <= 6 OR HOUR(happened) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
            happened, extra, CAST(CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bids WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
        append=True,
    ),
    Query(
        "q15",
        f"`day` STRING, {COUNTED}",
        ("day",),
        f"SELECT {DAY} AS day, {_counts(ABOUT, BOTH)} FROM bids GROUP BY {DAY}",
        f"SELECT {DAY} AS `day`, {_counts(DISTINCT, BOTH)} FROM bids GROUP BY {DAY}",
        approximate=_names(BOTH),
    ),
    Query(
        "q16",
        f"channel STRING, `day` STRING, `minute` STRING, {COUNTED}",
        ("channel", "day"),
        f"SELECT channel, {DAY} AS day, max(DATE_FORMAT(happened, 'HH:mm')) AS minute, {_counts(ABOUT, BOTH)} FROM bids GROUP BY channel, {DAY}",
        f"SELECT channel, {DAY} AS `day`, max(DATE_FORMAT(happened, 'HH:mm')) AS `minute`, {_counts(DISTINCT, BOTH)} FROM bids GROUP BY channel, {DAY}",
        approximate=_names(BOTH),
    ),
    Query(
        "q17",
        f"auction BIGINT, `day` STRING, {', '.join(f'{name} BIGINT' for name in _names(('bids',)))}, min_price BIGINT, max_price BIGINT, avg_price DOUBLE, sum_price BIGINT",
        ("auction", "day"),
        f"""SELECT auction, {DAY} AS `day`, {_counts(DISTINCT, ())}, min(price) AS min_price, max(price) AS max_price,
        avg(CAST(price AS DOUBLE)) AS avg_price, sum(price) AS sum_price FROM bids GROUP BY auction, {DAY}""",
    ),
    Query(
        "q18",
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, happened TIMESTAMP_LTZ(3), extra STRING",
        ("bidder", "auction"),
        latest,
        """SELECT auction, bidder, price, channel, url, happened, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY happened DESC) AS place FROM bids)
        WHERE place <= 1""",
    ),
    Query(
        "q19",
        "auction BIGINT, place BIGINT, bidder BIGINT, price BIGINT, happened TIMESTAMP_LTZ(3), extra STRING",
        ("auction", "place"),
        """SELECT auction, CAST(at + 1 AS BIGINT) AS place, bid.bidder, bid.price, bid.happened, bid.extra FROM (
            SELECT auction, posexplode(best) AS (at, bid) FROM (
                SELECT auction, max_by(struct(bidder, price, happened, extra), struct(price, happened), 10) AS best
                FROM bids GROUP BY auction))""",
        """SELECT auction, place, bidder, price, happened, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, happened DESC) AS place FROM bids)
        WHERE place <= 10""",
    ),
    Query(
        "q21",
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, channel_id STRING",
        ("auction",),
        f"""SELECT auction, bidder, price, channel, {CHANNEL.format(id=f"nullif({ID}, '')")} AS channel_id
        FROM bids WHERE nullif({ID}, '') IS NOT NULL OR {NAMED}""",
        f"""SELECT auction, bidder, price, channel, {CHANNEL.format(id=ID)} AS channel_id
        FROM bids WHERE {ID} IS NOT NULL OR {NAMED}""",
        append=True,
    ),
    Query(
        "q22",
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, dir1 STRING, dir2 STRING, dir3 STRING",
        ("auction",),
        """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bids""",
        """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
        SPLIT_INDEX(url, '/', 5) AS dir3 FROM bids""",
        append=True,
    ),
]


def bids(declared: hw.App, topic: str = "bids") -> None:
    declared.stream("bids", Bid, key="auction", time="happened", topic=topic, delay="4 seconds")
    declared.stream("arrived", Bid, key="auction", time=hw.ARRIVAL, topic=topic, delay="4 seconds")


def app(query: Query, name: str, reads: Callable[[hw.App], None] = bids) -> hw.App:
    """An application with this view alone."""
    declared = hw.App("nexmark")
    (query.reads or reads)(declared)
    given: dict[str, Any] = {"key": query.key, "append": query.append}
    if callable(query.ours):
        declared.view(name=name, **given)(query.ours)
    else:
        declared.sql(name, query.ours, **given)
    return declared


# ---- Flink ---------------------------------------------------------------------------------------------

BIDS = "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, happened TIMESTAMP_LTZ(3), extra STRING"
CLOCKS = {
    "bids": "WATERMARK FOR happened AS happened - INTERVAL '4' SECOND",
    "arrived": "arrival TIMESTAMP_LTZ(3) METADATA FROM 'timestamp' VIRTUAL, WATERMARK FOR arrival AS arrival - INTERVAL '4' SECOND",
}
JSON = "'{}format' = 'json', '{}json.timestamp-format.standard' = 'ISO-8601'"


def tables(bootstrap: str) -> list[str]:
    """Flink's two readings of the bids."""
    return [
        f"""CREATE TABLE IF NOT EXISTS {name} ({BIDS}, {clock}) WITH (
        'connector' = 'kafka', 'topic' = 'bids', 'properties.bootstrap.servers' = '{bootstrap}',
        'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', {JSON.format("", "")})"""
        for name, clock in CLOCKS.items()
    ]


def live_table(name: str, topic: str, bootstrap: str) -> str:
    """The bids of a topic without end."""
    return f"""CREATE TABLE {name} ({BIDS}, {CLOCKS["bids"]}) WITH ('connector' = 'kafka', 'topic' = '{topic}',
        'properties.bootstrap.servers' = '{bootstrap}', 'scan.startup.mode' = 'earliest-offset', {JSON.format("", "")})"""


def job(query: Query, topic: str, bootstrap: str) -> tuple[str, str]:
    """Flink's result table, and the job that fills it, exactly once."""
    common = f"""'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',
        'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = '{topic}',
        'properties.transaction.timeout.ms' = '600000', {JSON.format("key.", "key.")}, {JSON.format("value.", "value.")}"""
    if query.append or query.closed:
        kind, keyed = "'connector' = 'kafka'", ""
        names = re.findall(r"(\w+)`? (?:BIGINT|STRING|DOUBLE|DECIMAL|TIMESTAMP)", query.columns)
        keyed_by = [name for name in query.key if name in names] or names[:1]
        common += f", 'key.fields' = '{';'.join(keyed_by)}'"
    else:
        names = ", ".join(f"`{name}`" for name in query.key)
        kind, keyed = "'connector' = 'upsert-kafka'", f", PRIMARY KEY ({names}) NOT ENFORCED"
    created = f"CREATE TABLE `{topic}` ({query.columns}{keyed}) WITH ({kind}, {common})"
    return created, f"INSERT INTO `{topic}` {query.theirs or query.ours}"
