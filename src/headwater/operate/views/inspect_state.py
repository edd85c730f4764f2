"""The state of a view from outside: its size, and the value of one key after a batch.

Reads results and files, never the copies.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headwater.client.client import Client
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.follow import results
from headwater.operate.views.newest_result import newest_result
from headwater.pipeline.state.files import Place, found_in, names
from headwater.pipeline.state.layouts import PLAIN, layout
from headwater.pipeline.state.shard import size_of
from headwater.result import Chain, File, Result

__all__ = ["Entry", "StateSize", "at_batch", "entry", "results_of", "shown", "sizes"]


class StateSize(msgspec.Struct, frozen=True):
    """The size of the state of one operator.

    With ``forget=`` a key has two entries: its value and its time-out.
    """

    operator: str
    shards: int
    entries: int
    state_bytes: int
    files: int
    file_bytes: int
    largest: int
    """The shard with the most bytes."""
    largest_bytes: int


class Entry(msgspec.Struct, frozen=True):
    """The value of a key after a batch."""

    batch: int
    operator: str
    shard: int
    value: bytes
    changed: int
    """The batch that wrote it. If not ``exactly``, that one or an earlier one: its file was merged with older
    ones."""
    exactly: bool


def results_of(settings: Settings, view: str) -> dict[int, Result]:
    """The results in the log of the run that readers see, by batch. UsageError for a view without results."""
    client = Client(settings.access)
    newest = newest_result(client, view)
    return {result.batch: result for result in results.of_run(client, view, newest.run)}


def at_batch(view: str, by_batch: Mapping[int, Result], batch: int | None) -> Result:
    """The result of a batch, or the last one."""
    wanted = max(by_batch) if batch is None else batch
    if wanted not in by_batch:
        raise UsageError(
            f"view {view!r} has no result of batch {wanted}",
            expected=f"one from {min(by_batch)} to {max(by_batch)}",
        )
    return by_batch[wanted]


def sizes(result: Result) -> list[StateSize]:
    """The size of each operator's state, from the result alone; no file is read."""
    found = []
    for operator, chains in sorted(result.state.items()):
        shards = [size_of(chain) for chain in chains]
        files = [file for chain in chains for file in chain]
        largest = max(range(len(shards)), key=lambda shard: shards[shard].state_bytes)
        found.append(
            StateSize(
                operator=operator,
                shards=len(chains),
                entries=sum(size.entries for size in shards),
                state_bytes=sum(size.state_bytes for size in shards),
                files=len(files),
                file_bytes=sum(file.size_bytes for file in files),
                largest=largest,
                largest_bytes=shards[largest].state_bytes,
            )
        )
    return found


def entry(folder: Path, view: str, result: Result, operator: str, key: bytes) -> Entry:
    """The value of a key after a batch, from the files of its shard.

    ``folder`` has the checkpoints of the view.

    UsageError for an operator, a batch or a key that does not exist.
    """
    if operator not in result.state:
        raise UsageError(
            f"view {view!r} has no operator {operator!r}", expected=" or ".join(sorted(result.state))
        )
    form = layout(result.layouts.get(operator, PLAIN))
    place = Place(str(folder.absolute() / result.run / "shards" / operator), "")
    shards = form.shards(key, len(result.state[operator]))
    if not {file.name for shard in shards for file in result.state[operator][shard]} <= set(names(place)):
        raise UsageError(
            f"the state of view {view!r} after batch {result.batch} is no longer kept",
            hint="only that of the last few batches is; leave out --at for the newest",
        )
    gone = f"batch {result.batch}"
    for shard in shards:
        newest = _newest(place, result.state[operator][shard], form.place(key))
        if newest is None:
            continue
        file, value = newest
        if value is not None:
            return Entry(result.batch, operator, shard, form.value(value), file.version, file.delta)
        gone = f"removed in batch {file.version}" + ("" if file.delta else " or before")
    raise UsageError(f"{operator} of view {view!r} has no key {_text(key)}", got=gone)


def _newest(place: Place, chain: Chain, at: bytes) -> tuple[File, bytes | None] | None:
    """The newest file with an entry, and its value there; None for an entry that it removes."""
    for file in reversed(chain):
        found = found_in(place, file, at)
        if found is not None:
            return file, found[0]
    return None


def shown(value: bytes) -> str:
    """A value as readable text: a row or a tuple as JSON, anything else in hexadecimal."""
    if value[:1] == b"{":
        return value.decode(errors="replace")
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(value)).decode()
    except msgspec.MsgspecError:
        return f"0x{value.hex()}"


def _text(key: bytes) -> str:
    return repr(key.decode(errors="replace"))
