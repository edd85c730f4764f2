"""What a newer version has stored is refused, with what helps, and stays as it is. Stores of sinks have this in their contract (``tests/sink/contract.py``)."""

import asyncio
import re
import sqlite3
import struct
import uuid
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from crc32c import crc32c
from pyarrow import ipc

from headwater import formats
from headwater.capture.loop.control import Control, finished, send
from headwater.capture.loop.lifecycle import restart
from headwater.capture.loop.newest_rows import FILE, NewestRows
from headwater.capture.messages import Command
from headwater.capture.sqlite.source import SqliteSource
from headwater.capture.sqlite.triggers import install, remove
from headwater.capture.state import last_state, schemas
from headwater.client.client import Client, producer
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.follow import results
from headwater.formats import FORMATS
from headwater.log.broker import Broker
from headwater.log.shares.share_record import ShareKey, key_of
from headwater.log.storage.catalog import FORMAT as LOG_FORMAT
from headwater.log.storage.memory import MemoryDisk
from headwater.operate.views.backup import restore
from headwater.operate.views.reset import reset
from headwater.pipeline.spark import session
from headwater.pipeline.state.files import FORMAT, Place, contents
from headwater.pipeline.time.late_bounds import Bounds
from headwater.record import Record, encode_batch
from headwater.result import File
from headwater.view.tables.reader import ViewTable
from headwater.view.tables.writer import SqliteTable
from headwater.write.outlet import ProducerRecord
from headwater.write.spill_file import SpillFile
from support.resultlog import Driver
from support.servers import wait_until

ROOT = Path(__file__).parents[2]
NEWER = (
    r"was written by a newer Headwater; got format \d; expected at most \d; install that version again, or "
)


@pytest.fixture
def name() -> str:
    return f"new{uuid.uuid4().hex[:8]}"


@pytest.fixture
def settings(bootstrap, tmp_path) -> Settings:
    return Settings(log=f"kafka://{bootstrap}", view_tables=f"sqlite:{tmp_path / 'data' / 'views'}")


def put(bootstrap: str, topic: str, value: dict, key: str = "k") -> None:
    Client(bootstrap).ensure_topics([topic], 1, {})
    out = producer(bootstrap)
    out.produce(topic, msgspec.json.encode(value), key)
    assert out.flush(30) == 0


def execute(path: Path, statement: str) -> list:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return db.execute(statement).fetchall()


@pytest.mark.parametrize("more", [{}, {"batch": "another kind of number"}], ids=["the same", "other types"])
def test_a_newer_result_stops_its_view_until_the_view_is_reset(bootstrap, settings, name, more):
    driver = Driver(bootstrap, name)
    driver.publish({"orders": {0: 1}}, {"a": b"{}"})
    driver.publish({"orders": {0: 2}}, format=3, **more)
    client = Client(bootstrap)

    with pytest.raises(UsageError, match=f"{NEWER}.*headwater view reset {name} --accept-loss"):
        results.newest(client, name)
    with pytest.raises(UsageError, match=NEWER):
        reset(settings, name)
    assert name in client.partitions()
    reset(settings, name, accept_loss=True)
    wait_until(lambda: name not in client.partitions())


def test_a_newer_state_file_is_refused_with_the_command_that_makes_it_again(tmp_path):
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())], metadata={FORMAT: b"2"})
    path = tmp_path / "0-0-1.delta"
    with ipc.new_file(str(path), schema) as out:
        out.write_table(pa.table([[b"k"], [b"v"]], schema=schema))
    data = path.read_bytes()
    file = File(path.name, 0, whole=True, rows=1, size_bytes=len(data), checksum=crc32c(data))

    with pytest.raises(UsageError, match=f"{NEWER}.*headwater view reset orders"):
        list(contents(Place(str(tmp_path), "", "headwater view reset orders"), file))
    assert path.read_bytes() == data


