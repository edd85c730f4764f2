"""Refusals: what a view's query must not contain, why, and what to use instead; docs/sql.md lists them."""

from headwater.declare import checks
from headwater.declare.query.refusals import (
    AGGREGATED_KEY,
    CLOCK,
    FEW,
    LIMIT,
    NEVER_COMPLETE,
    NEWEST,
    NO_EXACT_KEY,
    NO_KEY_COLUMN,
    OFFSET,
    PASSING,
    RANKING,
    REALTIME_KEY,
    REALTIME_OPERATOR,
    REALTIME_STEP,
    SORT,
    STREAM_LIMITED,
    STREAM_OF_DISTINCT,
    STREAM_RANKED,
    STREAM_SORTED,
    UNREPEATABLE,
    VALID,
    over_a_table,
)
from headwater.declare.refusal import Refusal, refusal
from headwater.declare.sql_scan import AS_OF

__all__ = [
    "AFTER_TABLE",
    "AGGREGATED_KEY",
    "APPENDS",
    "AS_OF_COLUMN",
    "AS_OF_KIND",
    "AS_OF_PLACE",
    "AS_OF_TABLE",
    "AS_OF_TIME",
    "CLOCK",
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
    "SENT_AGAIN",
    "STEPS",
    "STREAM_LIMITED",
    "STREAM_OF_DISTINCT",
    "STREAM_RANKED",
    "STREAM_SORTED",
    "SUBQUERY",
    "TABLE_TWICE",
    "TAKES_STAYING",
    "TEXT_WINDOW",
    "TWO_COLUMNS",
    "UNREPEATABLE",
    "VALID",
    "WITHIN_WATERMARK",
]

NO_STEP = over_a_table(
    "{kind}",
    "use JOIN, GROUP BY and WHERE",
    "the step is not known to be correct for rows that are retracted",
    "SELECT * FROM customers TABLESAMPLE (10 PERCENT)",
)
DEDUPLICATED = Refusal(
    what="{view}: dropping duplicates over a table cannot follow its changes",
    why=FEW,
    instead="use SELECT DISTINCT, or GROUP BY",
    example="",
)
"""Not in the list: SQL has no expression for it."""
LATERAL = Refusal(
    what="{view}: a LATERAL subquery over a table cannot follow its changes",
    why="the subquery would run again for every change of either side",
    instead="use JOIN",
    example="",
)
"""Not in the list: for a stream Spark reports it as any subquery in an expression."""
STEPS = {
    "Deduplicate": DEDUPLICATED,
    "Except": over_a_table(
        "EXCEPT",
        "use LEFT JOIN, and WHERE the other side IS NULL",
        "a row of the second query removes one of the first, which would have to come back later",
        "SELECT land FROM customers EXCEPT SELECT code FROM lands",
        ("land",),
    ),
    "Expand": over_a_table(
        "GROUPING SETS, CUBE, ROLLUP or a hopping window",
        "use a view for each of the groupings",
        "each row counts in several kinds of groups",
        "SELECT land, name, count(*) AS n FROM customers GROUP BY CUBE (land, name)",
        ("land", "name"),
    ),
    "GlobalLimit": LIMIT,
    "Intersect": over_a_table(
        "INTERSECT",
        "use JOIN",
        "a row is in the result as long as both queries have it",
        "SELECT land FROM customers INTERSECT SELECT code FROM lands",
        ("land",),
    ),
    "LateralJoin": LATERAL,
    "LocalLimit": LIMIT,
    "Offset": OFFSET,
    "Sort": SORT,
    "Window": RANKING,
}
SUBQUERY = over_a_table(
    "a subquery in an expression",
    "use JOIN; a subquery in FROM is possible",
    "its result is one value that changes for all rows at once",
    "SELECT id, name FROM customers WHERE land IN (SELECT code FROM lands)",
)
NO_JOIN = over_a_table(
    "{kind} JOIN",
    "use JOIN or LEFT JOIN, and GROUP BY",
    "a row appears or disappears with its first or last partner, of which there may be many",
    "SELECT c.id, c.name FROM customers c LEFT ANTI JOIN lands l ON c.land = l.code",
)
OUTER_CONDITION = over_a_table(
    "this condition in a {how} JOIN",
    "use equalities of both sides there, and a subquery in FROM for other conditions",
    "whether a row has a partner would depend on more than the key under which both are stored",
    "SELECT c.id, l.title FROM customers c LEFT JOIN lands l ON c.land = l.code AND c.name < l.title",
)
NO_EQUALITY = over_a_table(
    "a JOIN without an equality of both sides",
    "use JOIN … ON a.x = b.y",
    "every change would have to be compared with all rows of the other side",
    "SELECT c.id, l.title FROM customers c JOIN lands l ON c.name < l.title",
)
AS_OF_KIND = over_a_table(
    "{kind} JOIN … AS OF",
    "use JOIN or LEFT JOIN",
    "rows of the table without an event have no time for the lookup",
    "SELECT o.id, r.percent FROM orders o RIGHT JOIN rates FOR SYSTEM_TIME AS OF o.at r ON o.land = r.land",
)
AS_OF_TIME = over_a_table(
    "AS OF an expression",
    "use the event time of the stream",
    "only for the event time is it known how long a result may still change",
    "SELECT o.id, r.percent FROM orders o JOIN rates FOR SYSTEM_TIME AS OF r.since AS r ON o.land = r.land",
)
AS_OF_COLUMN = over_a_table(
    "a JOIN … AS OF on an expression of the table",
    "use a column of the table, and cast the other side",
    "the versions of a table are stored by the columns of its key",
    "SELECT o.id, r.percent FROM orders o JOIN rates FOR SYSTEM_TIME AS OF o.at AS r "
    "ON o.land = upper(r.land)",
)
NO_GROUPS = over_a_table(
    "an aggregate without GROUP BY",
    "use GROUP BY, whose columns are the view's key",
    "a view has a key, and one row for all rows has none",
    "SELECT count(*) AS id FROM customers",
)
OF_DISTINCT = over_a_table(
    "an aggregate of DISTINCT values",
    "use a subquery in FROM that groups by them first",
    "the number of each value must be stored to retract one",
    "SELECT land, count(DISTINCT name) AS names FROM customers GROUP BY land",
    ("land",),
)
NO_AGGREGATE = over_a_table(
    "this aggregate",
    f"use sum, count, avg, min or max; {NEWEST}",
    "what a row has added to it cannot be subtracted",
    "SELECT land, stddev(id) AS spread FROM customers GROUP BY land",
    ("land",),
)

