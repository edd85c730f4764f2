"""What compaction leaves of a batch is read by the clients that people have."""

import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headwater import testing
from headwater.operate.log.batches import Batches
from headwater.record import BatchHeader
from support.servers import create_topic, wait_until

READ = """
import sys
from headwater.client.client import Client

client = Client(sys.argv[1])
print(*(record.value().decode() for record in client.read(["kept"])))
client.close()
"""


@pytest.fixture
def log():
    with testing.broker(retention_interval_s=0.05) as running:
        yield running


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_compaction_has_emptied_is_passed_over_by_clients(log, codec):
    """The last batch of a producer stays for its sequence number, also when all its records are gone."""
    settings = {"bootstrap.servers": log.bootstrap, "enable.idempotence": True, "compression.type": codec}
    cleaned = {"cleanup_policy": "compact", "segment_bytes": "14", "min_cleanable_dirty_ratio": "0"}
    create_topic(AdminClient({"bootstrap.servers": log.bootstrap}), "kept", **cleaned)
    for number in range(
        3
    ):  # a producer of its own each time: the first one has nothing left; the last segment is never compacted
        one = Producer(settings)
        one.produce("kept", f"value {number} " + "x" * 200, key="the same")
        assert one.flush(20) == 0
    wait_until(lambda: _empty_batches(log.bootstrap) == 1, what="a compaction")
    # In a process of its own: librdkafka ends the one that it is in when it meets such a batch compressed.
    done = subprocess.run(
        [sys.executable, "-c", READ, log.bootstrap], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1::3] == ["1", "2"]


def _empty_batches(bootstrap):
    batches = Batches(bootstrap)
    try:
        found = [
            BatchHeader.read(batch) for batch in batches.read(batches.leaders("kept")[0], "kept", 0, 0, 3)
        ]
    finally:
        batches.close()
    return sum(header.record_count == 0 for header in found)