def test_a_state_file_without_a_format_is_read(tmp_path):
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    path = tmp_path / "0-0-1.delta"
    with ipc.new_file(str(path), schema) as out:
        out.write_table(pa.table([[b"k"], [b"v"]], schema=schema))
    data = path.read_bytes()
    file = File(path.name, 0, whole=True, rows=1, size_bytes=len(data), checksum=crc32c(data))

    assert list(contents(Place(str(tmp_path), ""), file)) == [(b"k", b"v")]


def test_copies_of_state_in_another_format_are_in_another_folder(settings):
    here = session.copies(settings)
    other = here.with_name(here.name.removesuffix("-1") + "-2")
    other.mkdir(parents=True)

    assert session.copies(settings) == here
    assert here.name.endswith(f"-{formats.STATE_COPY.newest}")


def test_a_newer_backup_is_not_restored(bootstrap, settings, name, tmp_path):
    Driver(bootstrap, name).publish({"orders": {0: 1}}, {"a": b"{}"})
    place = tmp_path / "saved" / name
    place.mkdir(parents=True)
    note = {"run": "run-1", "batch": 0, "files": 0, "size_bytes": 0, "format": 2}
    (place / "saved.json").write_bytes(msgspec.json.encode(note))

    with pytest.raises(UsageError, match=NEWER):
        restore(settings, name, str(tmp_path / "saved"))
    assert not (settings.data / "checkpoints" / name).exists()


def test_a_newer_view_table_is_neither_read_nor_emptied(tmp_path):
    path = tmp_path / "revenue.db"
    SqliteTable(path).close()
    execute(path, "INSERT INTO row VALUES ('DE', '{}', 0, 0, 0, NULL)")
    execute(path, "PRAGMA user_version = 2")

    with pytest.raises(UsageError, match=f"{NEWER}remove the file"):
        SqliteTable(path)
    with pytest.raises(UsageError, match=NEWER):
        ViewTable(path).extent()
    assert execute(path, "SELECT key FROM row") == [("DE",)]


def test_a_newer_state_of_a_capture_is_not_overwritten(bootstrap, name):
    put(bootstrap, f"{name}.capture", {"position": ["another", "kind"], "format": 2}, name)

    with pytest.raises(UsageError, match=f"capture {name}.*{NEWER}"):
        last_state(bootstrap, name)
    with pytest.raises(UsageError, match=NEWER):
        restart(bootstrap, name, "0")
    assert len(list(Client(bootstrap).read([f"{name}.capture"]))) == 1


def test_a_newer_schema_of_a_captured_table_is_refused(bootstrap, name):
    put(bootstrap, f"{name}.schema", {"table": "item", "format": 2})

    with pytest.raises(UsageError, match=f"{name}.schema {NEWER}"):
        schemas(Client(bootstrap), name)


def test_a_newer_command_is_named_in_the_log_and_not_obeyed(bootstrap, name, caplog):
    put(bootstrap, f"{name}.control", {"do": "pause", "format": 2})
    send(bootstrap, name, Command("resume"))
    with closing(Control(bootstrap, name, 0)) as control:
        found: list[Command] = []
        wait_until(lambda: found.extend(filter(None, [control.next()])) or found)

    assert [command.do for command in found] == ["resume"]
    assert "newer Headwater" in caplog.text


def test_a_newer_notice_is_not_taken_for_an_answer(bootstrap, name):
    put(bootstrap, f"{name}.notifications", {"what": "done", "details": {"id": "1"}, "format": 2})

    with pytest.raises(UsageError, match=NEWER):
        finished(bootstrap, name, "1")


def test_newer_kept_rows_of_a_capture_stay(tmp_path):
    NewestRows(tmp_path).close()
    execute(tmp_path / FILE, "INSERT INTO topics (name, types) VALUES ('shop.item', '{}')")
    execute(tmp_path / FILE, "PRAGMA user_version = 2")

    with pytest.raises(UsageError, match=f"{NEWER}remove the file"):
        NewestRows(tmp_path)
    assert execute(tmp_path / FILE, "SELECT name FROM topics") == [("shop.item",)]


