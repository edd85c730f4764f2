"""The state of share groups that earlier code has written: a start finds all of it, and so does the next one."""

import asyncio
import json
import tarfile

import pytest

from formats.make_shares import HERE, state
from headwater.log.broker import Broker
from headwater.log.shares.share_record import SHARE_STATE
from headwater.testing import SettableClock

FORMATS = sorted(path.stem for path in HERE.glob("*.json"))


@pytest.mark.parametrize("name", FORMATS)
def test_the_states_of_every_format_are_as_they_were(name, tmp_path):
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((HERE / f"{name}.json").read_text())

    async def lives() -> None:
        for _ in range(2):
            broker = Broker(tmp_path / "killed", clock=SettableClock())
            assert state(broker) == expected
            for group in expected:
                for share in broker.shares.opened(group).values():
                    broker.shares._store.store({share.key: share.state}, whole=True)
            await broker.committed()
            await broker.close()

    asyncio.run(lives())


def test_every_format_before_the_newest_one_has_a_folder():
    assert [f"format-{number}" for number in range(1, SHARE_STATE.newest)] == FORMATS
