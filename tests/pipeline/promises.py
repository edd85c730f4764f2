"""What must be true of a view's topic, its results and its state after any history of crashes.

Checked itself in test_promises.py."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Published", "complaints"]


@dataclass(frozen=True)
class Published:
    """Everything that a view has left: records as (partition, offset, key, row), results in order, state by key."""

    records: list[tuple[int, int, str, dict[str, Any] | None]]
    results: list[dict[str, Any]]
    state: dict[str, dict[str, Any]]
    expected: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The batch answer."""
    inner: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The state of the view's operators, by operator and key."""
    inner_expected: dict[str, dict[str, Any]] = field(default_factory=dict)


def complaints(published: Published) -> list[str]:
    """Each broken promise in a sentence; none is the aim."""
    return [
        *_revisions(published),
        *_results(published),
        *_counts(published),
        *_tables(published),
        *_operators(published),
    ]


def _revisions(published: Published) -> list[str]:
    """A lost record leaves a gap in the revisions of its key, a doubled one repeats one."""
    last: dict[str, int] = {}
    broken = []
    for partition, offset, key, row in published.records:
        revision = row["_revision"] if row is not None else 0
        if row is not None and revision != last.get(key, 0) + 1:
            broken.append(f"{key} at {partition}@{offset}: revision {revision} after {last.get(key, 0)}")
        last[key] = revision
    return broken


def _results(published: Published) -> list[str]:
    broken = []
    for batch, result in enumerate(published.results):
        if result["batch"] != batch:
            broken.append(f"result {batch} is of batch {result['batch']}")
        if result["run"] != published.results[0]["run"]:
            broken.append(f"batch {batch} is of run {result['run']}")
    for before, after in zip(published.results, published.results[1:], strict=False):
        if _shards(before) != _shards(after):
            broken.append(f"batch {after['batch']} has shards {_shards(after)} after {_shards(before)}")
        for topic, partitions in before["inputs"].items():
            for partition, offset in partitions.items():
                if after["inputs"][topic][partition] < offset:
                    broken.append(
                        f"batch {after['batch']} reads {topic}-{partition} from before its predecessor's end"
                    )
    return broken


def _shards(result: dict[str, Any]) -> dict[str, int]:
    return {operator: len(chains) for operator, chains in result.get("state", {}).items()}


def _counts(published: Published) -> list[str]:
    """Each result says how many records it published, and up to where: together they are all records, and no more."""
    broken = []
    before = {str(partition): 0 for partition, *_ in published.records}
    for result in published.results:
        outputs, changed = (
            result.get("outputs", {}),
            result.get("changed", 0),
        )  # what is nothing is not written
        inside = [
            1
            for partition, offset, *_ in published.records
            if before.get(str(partition), 0) <= offset < outputs.get(str(partition), 0)
        ]
        if len(inside) != changed:
            broken.append(f"batch {result['batch']} published {changed} records, {len(inside)} are there")
        before = outputs
    outside = [1 for partition, offset, *_ in published.records if offset >= before.get(str(partition), 0)]
    return [*broken, f"{len(outside)} records belong to no result"] if outside else broken


def _tables(published: Published) -> list[str]:
    table: dict[str, dict[str, Any]] = {}
    for _, _, key, row in published.records:
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row
    broken = [f"state and output differ in {key}" for key in _different(published.state, table)]
    shown = {key: {n: v for n, v in row.items() if not n.startswith("_")} for key, row in table.items()}
    return [*broken, *(f"the batch answer differs in {key}" for key in _different(published.expected, shown))]


def _operators(published: Published) -> list[str]:
    return [
        f"the state of {operator} differs in {key}"
        for operator in sorted(published.inner.keys() | published.inner_expected.keys())
        for key in _different(published.inner.get(operator, {}), published.inner_expected.get(operator, {}))
    ]


def _different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
