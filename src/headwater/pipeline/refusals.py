"""Refusals: what a query cannot have in a view, with the reason and what to use instead. docs/sql.md is made of them."""

from headwater import graph
from headwater.refusal import Refusal, refusal
from headwater.sql import AS_OF

__all__ = [
    "AGGREGATED_KEY",
    "APPENDS",
    "AS_OF_COLUMN",
    "AS_OF_KIND",
    "AS_OF_PLACE",
    "AS_OF_TABLE",
    "AS_OF_TIME",
    "BEHIND_TABLE",
    "CLOCK",
    "COMES_AGAIN",
    "LIMIT",
    "MAY_CHANGE",
    "NEVER_COMPLETE",
    "NO_AGGREGATE",
    "NO_EQUALITY",
    "NO_EXACT_KEY",
    "NO_GROUPS",
    "NO_INPUTS",
    "NO_JOIN",
    "NO_KEY_COLUMN",
    "NO_STEP",
    "NO_VALID_TIME",
    "OF_DISTINCT",
    "OUTER_CONDITION",
    "OWN_WATERMARK",
    "PASSING",
    "REALTIME_KEY",
    "REALTIME_OPERATOR",
    "REALTIME_STEP",
    "STEPS",
    "SUBQUERY",
    "TABLE_TWICE",
    "TAKES_STAYING",
    "TEXT_WINDOW",
    "TWO_COLUMNS",
    "VALID",
    "WITHIN_WATERMARK",
]

NEWEST = "in Python, hw.group with hw.newest_of keeps the first rows of a group"
NO_ORDER = "rows of a view have no order: who reads them asks for one, like ?order=-cents&limit=10"
RANK = "one new row changes the place of any number of others"
VALID = "hw.valid(rows, since=..., until=...) has the rows that are valid now"
FEW = "a row that is left out now may have to come in when another one goes"


def _over_a_table(
    thing: str, instead: str, why: str, example: str, key: tuple[str, ...] = ("id",)
) -> Refusal:
    what = f"{{view}}: {thing} over a table cannot follow its changes"
    return refusal(Refusal(what=what, why=why, instead=instead, example=example, key=key))


