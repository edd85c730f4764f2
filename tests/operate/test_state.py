"""One key at one batch, and how much a view keeps, from results and files alone."""

import struct
import sys
import uuid
from pathlib import Path

import msgspec
import pytest

from headwater.cli.main import main
from headwater.client.client import Client, producer
from headwater.errors import UsageError
from headwater.operate.views.inspect_state import at_batch, entry, shown, sizes
from headwater.pipeline.state.files import Place
from headwater.pipeline.state.layouts import FORGETTING, shard_of
from headwater.pipeline.state.reshard import scaled
from headwater.pipeline.state.shard import CHAIN_FILES_MAX, Shard
from headwater.result import Chain, Result
from support.memorystate import extended

SHARDS = 2
TIME = struct.Struct(">q")


def result(batch: int, state: dict[str, list[Chain]], **more: object) -> Result:
    return Result(run="r", batch=batch, inputs={}, partitions=2, state=state, **more)


def places(folder: Path) -> dict[str, Place]:
    return {
        name: Place(str(folder / "r" / "shards" / name), str(folder / "copies" / name))
        for name in ("publish", "count1")
    }


@pytest.fixture
def known(tmp_path: Path) -> dict[int, Result]:
    """Batches in which de changes each time, fr in the second only, and us is gone after the third."""
    chains: dict[str, list[Chain]] = {"publish": [()] * SHARDS, "count1": [()] * SHARDS}
    found = {}
    for batch in range(4):
        changes = {b"de": b'{"n":%d}' % batch}
        changes |= {b"fr": b'{"n":1}'} if batch == 1 else {}
        changes |= {1: {b"us": b'{"n":9}'}, 2: {b"us": None}}.get(batch, {})
        for name, place in places(tmp_path).items():
            chains[name] = [
                extended(
                    Shard(place, number, chain),
                    batch,
                    "1",
                    {key: v for key, v in changes.items() if shard_of(key, SHARDS) == number},
                )
                for number, chain in enumerate(chains[name])
            ]
        found[batch] = result(batch, dict(chains))
    return found


def read(folder: Path, one: Result, key: bytes, operator: str = "publish"):
    return entry(folder, "v", one, operator, key)


def test_a_key_is_read_as_it_was_after_any_batch_that_is_kept(tmp_path, known):
    assert [read(tmp_path, known[batch], b"de").value for batch in range(4)] == [
        b'{"n":%d}' % batch for batch in range(4)
    ]
    found = read(tmp_path, known[3], b"fr")
    assert (found.value, found.changed, found.exactly) == (b'{"n":1}', 1, True)
    assert found.shard == shard_of(b"fr", SHARDS)


def test_after_a_change_of_shards_older_batches_are_found_in_their_own(tmp_path, known):
    after = scaled(known[3], places(tmp_path), 5, "s")
    found = read(tmp_path, after, b"fr")
    assert (found.value, found.changed, found.exactly) == (b'{"n":1}', 3, False)
    assert found.shard == shard_of(b"fr", 5)
    assert read(tmp_path, known[2], b"fr").changed == 1


def test_a_merged_file_says_only_by_when(tmp_path):
    place, chain = places(tmp_path)["publish"], ()
    for batch in range(CHAIN_FILES_MAX + 1):
        chain = extended(
            Shard(place, 0, chain), batch, "1", {b"k": b"%d" % batch} if batch else {b"old": b"1"}
        )
    found = read(tmp_path, result(CHAIN_FILES_MAX, {"publish": [chain]}), b"old")
    assert found.value == b"1"
    assert found.exactly == any(file.delta and file.version == 0 for file in chain)
    assert not all(file.delta for file in chain)


def test_the_value_of_a_key_with_a_time_to_live_is_shown_without_its_time(tmp_path):
    place = places(tmp_path)["publish"]
    changes = {b"kde": TIME.pack(5) + b'{"n":1}', b"t" + TIME.pack(5) + b"digest": b"de"}
    one = result(
        0, {"publish": [extended(Shard(place, 0, ()), 0, "1", changes)]}, layouts={"publish": FORGETTING}
    )
    assert read(tmp_path, one, b"de").value == b'{"n":1}'


