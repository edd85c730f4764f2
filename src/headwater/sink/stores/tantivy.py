"""Tantivy: an index folder for full-text search by processes of this machine, without a server.

Rows, offsets and claims are documents of one index, so a batch is one commit of it: Tantivy commits by
renaming one file. One process writes at a time, for the duration of a batch; the lock file holds the
number of that process.

    PATH/TOPIC/current      the name of the folder that holds the index: replaced when the index is rebuilt
    PATH/TOPIC/lock         locked by the kernel while a process writes
    PATH/TOPIC/N/           the index: rows with _key, and a document for each partition with
                            _partition, _claim, _offset
"""

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from headwater.address import check_local
from headwater.durable import replace_file
from headwater.errors import UnavailableError, UsageError, one_line
from headwater.formats import TANTIVY_SINK
from headwater.sink.batch_rows import NewestChange, newest_changes, outdated_keys
from headwater.sink.claims import Claims, PartitionState
from headwater.sink.store import Batch, SinkFeed, Store
from headwater.sink.stores.local_folder import LocalFolder, locked, translated
from headwater.sink.stores.optional_library import import_library
from headwater.sink.stores.spark_types import check_columns, parse_type
from headwater.sink.stores.tantivy_document import Documents, build_schema, term
from headwater.sink.stores.tantivy_index import (
    CURRENT,
    IndexInfo,
    open_index,
    partition_states,
    search,
    stored_rows,
)

__all__ = ["Tantivy", "search"]

LOCK_S = 10.0
"""How long a batch waits for another process that writes."""
HEAP_BYTES = 50_000_000


class Tantivy(LocalFolder):
    """A folder with an index: ``hw.sink.Tantivy("./search", text=["title"])``.

    Columns in ``text`` are cut into words; others are indexed whole.
    """

    kind = "tantivy"
    batch_records = 50_000
    """Each commit writes a file that is merged with others later: few large commits are cheaper."""

    def __init__(self, path: str | Path, *, text: Sequence[str] = (), tokenizer: str = "default") -> None:
        super().__init__(path)
        self._text = tuple(text)
        self._tokenizer = tokenizer

    def check(self, feed: SinkFeed) -> None:
        check_local(f"sink {feed.sink}", self._path)
        check_columns(feed, self._text, "to cut into words")
        for name in self._text:
            if parse_type(feed.columns[name]).name not in {"STRING", "ARRAY"}:
                raise UsageError(
                    f"sink {feed.sink}: column {name!r} is not text",
                    got=feed.columns[name],
                    expected="STRING",
                )

    def open(self, feed: SinkFeed) -> Store:
        self.check(feed)
        return _TantivyStore(self._path / feed.topic, feed, self._text, self._tokenizer)