LIMIT = _over_a_table("LIMIT", NO_ORDER, FEW, "SELECT id, name FROM customers LIMIT 10")
NO_STEP = _over_a_table(
    "{kind}",
    "use JOIN, GROUP BY and WHERE",
    "the step is not known to be right for rows that are taken out again",
    "SELECT * FROM customers TABLESAMPLE (10 PERCENT)",
)
DEDUPLICATED = Refusal(
    what="{view}: dropping duplicates over a table cannot follow its changes",
    why=FEW,
    instead="use SELECT DISTINCT, or GROUP BY",
    example="",
)
"""Not in the list: SQL has no word for it."""
LATERAL = Refusal(
    what="{view}: a LATERAL subquery over a table cannot follow its changes",
    why="the subquery would run again for every change of either side",
    instead="use JOIN",
    example="",
)
"""Not in the list: of a stream Spark says what it says of any subquery in an expression."""
STEPS = {
    "Deduplicate": DEDUPLICATED,
    "Except": _over_a_table(
        "EXCEPT",
        "use LEFT JOIN, and WHERE the other side IS NULL",
        "a row of the second query takes one of the first out, and it would have to come back",
        "SELECT land FROM customers EXCEPT SELECT code FROM lands",
        ("land",),
    ),
    "Expand": _over_a_table(
        "GROUPING SETS, CUBE, ROLLUP or a hopping window",
        "use a view for each of the groupings",
        "each row counts in several groups of different kinds",
        "SELECT land, name, count(*) AS n FROM customers GROUP BY CUBE (land, name)",
        ("land", "name"),
    ),
    "GlobalLimit": LIMIT,
    "Intersect": _over_a_table(
        "INTERSECT",
        "use JOIN",
        "a row is in the answer as long as both queries have it",
        "SELECT land FROM customers INTERSECT SELECT code FROM lands",
        ("land",),
    ),
    "LateralJoin": LATERAL,
    "LocalLimit": LIMIT,
    "Offset": _over_a_table("OFFSET", NO_ORDER, RANK, "SELECT id, name FROM customers OFFSET 10"),
    "Sort": _over_a_table("ORDER BY", NO_ORDER, RANK, "SELECT id, name FROM customers ORDER BY name"),
    "Window": _over_a_table(
        "a window function",
        NEWEST,
        RANK,
        "SELECT id, row_number() OVER (PARTITION BY land ORDER BY name) AS place FROM customers",
    ),
}
SUBQUERY = _over_a_table(
    "a subquery in an expression",
    "use JOIN; a subquery in FROM will do",
    "its answer is one value that changes for all rows at once",
    "SELECT id, name FROM customers WHERE land IN (SELECT code FROM lands)",
)
PASSING = _over_a_table(
    "an expression that is another one each time",
    VALID,
    "no record comes when the clock strikes, and a row must go out as it came in",
    "SELECT id, name FROM customers WHERE seen > current_timestamp()",
)
NO_JOIN = _over_a_table(
    "{kind} JOIN",
    "use JOIN or LEFT JOIN, and GROUP BY",
    "a row comes or goes with the first or last partner, of which there may be many",
    "SELECT c.id, c.name FROM customers c LEFT ANTI JOIN lands l ON c.land = l.code",
)
OUTER_CONDITION = _over_a_table(
    "this condition in a {how} JOIN",
    "use equalities of both sides there, and a subquery in FROM for what else a side must be",
    "whether a row has a partner would depend on more than the key that both are kept by",
    "SELECT c.id, l.title FROM customers c LEFT JOIN lands l ON c.land = l.code AND c.name < l.title",
)
NO_EQUALITY = _over_a_table(
    "a JOIN on no equality of both sides",
    "use JOIN … ON a.x = b.y",
    "every change would have to be compared with all rows of the other side",
    "SELECT c.id, l.title FROM customers c JOIN lands l ON c.name < l.title",
)
AS_OF_KIND = _over_a_table(
    "{kind} JOIN … AS OF",
    "use JOIN or LEFT JOIN",
    "rows of the table without an event have no time as of which they are wanted",
    "SELECT o.id, r.percent FROM orders o RIGHT JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.land = r.land",
)
AS_OF_TIME = _over_a_table(
    "AS OF an expression",
    "use the event time of the stream",
    "how long an answer may still change is known for the event time alone",
    "SELECT o.id, r.percent FROM orders o JOIN rates FOR SYSTEM_TIME AS OF r.since AS r ON o.land = r.land",
)
AS_OF_COLUMN = _over_a_table(
    "a JOIN … AS OF on an expression of the table",
    "use a column of the table, and cast the other side",
    "the versions of a table are kept by the columns of its key",
    "SELECT o.id, r.percent FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON o.land = upper(r.land)",
)
NO_GROUPS = _over_a_table(
    "an aggregate without GROUP BY",
    "use GROUP BY, whose columns are the view's key",
    "a view has a key, and one row of all rows has none",
    "SELECT count(*) AS id FROM customers",
)
OF_DISTINCT = _over_a_table(
    "an aggregate of DISTINCT values",
    "use a subquery in FROM that groups by them first",
    "how often each value is there must be kept to take one out again",
    "SELECT land, count(DISTINCT name) AS names FROM customers GROUP BY land",
    ("land",),
)
NO_AGGREGATE = _over_a_table(
    "this aggregate",
    f"use sum, count, avg, min or max; {NEWEST}",
    "what a row has added to it cannot be taken out again",
    "SELECT land, stddev(id) AS spread FROM customers GROUP BY land",
    ("land",),
)

# ---- Spark's own operators, in Python ------------------------------------------------------------------

