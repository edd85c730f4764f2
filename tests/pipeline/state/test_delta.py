"""Delta: changes collected by key and changes as columns are the same file, the same size and the same state."""

import gc

import pyarrow as pa
import pytest

from headwater.pipeline.operator.logic import Applied, Spec
from headwater.pipeline.operator.messages import Plan
from headwater.pipeline.operator.shell import answers
from headwater.pipeline.state import delta
from headwater.pipeline.state.contract import Nothing
from headwater.pipeline.state.delta import Delta
from headwater.pipeline.state.files import Place, Size
from headwater.pipeline.state.shard import Shard, size_of

BYTES = pa.large_binary()
FIRST = {b"a": b"1", b"b": b"22", b"c": b""}
SECOND = {b"a": None, b"b": b"3", b"d": b"4444"}


def over(changes, before):
    columns = list(changes), list(changes.values()), [before.get(key) for key in changes]
    return Delta.over(*(pa.array(each, BYTES) for each in columns))


def test_the_files_of_changes_by_key_are_those_of_columns(tmp_path):
    place = Place(str(tmp_path / "files"), str(tmp_path / "copies"))
    chains = {}
    for form in ("by-key", "columns"):
        chain = ()
        for batch, (changes, before) in enumerate([(FIRST, {}), (SECOND, FIRST)]):
            shard = Shard(place, 0, chain)
            unordered = dict(reversed(changes.items()))
            delta = over(changes, before) if form == "columns" else Delta.of(unordered, shard)
            chain = shard.extended(batch, form, delta)
        chains[form] = chain
        assert dict(Shard(place, 0, chain).items()) == {b"b": b"3", b"c": b"", b"d": b"4444"}
    assert size_of(chains["by-key"]) == size_of(chains["columns"]) == Size(3, 8)
    one, two = ([(file.checksum, file.rows) for file in chain] for chain in chains.values())
    assert one == two


def test_a_delta_is_a_mapping_in_the_order_of_its_keys():
    found = over(SECOND, FIRST)
    assert found == SECOND
    assert list(found.items()) == list(SECOND.items())
    assert len(over({}, {})) == 0
    assert not over({}, {})


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_columns_that_are_too_long_for_one_piece_come_in_several(monkeypatch, limit):
    changes = {b"%02d" % n: b"v" * n if n % 3 else None for n in range(50)}
    monkeypatch.setattr(delta, "COLUMN_BYTES_MAX", limit)
    table = over(changes, {}).table
    assert table.column(1).num_chunks > 1
    assert table.to_pylist() == [{"key": key, "value": value} for key, value in changes.items()]


class Watching(Spec, frozen=True, kw_only=True):
    """A logic that fails when the collector of cycles is on, or on request."""

    kind: str = "watching"
    key: tuple[str, ...] = ("_key",)
    fails: bool = False

    def schema(self, rows):
        return rows

    def apply(self, rows, state, moment):  # noqa: ARG002
        if gc.isenabled() or self.fails:
            raise RuntimeError("watched")
        keys = sorted(set(rows.column("_key").to_pylist()))
        return Applied(rows, Delta.of({key.encode(): b"" for key in keys}, Nothing()))


def test_the_collector_rests_while_a_shard_is_worked_on_and_runs_afterwards(tmp_path):
    plan = Plan(0, {"it": Place(str(tmp_path / "files"), str(tmp_path / "copies"))}, {"it": [(), ()]})
    rows = pa.table({"_key": ["a", "b", "c"], "_shard": pa.array([0, 1, 0], pa.int32())}).to_batches()
    kind = pa.schema([("_key", pa.string())])
    out = pa.Table.from_batches(list(answers("it", Watching(), rows, plan, kind)))
    assert out.column("_key").to_pylist() == ["a", "c", None, "b", None]
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="watched"):
        list(answers("it", Watching(fails=True), rows, plan, kind))
    assert gc.isenabled()
