"""Functions whose value is another each time that a record is read, and what a view uses instead."""

from headwater.declare.query.refusals import UNREPEATABLE
from headwater.declare.refusal import Refusal
from headwater.errors import UsageError

__all__ = ["UNSTABLE", "WITHOUT_BRACKETS", "unrepeatable"]

CLOCK = "use the event time of the record, or its time of arrival: time=hw.ARRIVAL in the stream"
CHANCE = "use a hash of the record's key, like xxhash64(id)"
NUMBERS = "use the record's key, or a hash of its columns, like sha2(concat_ws('/', a, b), 256)"
UNSTABLE = {
    **dict.fromkeys(
        ("current_date", "current_time", "current_timestamp", "curdate", "localtimestamp"), CLOCK
    ),
    **dict.fromkeys(("localtime", "now", "unix_timestamp"), CLOCK),
    **dict.fromkeys(("rand", "randn", "random", "randstr", "shuffle", "uniform"), CHANCE),
    **dict.fromkeys(
        ("input_file_name", "monotonically_increasing_id", "spark_partition_id", "uuid"), NUMBERS
    ),
}
"""The functions by name, as in SQL. ``unix_timestamp`` is one only without arguments."""
WITHOUT_BRACKETS = {"current_date", "current_time", "current_timestamp", "localtimestamp"}
"""Those that SQL also calls without brackets."""


def unrepeatable(view: str, function: str, got: str, over_table: Refusal | None) -> UsageError:
    """The refusal of a call. ``over_table``: the one for views that read tables, if this one does."""
    if over_table is not None:
        return over_table.error(view=view, got=got)
    return UNREPEATABLE.error(view=view, got=got, function=f"{function}()", instead=UNSTABLE[function])
