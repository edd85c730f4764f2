"""One script of requests, two logs: what the embedded one answers, Apache Kafka answers too, or docs/log.md has the reason."""

import difflib
import pprint
from pathlib import Path

import pytest

from clients import (
    same_cleaning,
    same_deleted,
    same_groups,
    same_offsets,
    same_shares,
    same_topics,
    same_transactions,
)
from clients.case import CASES, Case
from clients.onelog import Log
from headwater import testing
from headwater.log.storage.disk import RealDisk
from support.servers import KafkaProcess

assert all(
    (same_cleaning, same_deleted, same_groups, same_offsets, same_shares, same_topics, same_transactions)
)

PAGE = Path(__file__).parents[2] / "docs" / "log.md"
HEADING = "## Where it differs"

DIFFERENCES = {
    "a_fetch_session_by_id_of_a_topic_that_is_deleted": "a fetch session by topic ids, after the topic is deleted",
    "a_renewal_that_names_a_partition_without_acknowledgements": "a renewal of locks that names a partition of its session without acknowledgements",
    "batches_that_are_larger_than_a_segment": "a batch larger than `segment.bytes`",
    "offsets_kept_for_as_long_as_a_commit_says": "`retention_time_ms` of OffsetCommit 2 to 4",
    "segments_smaller_than_a_megabyte": "`segment.bytes` below 1 MiB",
    "the_greatest_time_after_all_records_were_deleted": "the offset of the greatest timestamp, after DeleteRecords of everything",
}
"""The cases in which the two logs do not agree, and the row of docs/log.md that has the reason."""

IN_A_HURRY = """
log.retention.check.interval.ms=200
log.initial.task.delay.ms=100
log.cleaner.backoff.ms=100
offsets.retention.check.interval.ms=200
transaction.abort.timed.out.transaction.cleanup.interval.ms=200
num.partitions=1
"""


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedded") / "data"
    with testing.broker(disk=RealDisk(), folder=folder, retention_interval_s=0.2) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def apache(tmp_path_factory):
    process = KafkaProcess(tmp_path_factory.mktemp("apache") / "data", settings=IN_A_HURRY)
    process.start()
    yield process.bootstrap
    process.end()


def outcome(bootstrap: str, name: str, script: Case, kind: type[Log] = Log) -> object:
    log = kind(bootstrap, name)
    try:
        return script(log)
    finally:
        log.close()


def objection(name: str, ours: object, theirs: object) -> str:
    """What is wrong with two outcomes; empty if they are equal, or differ as docs/log.md says."""
    if name in DIFFERENCES:
        return f"{name} is the same on both now: remove it from the differences" if ours == theirs else ""
    if ours == theirs:
        return ""
    texts = [pprint.pformat(each, width=100).splitlines() for each in (theirs, ours)]
    return "\n".join([name, *difflib.unified_diff(*texts, "Apache Kafka", "embedded", n=2, lineterm="")])


@pytest.mark.parametrize("name", CASES)
def test_a_script_has_the_same_outcome_on_both_logs(embedded, apache, name):
    ours, theirs = (outcome(log, name, CASES[name]) for log in (embedded, apache))
    assert not (found := objection(name, ours, theirs)), found


def test_a_difference_between_the_logs_is_reported(embedded):
    class Planted(Log):
        """A log with one fault: it says that it has deleted one record more than it has."""

        def delete_records(self, topic: str, offset: int, partition: int = 0) -> tuple[str, int]:
            error, low_watermark = super().delete_records(topic, offset, partition)
            return error, low_watermark + 1

    name = "deleted_records"
    honest = outcome(embedded, "honest", CASES[name])
    planted = outcome(embedded, "planted", CASES[name], Planted)

    assert objection(name, honest, honest) == ""
    assert objection(name, honest, planted).startswith(name)
    for known in DIFFERENCES:
        assert "is the same on both now" in objection(known, 1, 1)
        assert objection(known, 1, 2) == ""


def test_every_difference_is_written_down_with_its_reason():
    assert set(DIFFERENCES) <= set(CASES)
    section = PAGE.read_text().split(HEADING)[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
    reasons = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows}

    missing = [row for row in DIFFERENCES.values() if len(reasons.get(row, "")) < 20]
    assert not missing, f"docs/log.md, {HEADING}: {missing}"
