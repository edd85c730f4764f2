"""A Tantivy index as it is stored: the file that says which index is current, and searches in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headwater.errors import StorageError, UsageError, one_line
from headwater.formats import TANTIVY_SINK
from headwater.sink.claims import PartitionState
from headwater.sink.stores.optional_library import import_library

__all__ = ["CURRENT", "IndexInfo", "open_index", "partition_states", "search", "stored_rows"]

CURRENT = "current"
"""The file that describes the index in use."""
TRIES = 5
PARTITIONS_MAX = 100_000


class IndexInfo(msgspec.Struct, frozen=True):
    """The content of ``current``."""

    number: int
    """The name of the folder that holds the index."""
    sink: str
    columns: Mapping[str, str]
    text: tuple[str, ...]
    tokenizer: str
    append: bool
    format: int = 1


def open_index(library: Any, folder: Path) -> tuple[IndexInfo, Any]:
    """The index in use. One that is replaced while it is being opened is looked up again."""
    for _ in range(TRIES):
        info = TANTIVY_SINK.decode((folder / CURRENT).read_bytes(), IndexInfo, f"index {folder}")
        try:
            return info, library.Index.open(str(folder / str(info.number)))
        except (ValueError, OSError) as error:
            failure = error
    raise StorageError(f"the index in {folder} cannot be opened", got=one_line(failure))


def search(path: str | Path, query: str, limit: int = 10) -> list[dict[str, Any]]:
    """The rows of the index in ``PATH/TOPIC`` that match a query, best first:

    ``title:shoe AND total:[10 TO 20]``.

    Words without a column are searched in the text columns. All rows are from one commit, so half a batch
    is never seen.
    """
    library = import_library("tantivy", "search")
    folder = Path(path)
    if not (folder / CURRENT).exists():
        raise UsageError(f"{folder} holds no index", expected="the sink's path and the name of its topic")
    info, index = open_index(library, folder)
    try:
        parsed = index.parse_query(query, list(info.text) or ["_key"])
    except ValueError as error:
        raise UsageError(f"the query {query!r} cannot be read", got=str(error)) from error
    searcher = index.searcher()
    hits = searcher.search(_only_rows(library, parsed), limit).hits
    return [msgspec.json.decode(bytes(searcher.doc(address).get_first("_row"))) for _, address in hits]


def stored_rows(library: Any, index: Any) -> Iterator[Any]:
    """The documents of all rows."""
    searcher = index.searcher()
    query = _only_rows(library, library.Query.all_query())
    for _, address in searcher.search(query, max(searcher.num_docs, 1)).hits:
        yield searcher.doc(address)


def partition_states(library: Any, index: Any) -> dict[int, PartitionState]:
    """The state of each partition."""
    searcher = index.searcher()
    hits = searcher.search(library.Query.exists_query("_partition"), PARTITIONS_MAX).hits
    documents = [searcher.doc(address) for _, address in hits]
    return {
        document.get_first("_partition"): PartitionState(
            document.get_first("_claim"), document.get_first("_offset")
        )
        for document in documents
    }


def _only_rows(library: Any, query: Any) -> Any:
    """A query for rows only, without the documents of partitions."""
    partitions = library.Query.exists_query("_partition")
    occur = library.Occur
    return library.Query.boolean_query([(occur.Must, query), (occur.MustNot, partitions)])
