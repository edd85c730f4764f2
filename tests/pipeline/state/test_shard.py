"""A shard at any version equals a plain dict of the same changes, in any process, whatever was merged and whichever process retries."""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import StorageError
from headwater.pipeline.state.files import Place, contents
from headwater.pipeline.state.shard import CHAIN_FILES_MAX, Shard, check_size, size_of
from headwater.result import Chain
from support.memorystate import extended

keys = st.sampled_from([b"", b"a", b"b", b"c" * 511, b"d" * 512, "ü".encode(), b"\x00", b"z" * 5000])
values = st.one_of(st.none(), st.binary(max_size=20))
batches = st.lists(st.dictionaries(keys, values, max_size=6), max_size=60)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "files"), str(tmp_path / "copies"))


def applied(place: Place, changes: list[dict], chain: Chain = (), start: int = 0) -> Chain:
    for batch, change in enumerate(changes, start):
        chain = extended(Shard(place, 0, chain), batch, "1", change)
    return chain


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=batches, forget=st.integers(0, 60))
def test_a_shard_equals_a_dict_whether_its_copy_is_kept_or_made_again(tmp_path_factory, changes, forget):
    folder = tmp_path_factory.mktemp("state")
    place = Place(str(folder / "files"), str(folder / "copies"))
    model: dict[bytes, bytes] = {}
    chain: Chain = ()
    for batch, change in enumerate(changes):
        if batch == forget:
            place = Place(place.files, str(folder / "elsewhere"))
        chain = extended(Shard(place, 0, chain), batch, "1", change)
        model.update(change)
        model = {key: value for key, value in model.items() if value is not None}
        shard = Shard(place, 0, chain)
        assert dict(shard.items()) == model
        assert shard.get(sorted(model)) == model
        assert shard.each([*sorted(model), b"never"]) == [*(model[key] for key in sorted(model)), None]
        assert size_of(chain) == (len(model), sum(len(key) + len(value) for key, value in model.items()))
    assert len(chain) <= CHAIN_FILES_MAX + 1


def test_an_older_version_can_be_read_while_the_copy_is_further(place):
    first = applied(place, [{b"k": b"1"}])
    second = applied(place, [{b"k": b"2"}, {b"k": b"3"}], first, start=1)

    assert Shard(place, 0, second).get([b"k"]) == {b"k": b"3"}
    assert Shard(place, 0, first).get([b"k"]) == {b"k": b"1"}
    assert Shard(place, 0, second).get([b"k"]) == {b"k": b"3"}


def test_a_retry_never_sees_what_the_failed_attempt_wrote(place):
    before = applied(place, [{b"k": b"1"}])
    extended(Shard(place, 0, before), 1, "failed", {b"k": b"wrong", b"other": b"wrong"})

    assert dict(Shard(place, 0, before).items()) == {b"k": b"1"}


def test_the_same_changes_give_the_same_bytes(place):
    change = {b"key-%d" % i: b"value" for i in range(1000)}
    one = extended(Shard(place, 0, ()), 0, "1", change)[0]
    two = extended(Shard(place, 0, ()), 0, "2", change)[0]

    assert (one.checksum, one.size_bytes) == (two.checksum, two.size_bytes)
    assert one.name != two.name


def test_another_process_reads_the_copy_without_reading_the_files_again(place):
    chain = applied(place, [{b"k": b"1"}])
    Shard(place, 0, chain)
    shutil.rmtree(place.files)
    known = msgspec.json.encode([place, chain]).decode()
    program = "import sys, msgspec; from headwater.pipeline.state.shard import *; from headwater.pipeline.state.files import *; from headwater.result import *; "
    program += "place, chain = msgspec.json.decode(sys.argv[1], type=tuple[Place, Chain]); "
    program += "print(Shard(place, 0, chain).get([b'k']))"
    done = subprocess.run([sys.executable, "-c", program, known], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "{b'k': b'1'}"


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
def test_a_damaged_or_missing_file_is_named(place, damage):
    chain = applied(place, [{b"k": b"1"}, {b"l": b"2"}])
    file = Path(place.files) / chain[1].name
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elsewhere = Place(place.files, place.copies + "-2")

    with pytest.raises(StorageError, match=chain[1].name):
        Shard(elsewhere, 0, chain)


def test_a_delta_holds_just_the_changes(place):
    chain = applied(place, [{b"k": b"1", b"l": b"1"}, {b"k": None}])

    assert dict(contents(place, chain[1])) == {b"k": None}


def test_a_shard_may_not_grow_beyond_its_limit_but_shrink(place):
    small = applied(place, [{b"k": b"1234"}])
    large = applied(place, [{b"l": b"12345678"}], small, start=1)
    less = applied(place, [{b"k": None}], large, start=2)

    check_size("v", {"op": [(), small]}, {"op": [(), large]}, limit=14)
    check_size("v", {"op": [large]}, {"op": [less]}, limit=1)
    check_size("v", {"op": [large]}, {"op": [large]}, limit=1)
    with pytest.raises(StorageError, match=r"'v': state of op, shard 1 of 2, .*got 14 bytes in 2 entries"):
        check_size("v", {"op": [(), small]}, {"op": [(), large]}, limit=13)


def test_copies_at_a_relative_path_are_in_the_scratch_of_the_executor(tmp_path, monkeypatch):
    """Two executors of one cluster: neither finds, nor needs, what the other has."""
    place = Place(str(tmp_path / "files"), "copies/run")
    chain: Chain = ()
    for number, executor in enumerate(["one", "two", "one"]):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / executor},{tmp_path / 'second disk'}")
        chain = extended(Shard(place, 0, chain), number, executor, {executor.encode(): b"%d" % number})
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "two"))
    assert dict(Shard(place, 0, chain).items()) == {b"one": b"2", b"two": b"1"}
    assert {path.name for path in tmp_path.iterdir()} == {"files", "one", "two"}
    assert (tmp_path / "two" / "copies" / "run" / "0").is_dir()