# ---- Spark's own operators, in Python ------------------------------------------------------------------

AFTER_TABLE = refusal(
    Refusal(
        what="{view} applies {kind} to a table, whose rows are retracted when they change",
        why="Spark counts a retracted row as another row",
        expected="select, filter, union, explode, or an operator that accepts such rows",
        instead="{operator} does it",
        example='customers.rows.groupBy("land").count()',
        key=("land",),
    )
)
SENT_AGAIN = refusal(
    Refusal(
        what="{view} combines rows of tables with rows of groupBy or windows",
        why="these are sent again when they change, and would each count as another row",
        instead="publish them as their own view and read that, or use hw.group",
        example='hw.join(orders.groupBy("land").count(), lands, on={"land": "code"})',
        key=("land",),
    )
)
APPENDS = refusal(
    Refusal(
        what="{view} appends, and rows of a table are retracted when they change",
        why="an appended record stays",
        instead="leave out append=True",
        example="SELECT id, name FROM customers",
        options=(("append", True),),
    )
)
MAY_CHANGE = refusal(
    Refusal(
        what="{view} applies {kind} to rows that may still change",
        why="Spark would count a session before and after each change",
        expected="only select and filter after sessions and sliding windows",
        instead="publish them as their own view",
        example='hw.sessions(orders, "land", time="at", gap="5 minutes").groupBy("land").count()',
        key=("land",),
    )
)
TABLE_TWICE = refusal(
    Refusal(
        what="{view} uses a table twice",
        why="each use would be read at its own positions, and both would share one state",
        expected="a parameter for each use",
        instead='like inputs={{"users": "users", "managers": "users"}}',
        example="SELECT a.id, b.name FROM customers a JOIN customers b ON a.land = b.name",
    )
)
WITHIN_WATERMARK = refusal(
    Refusal(
        what="{view} uses dropDuplicatesWithinWatermark",
        why="it uses Spark's own watermark, and would keep its state for ever",
        expected="a time within which duplicates arrive",
        instead='like hw.distinct(rows, ["id"], time="at", within="1 hour")',
        example='orders.dropDuplicatesWithinWatermark(["id"])',
    )
)
TEXT_WINDOW = refusal(
    Refusal(
        what="{view} has a window over text",
        why="Spark would look for times in the text, and find none",
        expected="a timestamp: the event time of its stream",
        instead="",
        example="SELECT window, count(*) AS n FROM orders GROUP BY window(land, '5 minutes')",
        key=("window",),
    )
)
OWN_WATERMARK = Refusal(
    what="{view} sets its own watermark",
    why=checks.WATERMARK.why,
    instead=checks.WATERMARK.instead,
    example="",
)
"""Not in the list: it is for functions that a view calls; `declare/checks.py` checks the view's own code."""
NO_INPUTS = refusal(
    Refusal(
        what="{view} does not use its inputs",
        why="nothing would ever change it",
        instead="make its rows from its inputs",
        example="orders.sparkSession.range(3)",
    )
)
TAKES_STAYING = refusal(
    Refusal(
        what="{kind} accepts only rows that stay, and those of a table are retracted when they change",
        why="it keeps what it has counted",
        instead="hw.group counts and sums rows of tables",
        example='hw.count(customers, "land")',
        key=("land",),
    )
)

# ---- real time, and complete rows ----------------------------------------------------------------------


# ---- tables as of a time, operators in FROM, keys --------------------------------------------------------

AS_OF_PLACE = refusal(
    Refusal(
        what="{view}: AS OF is only possible on the right side of a JOIN with ON, and not inside WITH",
        why="a table as of a time has rows only together with an event",
        expected=AS_OF,
        instead="",
        example="SELECT land AS id FROM orders JOIN (SELECT * FROM rates FOR SYSTEM_TIME AS OF at) "
        "USING (land)",
    )
)
AS_OF_TABLE = refusal(
    Refusal(
        what="{view}: AS OF needs a table",
        why="only a table has versions",
        expected="{tables}",
        instead="",
        example="SELECT o.id FROM orders o JOIN clicks FOR SYSTEM_TIME AS OF o.at AS c ON o.id = c.order_id",
    )
)
NO_VALID_TIME = refusal(
    Refusal(
        what="{view}: table {table} does not say from when a row is valid",
        why="without that no version is valid at a time",
        expected="one timestamp in its key, or time= where it is declared",
        instead="or FROM enrich(stream, {name}, on => '…', as_of => '…', valid => '…')",
        example="SELECT o.id, l.title FROM orders o JOIN lands FOR SYSTEM_TIME AS OF o.at l "
        "ON o.land = l.code",
    )
)
TWO_COLUMNS = refusal(
    Refusal(
        what="{view} has two columns named {column}",
        why="a row is a JSON object, which has each name once",
        instead="rename one with alias()",
        example="SELECT id, land, name AS land FROM customers",
    )
)
