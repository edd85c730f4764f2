"""Makes a data folder with the state of share groups by the code that is checked out, as a fixture for later code: ``make_shares.py NAME``.

Writes ``tests/formats/shares/NAME.tar.gz`` with a folder as a kill -9 leaves it, and ``NAME.json`` with what a start must find: what members
held is available, and what was settled, delayed, scheduled or configured is as it was.
"""

import asyncio
import json
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent / "shares"
sys.path.insert(0, str(HERE.parent.parent))

from headwater.log.broker import Broker  # noqa: E402
from headwater.log.shares.share_store import SHARES_TOPIC  # noqa: E402
from headwater.record import Record  # noqa: E402
from headwater.testing import SettableClock  # noqa: E402
from support.protocol import Client  # noqa: E402
from support.sharemember import ACCEPT, REJECT, RELEASE, ShareMember, configure  # noqa: E402

PLAIN, OPENED = "plain", "by key"
KEPT = {"auto_offset_reset": "earliest", "delivery_count_limit": "7"}


async def write(folder: Path, clock: SettableClock) -> Broker:
    """Two groups over one topic, one of them with more updates than a snapshot follows after."""
    broker = Broker(folder, clock=clock)
    client = Client(broker)
    broker.catalog.create("t", 1)
    await configure(client, PLAIN, **KEPT)
    await configure(client, OPENED, **KEPT, **{"headwater.order.by": "key"})
    due = ("headwater-due", str(clock.now_ms() + 3_600_000).encode())
    records = [
        Record(b"k%d" % (n % 7), b"v%d" % n, (due,) if n % 10 == 3 else (), clock.now_ms())
        for n in range(120)
    ]
    await client.produce("t", 0, records)
    plain, opened = ShareMember(client, "ada", PLAIN), ShareMember(client, "bo", OPENED)
    await plain.fetch()
    for offset in range(0, 100, 2):
        kind = (ACCEPT, REJECT, RELEASE)[offset % 3]
        delay = (60_000, False) if kind == RELEASE and offset % 4 else ()
        assert await plain.acknowledge((offset, offset, kind, *delay)) == 0
    await opened.fetch(max_records=4)
    assert await opened.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE, 60_000, False)) == 0
    return broker


def state(broker: Broker) -> dict:
    """What a start finds: of each group its start, its runs, and its settings."""
    topic = broker.catalog.topics["t"]
    return {
        group: {
            "start": share.state.start,
            "runs": [[run.first, run.last, run.state.name, run.deliveries] for run in share.state.runs],
            "settings": broker.shares.settings(group),
        }
        for group in (PLAIN, OPENED)
        for share in (broker.shares.opened(group)[topic.id, 0],)
    }


async def make(name: str, work: Path) -> None:
    clock = SettableClock()
    broker = await write(work / "killed", clock)
    with tarfile.open(HERE / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(work / "killed", "killed")
    assert broker.catalog.topics[SHARES_TOPIC].partitions[0].end_offset > 0
    await broker.close()
    with tarfile.open(HERE / f"{name}.tar.gz") as archive:
        archive.extractall(work / "again", filter="data")
    again = Broker(work / "again" / "killed", clock=clock)
    (HERE / f"{name}.json").write_text(json.dumps(state(again), indent=1) + "\n")
    await again.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(make(sys.argv[1], Path(folder)))
