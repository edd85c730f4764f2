"""Result: what one batch of a view has made, as ``<view>.progress`` holds it.

It stands in the log in one transaction with the batch's records, so whoever reads it finds all that it speaks of.
"""

import msgspec

from headwater.client import Client

__all__ = ["Chain", "Chains", "File", "Result", "files_of", "results", "topic"]


class File(msgspec.Struct, frozen=True, array_like=True):
    """One state file of a chain: after it the shard is at ``version``. A whole one needs none before it."""

    name: str
    version: int
    whole: bool
    rows: int
    size_bytes: int
    checksum: int


Chain = tuple[File, ...]
Chains = dict[str, list[Chain]]
"""By operator, the chain of each of its shards."""


def files_of(chains: Chains) -> set[tuple[str, str]]:
    """Operator and name of every state file that the chains need."""
    return {(operator, file.name) for operator, each in chains.items() for chain in each for file in chain}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of one run, complete."""

    run: str
    batch: int
    inputs: dict[str, dict[int, int]]
    """Up to where the batch has read, by topic and partition."""
    outputs: dict[int, int] = {}
    """Up to where a reader of the view has to read to have seen it, by partition."""
    partitions: int
    """How many the view's topic has: keys stay in theirs."""
    changed: int = 0
    """Records that it published."""
    state: Chains = {}
    at_ms: int = 0


def topic(view: str) -> str:
    """The topic of a view's results."""
    return f"{view}.progress"


def results(client: Client, view: str) -> list[Result]:
    """What the log holds of a view's results, the newest last."""
    return [msgspec.json.decode(record.value(), type=Result) for record in client.read([topic(view)])]