BEHIND_TABLE = refusal(
    Refusal(
        what="{view} goes on with {kind} behind a table, whose rows are taken out again when they change",
        why="Spark counts a row that is taken out as one more",
        expected="select, filter, union, explode, or an operator that knows such rows",
        instead="{operator} does it",
        example='customers.groupBy("land").count()',
        key=("land",),
    )
)
CLOCK = refusal(
    Refusal(
        what="{view} has an expression that is another one each time, and a row of a table goes out as it came in",
        why="no record comes when the clock strikes",
        instead=VALID,
        example='customers.select("id", F.rand().alias("chance"))',
    )
)
COMES_AGAIN = refusal(
    Refusal(
        what="{view} takes rows that come again whenever they change, from groupBy or from windows",
        why="beside rows of tables each of them would count as one more",
        instead="publish them as a view of their own and read that, or use hw.group",
        example='hw.join(orders.groupBy("land").count(), lands, on={"land": "code"})',
        key=("land",),
    )
)
APPENDS = refusal(
    Refusal(
        what="{view} appends, and rows of a table are taken out again when they change",
        why="a record that was appended stays",
        instead="leave out append=True",
        example="SELECT id, name FROM customers",
        options=(("append", True),),
    )
)
AGGREGATED_KEY = refusal(
    Refusal(
        what="{view}: key column {column} comes from an aggregate, and a row whose key changes would stay under its old one",
        why="Spark does not say which row a new one replaces",
        expected="a key of columns that rows are grouped by",
        instead="use hw.group, whose rows are taken out when they change",
        example="SELECT land, count(*) AS n FROM orders GROUP BY land",
        key=("land", "n"),
    )
)
MAY_CHANGE = refusal(
    Refusal(
        what="{view} goes on with {kind} behind rows that may still change",
        why="Spark would count a session before and after each change",
        expected="select, filter, or nothing behind sessions and sliding windows",
        instead="publish them as a view of their own",
        example='hw.sessions(orders, "land", time="at", gap="5 minutes").groupBy("land").count()',
        key=("land",),
    )
)
TABLE_TWICE = refusal(
    Refusal(
        what="{view} uses a table twice",
        why="each use would be read at positions of its own, and both would share one state",
        expected="a parameter for each use",
        instead='like inputs={{"users": "users", "managers": "users"}}',
        example="SELECT a.id, b.name FROM customers a JOIN customers b ON a.land = b.name",
    )
)
WITHIN_WATERMARK = refusal(
    Refusal(
        what="{view} uses dropDuplicatesWithinWatermark",
        why="it goes by Spark's own watermark, and would keep what it has seen for ever",
        expected="a time within which duplicates come",
        instead='like hw.distinct(rows, ["id"], time="at", within="1 hour")',
        example='orders.dropDuplicatesWithinWatermark(["id"])',
    )
)
TEXT_WINDOW = refusal(
    Refusal(
        what="{view} has a window over text",
        why="Spark would read times in the text, and find none",
        expected="a timestamp: the event time of its stream",
        instead="",
        example="SELECT window, count(*) AS n FROM orders GROUP BY window(land, '5 minutes')",
        key=("window",),
    )
)
OWN_WATERMARK = Refusal(
    what="{view} sets a watermark of its own",
    why=graph.WATERMARK.why,
    instead=graph.WATERMARK.instead,
    example="",
)
"""Not in the list: it is the same for a function of a view that others call."""
NO_INPUTS = refusal(
    Refusal(
        what="{view} does not use its inputs",
        why="nothing would ever change it",
        instead="its rows must come from its streams",
        example="orders.sparkSession.range(3)",
    )
)
TAKES_STAYING = refusal(
    Refusal(
        what="{kind} takes every row for one that stays, and those of a table are taken out again when they change",
        why="it keeps what it has counted",
        instead="hw.group counts and sums rows of tables",
        example='hw.count(customers, "land")',
        key=("land",),
    )
)

# ---- real time, and complete rows ----------------------------------------------------------------------

REALTIME_STEP = refusal(
    Refusal(
        what="{view} cannot run in real time: it uses {kind}",
        why="readers drop rows that are not newer, by a number that only a projection or one groupBy has",
        expected="a projection or one groupBy of one stream",
        instead="leave out latency='realtime'",
        example="SELECT id, cents FROM orders UNION ALL SELECT id, 0 FROM clicks",
        options=(("latency", "realtime"),),
    )
)
REALTIME_KEY = refusal(
    Refusal(
        what="{view} cannot run in real time: rows of one key may come from several partitions",
        why="between partitions a log has no order",
        expected="a key with {key} in it, over one topic",
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

# ---- tables as of a time, operators in FROM, keys --------------------------------------------------------

AS_OF_PLACE = refusal(
    Refusal(
        what="{view}: AS OF belongs to the right side of a JOIN with ON, and not into WITH",
        why="a table as of a time has rows only beside an event",
        expected=AS_OF,
        instead="",
        example="SELECT land AS id FROM orders JOIN (SELECT * FROM rates FOR SYSTEM_TIME AS OF at) USING (land)",
    )
)
AS_OF_TABLE = refusal(
    Refusal(
        what="{view}: AS OF takes a table",
        why="only a table has versions",
        expected="{tables}",
        instead="",
        example="SELECT o.id FROM orders o JOIN clicks FOR SYSTEM_TIME AS OF o.at AS c ON o.id = c.order_id",
    )
)
NO_VALID_TIME = refusal(
    Refusal(
        what="{view}: table {table} does not say from when a row holds",
        why="without that no version holds at a time",
        expected="one timestamp in its key, or time= where it is declared",
        instead="or FROM enrich(stream, {name}, on => '…', as_of => '…', valid => '…')",
        example="SELECT o.id, l.title FROM orders o JOIN lands FOR SYSTEM_TIME AS OF o.at AS l ON o.land = l.code",
    )
)
TWO_COLUMNS = refusal(
    Refusal(
        what="{view} has two columns named {column}",
        why="a row is an object of JSON, which has each name once",
        instead="rename one with alias()",
        example="SELECT id, land, name AS land FROM customers",
    )
)
NO_KEY_COLUMN = refusal(
    Refusal(
        what="{view}: key column {column} is not in its output",
        why="rows are known by their key",
        instead="",
        example="SELECT name FROM customers",
    )
)
NO_EXACT_KEY = refusal(
    Refusal(
        what="{view}: key column {column} has no exact text",
        why="two keys must be equal exactly when their texts are",
        expected="text, whole numbers, decimals, booleans, dates, timestamps or a window",
        instead="",
        example="SELECT id / 2 AS half FROM customers",
        key=("half",),
    )
)
