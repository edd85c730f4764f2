"""What a view has published and kept, in the log and on the disk, for the checker in promises.py."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headwater.client.client import Client
from headwater.pipeline.state.files import Place
from headwater.pipeline.state.shard import Shard, size_of
from headwater.result import Chain, Result
from pipeline.promises import Published
from support.ordershop import Shop

__all__ = ["Look", "published", "run_folder"]

Table = dict[str, dict[str, Any]]
Look = Callable[[dict[bytes, bytes]], dict[str, Any]]
"""What is compared of an operator's state."""


def run_folder(shop: Shop, view: str, run: str) -> Path:
    """Where a run of a view has its checkpoint and its state files."""
    folder = shop.settings.data.absolute() / "checkpoints" / view
    return folder / run if (folder / run).exists() else folder


def published(shop: Shop, view: str, answer: Table, looks: Mapping[str, Look], inner: Table) -> Published:
    """Everything that a view has published and kept, with what it should be.

    ``answer`` has the expected rows, ``inner`` the expected state of its operators, which ``looks`` read.
    """
    client = Client(shop.bootstrap)
    records = [
        (m.partition(), m.offset(), m.key().decode(), msgspec.json.decode(m.value() or b"null"))
        for m in client.read([view])
    ]
    results = [msgspec.json.decode(message.value()) for message in client.read([f"{view}.progress"])]
    last = msgspec.convert(results[-1], Result, strict=False)
    folder = run_folder(shop, view, last.run)
    published_rows = _items(folder, "publish", last.state["publish"])
    assert len(published_rows) == sum(size_of(chain).entries for chain in last.state["publish"]), (
        "a key is in two shards"
    )
    return Published(
        records,
        results,
        {key.decode(): msgspec.json.decode(value) for key, value in published_rows.items()},
        answer,
        {name: look(_items(folder, name, last.state[name])) for name, look in looks.items()},
        inner,
    )


def _items(folder: Path, operator: str, chains: list[Chain]) -> dict[bytes, bytes]:
    """Read from the files alone, which are checked on the way: a copy of its own is made."""
    place = Place(str(folder / "shards" / operator), str(folder / "check" / operator))
    return {
        key: value
        for number, chain in enumerate(chains)
        for key, value in Shard(place, number, chain).items()
    }