def test_what_is_not_there_is_said(tmp_path, known):
    with pytest.raises(UsageError, match="publish of view 'v' has no key 'xx'; got batch 3"):
        read(tmp_path, known[3], b"xx")
    with pytest.raises(UsageError, match="has no key 'us'; got removed in batch 2"):
        read(tmp_path, known[3], b"us")
    with pytest.raises(UsageError, match="has no operator 'sum'; expected count1 or publish"):
        read(tmp_path, known[3], b"de", "sum")
    with pytest.raises(UsageError, match="no result of batch 7; expected one from 0 to 3"):
        at_batch("v", known, 7)
    assert at_batch("v", known, None).batch == 3
    for file in (tmp_path / "r" / "shards" / "publish").glob("*-0-*"):
        file.unlink()
    with pytest.raises(UsageError, match="after batch 0 is no longer kept"):
        read(tmp_path, known[0], b"de")


def test_sizes_count_what_is_there_now(known):
    publish = next(each for each in sizes(known[3]) if each.operator == "publish")
    assert (publish.shards, publish.entries) == (2, 2)
    assert publish.state_bytes == len(b'de{"n":3}') + len(b'fr{"n":1}')
    assert publish.files == sum(map(len, known[3].state["publish"]))
    assert publish.largest_bytes == max(chain[-1].state_bytes for chain in known[3].state["publish"] if chain)
    assert sizes(result(0, {"publish": [()]}))[0].entries == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b'{"n":1}', '{"n":1}'),
        (msgspec.msgpack.encode(("de", 7)), '["de",7]'),
        ((7).to_bytes(8), "0x0000000000000007"),
        (b"\xc1", "0xc1"),
        (b"", "0x"),
    ],
)
def test_values_are_shown_as_well_as_can_be(value, text):
    assert shown(value) == text


def test_the_command_shows_sizes_a_value_and_what_is_wrong(bootstrap, tmp_path, known, monkeypatch, capfd):
    view = f"state-{uuid.uuid4().hex[:8]}"
    Client(bootstrap).ensure_topics([f"{view}.progress"], 1)
    out = producer(bootstrap)
    for each in known.values():
        out.produce(f"{view}.progress", msgspec.json.encode(each), str(each.batch))
    assert out.flush(30) == 0
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / view).symlink_to(tmp_path)
    monkeypatch.setenv("HEADWATER_LOG", f"kafka://{bootstrap}")
    monkeypatch.setenv("HEADWATER_VIEW_TABLES", f"sqlite:{tmp_path}/views")
    monkeypatch.setenv("COLUMNS", "200")

    def headwater(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["headwater", "view", "state", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said, complaint = capfd.readouterr()
        return int(ended.value.code or 0), (said + complaint).splitlines()

    code, lines = headwater(view)
    assert (code, lines[0]) == (0, "batch 3 of run r")
    assert [line.split()[1] for line in lines if "│" in line] == ["count1", "publish"]
    assert headwater(view, "fr") == (
        0,
        [
            '{"n":1}',
            f"after batch 3, in shard {shard_of(b'fr', SHARDS)} of publish; written in batch 1",
        ],
    )
    assert headwater(view, "de", "--at", "2", "--operator", "count1")[1][0] == '{"n":2}'
    for wrong, text in [
        ((view, "xx"), "no key 'xx'"),
        ((view, "--at", "9"), "no result of batch 9"),
        ((view, "de", "--operator", "sum"), "no operator 'sum'"),
        (("nobody", "de"), "no view 'nobody'"),
    ]:
        code, lines = headwater(*wrong)
        assert code == UsageError.exit_code
        assert len(lines) == 1
        assert text in lines[0]
