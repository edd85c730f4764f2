"""Refusals that the text of a query shows already, so that they need no Spark; its plan shows them too.

``query_checks.py`` finds them in the text. ``pipeline/refusals.py`` has those that only a plan can show.
"""

from headwater.declare.refusal import Refusal, refusal

__all__ = [
    "AGGREGATED_KEY",
    "CLOCK",
    "FEW",
    "LIMIT",
    "NEVER_COMPLETE",
    "NEWEST",
    "NO_EXACT_KEY",
    "NO_KEY_COLUMN",
    "OFFSET",
    "PASSING",
    "RANK",
    "RANKING",
    "REALTIME_KEY",
    "REALTIME_OPERATOR",
    "REALTIME_STEP",
    "SORT",
    "STREAM_LIMITED",
    "STREAM_OF_DISTINCT",
    "STREAM_RANKED",
    "STREAM_SORTED",
    "UNREPEATABLE",
    "VALID",
    "over_a_table",
]

NEWEST = "in Python, hw.group with hw.newest_of keeps the first rows of a group"
NO_ORDER = "rows of a view have no order; a reader asks for one, like ?order=-cents&limit=10"
RANK = "one new row changes the positions of any number of others"
VALID = "hw.valid(rows, since=..., until=...) has the rows that are valid now"
FEW = "a row that is left out now may have to be inserted when another one is retracted"


def over_a_table(thing: str, instead: str, why: str, example: str, key: tuple[str, ...] = ("id",)) -> Refusal:
    what = f"{{view}}: {thing} over a table cannot follow its changes"
    return refusal(Refusal(what=what, why=why, instead=instead, example=example, key=key))


LIMIT = over_a_table("LIMIT", NO_ORDER, FEW, "SELECT id, name FROM customers LIMIT 10")
OFFSET = over_a_table("OFFSET", NO_ORDER, RANK, "SELECT id, name FROM customers OFFSET 10")
SORT = over_a_table("ORDER BY", NO_ORDER, RANK, "SELECT id, name FROM customers ORDER BY name")
RANKING = over_a_table(
    "a window function",
    NEWEST,
    RANK,
    "SELECT id, row_number() OVER (PARTITION BY land ORDER BY name) AS place FROM customers",
)
PASSING = over_a_table(
    "an expression whose value is not constant",
    VALID,
    "no record comes when the value changes, and a row must be retracted as it was inserted",
    "SELECT id, name FROM customers WHERE seen > current_timestamp()",
)
CLOCK = refusal(
    Refusal(
        what="{view} applies an expression whose value is not constant to rows of a table",
        why="no record comes when the value changes, and a row must be retracted as it was inserted",
        instead=VALID,
        example='customers.select("id", F.rand().alias("chance"))',
    )
)
AGGREGATED_KEY = refusal(
    Refusal(
        what="{view}: key column {column} comes from an aggregate",
        why="Spark does not say which row a new one replaces, so the row of the old key would stay",
        expected="a key of columns by which rows are grouped",
        instead="use hw.group, whose rows are retracted when they change",
        example="SELECT land, count(*) AS n FROM orders GROUP BY land",
        key=("land", "n"),
    )
)
# ---- streams -------------------------------------------------------------------------------------------

STREAM_SORTED = refusal(
    Refusal(
        what="{view} sorts the rows of a stream",
        why="each change of a view is published by itself, and a stream has no end at which it is sorted",
        instead=NO_ORDER,
        example='orders.orderBy("cents")',
    )
)
STREAM_LIMITED = refusal(
    Refusal(
        what="{view} takes the first rows of a stream",
        why="which rows are the first depends on the order in which they arrive",
        instead=NEWEST,
        example="orders.limit(10)",
    )
)
STREAM_RANKED = refusal(
    Refusal(
        what="{view} uses a window function over a stream",
        why="one late record would change the rows of any number of others",
        instead=NEWEST,
        example="SELECT id, row_number() OVER (PARTITION BY land ORDER BY cents) AS place FROM orders",
    )
)
STREAM_OF_DISTINCT = refusal(
    Refusal(
        what="{view} aggregates distinct values of a stream",
        why="all different values would have to be kept",
        instead="use approx_count_distinct(), or count the rows of a view with the values in its key",
        example="SELECT land, count(DISTINCT id) AS n FROM orders GROUP BY land",
        key=("land",),
    )
)
UNREPEATABLE = refusal(
    Refusal(
        what="{view} uses {function}, which has another value each time that a record is read",
        why="a batch that is repeated after a crash, a rebuild and a check would have other rows",
        expected="values of the record",
        instead="{instead}",
        example="SELECT id, rand() AS chance FROM orders",
    )
)

# ---- real time, complete rows, keys ------------------------------------------------------------------

REALTIME_STEP = refusal(
    Refusal(
        what="{view} cannot run in real time: it uses {kind}",
        why="readers drop older rows by a version number, which only a projection or one groupBy has",
        expected="a projection or one groupBy of one stream",
        instead="leave out latency='realtime'",
        example="SELECT id, cents FROM orders UNION ALL SELECT id, 0 FROM clicks",
        options=(("latency", "realtime"),),
    )
)
REALTIME_KEY = refusal(
    Refusal(
        what="{view} cannot run in real time: rows of one key may come from several partitions",
        why="a log has no order between partitions",
        expected="a key that contains {key}, and one topic",
        instead="or leave out latency='realtime'",
        example="SELECT land, cents FROM orders",
        key=("land",),
        options=(("latency", "realtime"),),
    )
)
REALTIME_OPERATOR = refusal(
    Refusal(
        what="{view} cannot run in real time: it uses {kind}",
        why="Spark's real-time mode runs no Python",
        instead="leave out latency='realtime'",
        example="SELECT land, count FROM count(orders, key => 'land')",
        key=("land",),
        options=(("latency", "realtime"),),
    )
)
NEVER_COMPLETE = refusal(
    Refusal(
        what="{view} has no rows that become complete",
        why="a row without a window may change for ever",
        expected="a window over event time in its key, for emit='ready'",
        instead="group by F.window(...), or leave out emit='ready'",
        example="SELECT land, count(*) AS n FROM orders GROUP BY land",
        key=("land",),
        options=(("emit", "ready"),),
    )
)
NO_KEY_COLUMN = refusal(
    Refusal(
        what="{view}: key column {column} is not in its output",
        why="rows are identified by their key",
        instead="",
        example="SELECT name FROM customers",
    )
)
NO_EXACT_KEY = refusal(
    Refusal(
        what="{view}: key column {column} has no exact text",
        why="two keys must be equal if and only if their texts are",
        expected="text, whole numbers, decimals, booleans, dates, timestamps or a window",
        instead="",
        example="SELECT id / 2 AS half FROM customers",
        key=("half",),
    )
)