def test_a_newer_change_table_is_neither_read_nor_emptied_until_the_capture_is_removed(tmp_path):
    path = tmp_path / "shop.db"
    execute(path, "CREATE TABLE item (id INTEGER PRIMARY KEY)")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        install(db, ["item"])
        db.execute("INSERT INTO item VALUES (1)")
        db.execute("INSERT INTO _headwater_format VALUES (2)")
        source = SqliteSource("shop", path, ["item"])

        for position in (None, "0"):
            with pytest.raises(UsageError, match=f"{NEWER}.*headwater capture remove"):
                next(source.read(position))
        source.close()
        assert db.execute("SELECT count(*) FROM _headwater_changes").fetchone() == (1,)
        remove(db)
        assert db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%headwater%'").fetchall() == []


@pytest.mark.parametrize("where", ["the mark", "a record"])
def test_newer_spilled_records_are_kept_for_a_newer_writer(tmp_path, where):
    spill = SpillFile(tmp_path, 1 << 20)
    spill.append(ProducerRecord("orders", "k", b"1"), 0)
    spill.close()
    (file,) = tmp_path.glob("*.spill")
    if where == "the mark":
        mark = msgspec.json.decode((tmp_path / "mark.json").read_bytes())
        (tmp_path / "mark.json").write_bytes(msgspec.json.encode(mark | {"format": 3}))
    else:
        body = msgspec.msgpack.encode((3, {"another": "kind"}))
        file.write_bytes(struct.pack(">II", len(body), crc32c(body)) + body)
    before = file.read_bytes()

    with pytest.raises(UsageError, match=NEWER):
        SpillFile(tmp_path, 1 << 20)
    assert file.read_bytes() == before


def documented() -> dict[str, tuple[str, str]]:
    """By name, the format and the test that ``docs/formats.md`` lists."""
    text = (ROOT / "docs" / "formats.md").read_text()
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|.*\| (\d+) \|.*\| `(.+?)` \|$", text, re.MULTILINE)
    return {name: (number, test) for name, number, test in rows}


def test_the_documented_formats_are_those_that_the_code_declares():
    declared = {"log": LOG_FORMAT} | {name: each.newest for name, each in FORMATS.items()}

    assert {name: int(number) for name, (number, _) in documented().items()} == declared


@pytest.mark.parametrize(("name", "test"), [(name, test) for name, (_, test) in documented().items()])
def test_every_format_has_the_test_that_its_line_names(name, test):
    path, _, function = test.partition("::")

    assert f"def {function}(" in (ROOT / "tests" / path).read_text(), name


def test_newer_bounds_of_a_real_time_view_are_refused_and_left_alone(tmp_path):
    file = tmp_path / "bounds.json"
    file.write_text(newer := '{"format":2,"bounds":{"7":"yesterday"}}')
    with pytest.raises(UsageError, match=r"bounds.json was written by a newer Headwater; got format 2"):
        Bounds(tmp_path)
    assert file.read_text() == newer


def test_a_newer_state_of_share_groups_is_refused_and_left_alone():
    disk = MemoryDisk()

    async def store(format_number: int) -> None:
        broker = Broker(Path("/memory"), disk=disk)
        topic = broker.catalog.create("t", 1) if "t" not in broker.catalog.topics else None
        value = msgspec.msgpack.encode((format_number, 1, 0, [], "of a later version"))
        key = key_of(ShareKey("g", topic.id if topic else uuid.uuid4(), 0))
        broker.shares.open("g", (broker.catalog.topics["t"].id, 0))
        state = broker.catalog.topics["__share_group_state"].partitions[0]
        state.append(memoryview(bytearray(encode_batch([Record(key, value, (), 1_000)]))))
        await broker.committed()
        await broker.close()

    asyncio.run(store(formats.SHARE_STATE.newest + 1))
    with pytest.raises(UsageError, match=NEWER + "restore a copy"):
        asyncio.run(store(1))
    with pytest.raises(UsageError, match=NEWER):  # it has let go of the folder, and changed nothing
        asyncio.run(store(1))
