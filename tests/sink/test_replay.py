"""What readers show of a real-time view that repeats a batch in another order of partitions."""

import json
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.change import Change
from headwater.position import Position
from headwater.sink.batch_rows import newest_changes
from headwater.view.tables.writer import SqliteTable


def published(partitions, seed, most=None):
    """What a run publishes for one key, reading each partition in its order.

    There is a row for each record, and an aggregate that depends on the order.
    """
    choose, left, row, out = random.Random(seed), [list(each) for each in partitions], [], []
    while any(left) and (most is None or len(out) < most):
        row.append(choose.choice([each for each in left if each]).pop(0))
        out.append(json.dumps({"records": row, "_version": len(row)}))
    return out


def changes(log):
    return [
        Change("k", value, 0, offset, 0, json.loads(value)["_version"]) for offset, value in enumerate(log)
    ]


def read(log, seed):
    """The row of a table that reads a log in batches, and every version that it has shown on the way."""
    choose, at, seen = random.Random(seed), 0, []
    with tempfile.TemporaryDirectory() as folder:
        table = SqliteTable(Path(folder) / "v.db")
        while at < len(log):
            upto = at + choose.randint(1, 6)
            seen += table.apply(log[at:upto], Position({"v": {0: log[:upto][-1].offset + 1}}))
            at = upto
        table.close()
    return seen[-1].value, [each.version for each in seen]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 6), st.integers(1, 6)),
    most=st.integers(0, 12),
    seeds=st.tuples(*[st.integers(0, 99)] * 4),
    kept=st.integers(0, 20),
)
def test_all_readers_show_the_same_row_after_a_crash_and_no_version_goes_back(sizes, most, seeds, kept):
    records = [[f"{number}-{n}" for n in range(size)] for number, size in enumerate(sizes)]
    before, after = published(records, seeds[0], most), published(records, seeds[1])
    log = changes([*before, *after])
    row, versions = read(log, seeds[2])
    assert versions == sorted(versions)
    assert row == after[-1], "what the run that lives has published last"
    assert read(log, seeds[3])[0] == row
    compacted = [*log[:kept][-1:], *log[kept:]]
    assert read(compacted, seeds[3])[0] == row, "a reader that comes after compaction"
    assert newest_changes(log)["k"].change.value == row
