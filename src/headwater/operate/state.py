"""State: what a view keeps, from outside: how much, and the value of one key at one batch. Reads results and files, never the copies."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headwater import result
from headwater.client import Client
from headwater.config import Settings
from headwater.errors import UsageError
from headwater.pipeline.layout import PLAIN, layout
from headwater.pipeline.state import size_of
from headwater.pipeline.statefile import Place, found_in, names
from headwater.result import Chain, File, Result

__all__ = ["Entry", "Stored", "at_batch", "entry", "results", "shown", "sizes"]


class Stored(msgspec.Struct, frozen=True):
    """The state of one operator. With ``forget=`` a key has two entries: its value and its time-out."""

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
    """The batch that wrote it; if not ``exactly``, that or an earlier one: its file was merged with older ones."""
    exactly: bool


def results(settings: Settings, view: str) -> dict[int, Result]:
    """What the log holds of the results of the run that readers see, by batch. UsageError for a view without any."""
    client = Client(settings.access)
    if result.topic(view) not in client.partitions():
        raise UsageError(
            f"there is no view {view!r} with results", hint="headwater topic list shows what there is"
        )
    seen = result.newest(client, view)
    if seen is None:
        raise UsageError(f"view {view!r} has no results yet")
    return {each.batch: each for each in result.of_run(client, view, seen.run)}


def at_batch(view: str, known: Mapping[int, Result], batch: int | None) -> Result:
    """The result of a batch, or the last one."""
    wanted = max(known) if batch is None else batch
    if wanted not in known:
        raise UsageError(
            f"view {view!r} has no result of batch {wanted}",
            expected=f"one from {min(known)} to {max(known)}",
        )
    return known[wanted]


def sizes(one: Result) -> list[Stored]:
    """How much each operator keeps, by what its result says: nothing is read."""
    found = []
    for operator, chains in sorted(one.state.items()):
        each = [size_of(chain) for chain in chains]
        files = [file for chain in chains for file in chain]
        largest = max(range(len(each)), key=lambda shard: each[shard].state_bytes)
        found.append(
            Stored(
                operator=operator,
                shards=len(chains),
                entries=sum(size.entries for size in each),
                state_bytes=sum(size.state_bytes for size in each),
                files=len(files),
                file_bytes=sum(file.size_bytes for file in files),
                largest=largest,
                largest_bytes=each[largest].state_bytes,
            )
        )
    return found


def entry(folder: Path, view: str, one: Result, operator: str, key: bytes) -> Entry:
    """The value of a key after a batch, read from the files of its shard; ``folder`` has the checkpoints of the view.

    Raises UsageError for an operator, a batch or a key that is not there.
    """
    if operator not in one.state:
        raise UsageError(
            f"view {view!r} has no operator {operator!r}", expected=" or ".join(sorted(one.state))
        )
    form = layout(one.layouts.get(operator, PLAIN))
    place = Place(str(folder.absolute() / one.run / "shards" / operator), "")
    shards = form.shards(key, len(one.state[operator]))
    if not {file.name for shard in shards for file in one.state[operator][shard]} <= set(names(place)):
        raise UsageError(
            f"the state of view {view!r} after batch {one.batch} is no longer kept",
            hint="the last few batches are; leave out --at for the newest",
        )
    gone = f"batch {one.batch}"
    for shard in shards:
        said = _newest(place, one.state[operator][shard], form.place(key))
        if said is None:
            continue
        file, value = said
        if value is not None:
            return Entry(one.batch, operator, shard, form.value(value), file.version, file.delta)
        gone = f"removed in batch {file.version}" + ("" if file.delta else " or before")
    raise UsageError(f"{operator} of view {view!r} has no key {_text(key)}", got=gone)


def _newest(place: Place, chain: Chain, at: bytes) -> tuple[File, bytes | None] | None:
    """The newest file that speaks of an entry, and what it says: a value, or None for one that it removes."""
    for file in reversed(chain):
        found = found_in(place, file, at)
        if found is not None:
            return file, found[0]
    return None


def shown(value: bytes) -> str:
    """A value for people: a row or a tuple as JSON, anything else in hexadecimal."""
    if value[:1] == b"{":
        return value.decode(errors="replace")
    try:
        return msgspec.json.encode(msgspec.msgpack.decode(value)).decode()
    except msgspec.MsgspecError:
        return f"0x{value.hex()}"


def _text(key: bytes) -> str:
    return repr(key.decode(errors="replace"))
