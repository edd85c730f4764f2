"""Data folders that earlier code has written: each opens with all that it held, is taken over once, and a newer one is refused."""

import asyncio
import json
import tarfile
from pathlib import Path

import msgspec
import pytest

from headwater.errors import ErrorCode, StorageError
from headwater.log.broker import Broker
from headwater.log.storage.catalog import FORMAT
from headwater.log.storage.disk import RealDisk
from headwater.log.storage.memory import MemoryDisk
from headwater.testing import SettableClock
from support.protocol import Client

HERE = Path(__file__).parent
FORMATS = sorted(path.stem for path in HERE.glob("*.json"))
EVENTS, TABLE, GROUP = "events", "a.table", "readers"


def unpacked(name: str, folder: Path, end: str) -> Path:
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / end


async def check(broker: Broker, expected: dict, *, later: int = 0) -> None:
    """What the folder held when it was made, and ``later`` records more in the first partition of the events."""
    for name, part in expected["partitions"].items():
        topic, _, index = name.rpartition("-")
        rows, end = await Client(broker).read(topic, int(index))
        more = later if name == f"{EVENTS}-0" else 0
        found = [[r.offset, (r.key or b"").decode(), (r.value or b"").decode()] for r in rows]
        assert found[: len(found) - more] == part["rows"], name
        assert end == part["end"] + more, name
    committed = broker.offsets.of(GROUP)[EVENTS, 1]
    assert (committed.offset, committed.metadata) == (expected["offset"], expected["metadata"])


@pytest.mark.parametrize("end", ["clean", "killed"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_of_every_format_opens_with_all_that_it_held(name, end, tmp_path):
    folder = unpacked(name, tmp_path, end)
    expected = json.loads((HERE / f"{name}.json").read_text())

    async def lives() -> None:
        for later in range(2):
            broker = Broker(folder, clock=SettableClock())
            await check(broker, expected, later=later)
            answer = await Client(broker).produce(EVENTS, 0, [b"later"])
            assert answer.error_code == ErrorCode.NONE
            await broker.close()

    asyncio.run(lives())


class _Interrupted(RealDisk):
    """Renames one folder, and then loses its power."""

    renames = 1

    def rename_folder(self, old: Path, new: Path) -> None:
        if not self.renames:
            raise InterruptedError("power cut")
        self.renames -= 1
        super().rename_folder(old, new)


def test_a_take_over_that_is_interrupted_continues_at_the_next_start(tmp_path):
    folder = unpacked("format-1", tmp_path, "killed")
    expected = json.loads((HERE / "format-1.json").read_text())

    async def lives() -> None:
        for _ in range(2):
            with pytest.raises(InterruptedError):
                Broker(folder, disk=_Interrupted(), clock=SettableClock())
        broker = Broker(folder, clock=SettableClock())
        await check(broker, expected)
        await broker.close()

    asyncio.run(lives())


def test_a_folder_of_a_newer_format_is_refused(tmp_path):
    async def lives() -> None:
        disk = MemoryDisk()
        await Broker(tmp_path, disk=disk).close()
        catalog = msgspec.json.decode(disk.read(tmp_path / "topics.json"))
        disk.replace(tmp_path / "topics.json", msgspec.json.encode(catalog | {"version": FORMAT + 1}))
        with pytest.raises(StorageError, match="newer Headwater"):
            Broker(tmp_path, disk=disk)

    asyncio.run(lives())
