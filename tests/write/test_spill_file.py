"""The files of records that wait: bounded, in order, whole after a crash."""

import os

import pytest

import headwater as hw
from headwater.errors import StorageError
from headwater.write.outlet import ProducerRecord
from headwater.write.spill_file import SpillFile
from support.smalldisk import small_disk


def record(number: int) -> ProducerRecord:
    return ProducerRecord("orders", f"k{number % 3}", b"%d" % number)


def values(spill: SpillFile, count: int = 1000) -> list[int]:
    return [int(each.value) for each in spill.first(count)]


def filled(folder, count: int, bytes_max: int = 1 << 20) -> SpillFile:
    spill = SpillFile(folder, bytes_max)
    for number in range(count):
        assert spill.append(record(number), 1_000 + number)
    spill.sync()
    return spill


def test_records_come_out_in_order_with_their_time_and_a_name_of_their_own(tmp_path):
    spill = filled(tmp_path, 3)

    found = spill.first(2)
    assert [(r.topic, r.key, r.value, r.at_ms) for r in found] == [
        ("orders", b"k0", b"0", 1000),
        ("orders", b"k1", b"1", 1001),
    ]
    spill.pass_over({})
    assert values(spill) == [2]
    names = {r.headers[0] for r in [*found, *spill.first(2)]}
    assert len(names) == 3


def test_the_next_writer_of_the_folder_continues_where_the_last_one_stopped(tmp_path):
    spill = filled(tmp_path, 10)
    names = [r.headers for r in spill.first(10)]
    spill.first(4)
    spill.begin({"orders": {0: 7}})
    spill.pass_over({"orders": {0: 11}})
    spill.close()

    again = SpillFile(tmp_path, 1 << 20)
    assert again.mark.ends == {"orders": {0: 11}}
    assert again.waiting == 6
    assert again.append(record(10), 0)
    assert values(again) == [4, 5, 6, 7, 8, 9, 10]
    assert [r.headers for r in again.first(6)] == names[4:]


def test_records_may_come_while_others_are_sent(tmp_path):
    spill = filled(tmp_path, 3)
    assert values(spill) == [0, 1, 2]
    spill.append(record(3), 0)
    spill.pass_over({})
    assert values(spill) == [3]
    spill.append(record(4), 0)
    assert values(spill) == [3, 4]


@pytest.mark.parametrize("cut", [1, 9, 20])
def test_a_record_that_a_crash_has_cut_is_left_out_and_those_before_it_stay(tmp_path, cut):
    filled(tmp_path, 5).close()
    (file,) = tmp_path.glob("*.spill")
    os.truncate(file, file.stat().st_size - cut)

    again = SpillFile(tmp_path, 1 << 20)
    assert values(again) == [0, 1, 2, 3]
    again.append(record(4), 0)
    assert values(again) == [0, 1, 2, 3, 4]


def test_a_record_whose_bytes_have_changed_ends_the_file(tmp_path):
    filled(tmp_path, 5).close()
    (file,) = tmp_path.glob("*.spill")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)

    assert values(SpillFile(tmp_path, 1 << 20)) == [0, 1, 2, 3]


def test_it_is_bounded_and_what_was_sent_makes_room(tmp_path):
    spill = SpillFile(tmp_path, 2_000)
    count = 0
    while spill.append(record(count), 0):
        count += 1
        assert spill.size_bytes <= 2_000
    assert len(list(tmp_path.glob("*.spill"))) > 1

    assert values(spill, 30) == list(range(30))
    spill.pass_over({})
    assert spill.size_bytes < 2_000
    assert spill.append(record(count), 0)
    assert values(spill) == list(range(30, count + 1))
    spill.pass_over({})
    assert (spill.waiting, spill.size_bytes, list(tmp_path.glob("*.spill"))) == (0, 0, [])
    assert spill.append(record(7), 0)
    assert values(spill) == [7]


def test_a_folder_belongs_to_one_writer_at_a_time(tmp_path):
    first = SpillFile(tmp_path, 1 << 20)
    with pytest.raises(hw.UsageError, match="belongs to another writer"):
        SpillFile(tmp_path, 1 << 20)
    first.close()
    SpillFile(tmp_path, 1 << 20).close()


def refused(spill: SpillFile, kept: int) -> int:
    """Gives it records until one is refused; how many it has then."""
    for number in range(kept, 100_000):
        try:
            assert spill.append(record(number), number)
        except StorageError:
            return number
    raise AssertionError("no record was refused")


@pytest.mark.parametrize("bytes_max", [1 << 20, 16_000])
def test_a_full_disk_refuses_a_record_and_keeps_those_before_it(tmp_path, bytes_max):
    """Whether it is met inside a file or where the next one is begun."""
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        spill = SpillFile(disk.folder / "spill", bytes_max)
        assert spill.append(record(0), 0)
        kept = 1
        for _ in range(2):
            disk.fill()
            kept = refused(spill, kept)
            assert refused(spill, kept) == kept
            assert values(spill, 2 * kept) == list(range(kept))
            disk.empty()
            for _ in range(20):
                assert spill.append(record(kept), kept)
                kept += 1
        spill.close()
        again = SpillFile(disk.folder / "spill", bytes_max)
        assert values(again, 2 * kept) == list(range(kept))
        again.close()


def test_what_was_sent_while_the_disk_was_full_is_given_again_until_that_is_noted(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        spill = filled(disk.folder / "spill", 10)
        names = [each.headers for each in spill.first(4)]
        disk.fill()
        with pytest.raises(StorageError, match="No space left"):
            spill.pass_over({})
        assert [each.headers for each in spill.first(4)] == names
        disk.empty()
        spill.pass_over({})

        assert values(spill) == [4, 5, 6, 7, 8, 9]
        spill.close()
