"""Files that hold records belong to who runs Headwater, whatever the umask says."""

import os

import pytest
from confluent_kafka import Producer

from headwater.change import Change
from headwater.position import Position
from headwater.view.tables.folder import FolderLock
from headwater.view.tables.writer import SqliteTable
from headwater.write.outlet import ProducerRecord
from headwater.write.spill_file import SpillFile
from support.servers import BrokerProcess


@pytest.fixture(autouse=True)
def _open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(paths):
    """Those that others than their owner may read, write or enter."""
    return [path for path in paths if path.stat().st_mode & 0o077]


def test_records_of_the_log_can_be_read_by_its_owner_alone(tmp_path):
    process = BrokerProcess(tmp_path / "data")
    process.start()
    producer = Producer({"bootstrap.servers": process.bootstrap})
    producer.produce("salaries", b"1000")
    assert producer.flush(60) == 0
    assert process.end() == 0

    found = list((tmp_path / "data").rglob("*"))
    assert any(path.suffix == ".log" for path in found)
    assert open_to_others(found) == []


def test_tables_of_views_can_be_read_by_their_owner_alone(tmp_path):
    folder = tmp_path / "data" / "views"
    lock = FolderLock(folder)
    table = SqliteTable(folder / "salaries.db")
    table.apply([Change("bob", '{"salary":1000}', 0, 0, 0)], Position({"salaries": {0: 1}}))

    assert {path.name for path in folder.iterdir()} >= {"salaries.db", "salaries.db-wal", "salaries.db-shm"}
    assert open_to_others([folder, *folder.iterdir()]) == []
    table.close()
    lock.release()


def test_spilled_records_can_be_read_by_their_owner_alone(tmp_path):
    folder = tmp_path / "spill"
    spill = SpillFile(folder, 1 << 20)
    assert spill.append(ProducerRecord("salaries", "bob", b"1000"), 0)
    spill.sync()

    assert len(list(folder.iterdir())) == 3
    assert open_to_others([folder, *folder.iterdir()]) == []
    spill.close()