class _TantivyStore:
    """The index of one topic. Each call takes the folder's lock and releases it."""

    def __init__(self, folder: Path, feed: SinkFeed, text: tuple[str, ...], tokenizer: str) -> None:
        self._library = import_library("tantivy", "search")
        self._folder = folder
        self._what = f"the index in {folder}"
        self._feed = feed
        self._claims = Claims(feed.sink)
        self._documents = Documents(self._library, feed)
        self._wanted = IndexInfo(
            1, feed.sink, feed.columns, text, tokenizer, feed.append, TANTIVY_SINK.newest
        )
        with self._locked():
            self._prepare()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        with self._locked():
            _, index = open_index(self._library, self._folder)
            stored = partition_states(self._library, index)
            states = {number: stored.get(number, PartitionState()).claimed() for number in sorted(partitions)}
            with self._writing(index) as writer:
                self._put_states(writer, states)
        return self._claims.take(states)

    def apply(self, batch: Batch) -> None:
        changes = self._claims.new_changes(batch)
        rows = (
            [NewestChange(change, was_deleted=False) for change in changes]
            if self._feed.append
            else list(newest_changes(changes).values())
        )
        offsets = self._claims.new_offsets(batch)
        with self._locked():
            _, index = open_index(self._library, self._folder)
            stored = partition_states(self._library, index)
            for number in batch.upto:
                self._claims.check(number, stored.get(number, PartitionState()))
            if not rows and not offsets:
                return
            outdated = outdated_keys(rows, self._versions(index, rows))
            with self._writing(index) as writer:
                for row in rows:  # tantivy's thread indexes them while the next ones are built
                    document = self._documents.row(row.change)
                    if row.change.key in outdated:
                        continue
                    if not self._feed.append:
                        writer.delete_documents_by_term("_key", term(row.change.key))
                    if document is not None:
                        writer.add_document(document)
                states = {n: PartitionState(stored[n].claim, offset) for n, offset in offsets.items()}
                self._put_states(writer, states)
        self._claims.advance(offsets)

    def reset(self) -> None:
        with self._locked():
            info, index = open_index(self._library, self._folder)
            stored = partition_states(self._library, index)
            states = {number: state.reset() for number, state in stored.items()}
            self._create(msgspec.structs.replace(info, number=info.number + 1), states)
        self._claims.clear()

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _prepare(self) -> None:
        """Creates the index, or rebuilds it with its rows when the columns have changed."""
        if not (self._folder / CURRENT).exists():
            self._create(self._wanted, {})
            return
        info, index = open_index(self._library, self._folder)
        if info.sink != self._feed.sink:
            raise UsageError(
                f"sink {self._feed.sink}: {self._folder} belongs to sink {info.sink}",
                hint="give the sink another path",
            )
        wanted = msgspec.structs.replace(self._wanted, number=info.number)
        if wanted != info:
            next_info = msgspec.structs.replace(wanted, number=info.number + 1)
            self._create(next_info, partition_states(self._library, index), index)

    def _create(self, info: IndexInfo, states: Mapping[int, PartitionState], old: Any = None) -> None:
        """Builds an index in a folder of its own, with the rows of ``old``, and makes it the current one."""
        folder = self._folder / str(info.number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        schema = build_schema(self._library, info.columns, info.text, info.tokenizer)
        index = self._library.Index(schema, path=str(folder))
        with self._writing(index) as writer:
            for document in stored_rows(self._library, old) if old is not None else ():
                writer.add_document(self._documents.stored_row(document))
            self._put_states(writer, states)
        replace_file(self._folder / CURRENT, msgspec.json.encode(info))
        for other in self._folder.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def _put_states(self, writer: Any, states: Mapping[int, PartitionState]) -> None:
        for number, state in states.items():
            writer.delete_documents_by_term("_partition", number)
            writer.add_document(self._documents.partition(number, state))

    def _versions(self, index: Any, rows: Sequence[NewestChange]) -> dict[str, int]:
        """The stored versions of the rows that come with a version, by key."""
        keys = {term(row.change.key): row.change.key for row in rows if row.change.version is not None}
        if not keys:
            return {}
        searcher = index.searcher()
        query = self._library.Query.term_set_query(index.schema, "_key", list(keys))
        documents = [searcher.doc(address) for _, address in searcher.search(query, len(keys)).hits]
        versions = {document.get_first("_key"): document.get_first("_version") for document in documents}
        return {keys[key]: version for key, version in versions.items() if version is not None}

    @contextmanager
    def _writing(self, index: Any) -> Iterator[Any]:
        """A writer whose work is committed at the end, or discarded."""
        writer = None
        try:
            writer = index.writer(HEAP_BYTES, 1)
            yield writer
            writer.commit()
            writer.wait_merging_threads()
        except BaseException as error:
            if writer is not None:
                with suppress(ValueError):
                    # Ends the writer: a kept error would otherwise keep tantivy's own lock.
                    writer.wait_merging_threads()
            if not isinstance(error, ValueError | OSError):
                raise
            raise UnavailableError(f"{self._what} cannot be written", got=self._cause(error)) from error
        finally:
            writer = None  # a traceback would keep it, and tantivy's own lock with it

    def _cause(self, error: Exception) -> str:
        """tantivy does not say why its threads died; a full disk, the usual cause, can be seen."""
        free = shutil.disk_usage(self._folder).free
        room = f"No space left on the disk ({free} bytes): " if free < HEAP_BYTES else ""
        return room + one_line(error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """While this process alone writes to the folder."""
        with translated(self._what):
            self._folder.mkdir(parents=True, exist_ok=True)
            with locked(self._folder / "lock", self._what, LOCK_S):
                yield
