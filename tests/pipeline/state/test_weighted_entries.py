"""Many entries of one key: whose each is, and how a shard reads them."""

from zlib import crc32

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.pipeline.state import weighted_entries
from headwater.pipeline.state.files import Place
from headwater.pipeline.state.layouts import ENTRIES, layout, shard_of
from headwater.pipeline.state.shard import Shard
from support.memorystate import Memory, extended

hundred = settings(max_examples=100, deadline=None)


@hundred
@given(keys=st.lists(st.sampled_from(["", "a", "ab", "ä", "key " * 100, "key " * 101]), min_size=1, max_size=5), shards=st.integers(1, 5))  # fmt: skip
def test_an_entry_belongs_to_the_shard_of_its_key(keys, shards):
    raw = [each.encode() for each in keys]
    begins = weighted_entries.begins(pa.array(raw, pa.binary())).to_pylist()
    for begin, own in zip(begins, raw, strict=True):
        for tail in (b"", b"\xff", b"\xff" * 290):
            entry = begin + b"l" + tail
            value = weighted_entries.value_of(entry, 2, None, own)
            assert len(entry) <= 511
            assert layout(ENTRIES).owner(entry, value) == own
            assert shard_of(layout(ENTRIES).owner(entry, value), shards) == crc32(own) % shards
    assert len(set(begins)) == len(set(raw))


def test_stretches_of_a_shard_are_those_of_its_entries(tmp_path):
    values = {b"k%03d" % n: b"%d" % n for n in range(100)} | {b"x" * 600: b"odd"}
    place = Place(str(tmp_path / "files"), str(tmp_path / "copies"))
    chain = extended(Shard(place, 0, ()), 1, "a", values)
    later = {b"k005": None, b"k006": b"new", b"k007": None, b"x" * 600: None}
    chain = extended(Shard(place, 0, chain), 2, "b", later)
    wanted = [
        (b"k000", b"k010", 99),
        (b"k004", b"k020", 3),
        (b"k050", b"k050", 9),
        (b"z", b"zz", 1),
        (b"a", b"b", 5),
    ]
    shard, memory = Shard(place, 0, chain), Memory(values)
    memory.take(later)
    assert shard.stretches(wanted) == memory.stretches(wanted)
    assert dict(shard.items()) == dict(memory)
    assert msgspec.msgpack.decode(weighted_entries.closed(weighted_entries.Held(3))) == [3, None, None]
