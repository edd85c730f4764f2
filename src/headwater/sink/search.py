"""Tantivy: an index folder for full-text search, written and read by this machine's processes, without a server.

Rows, offsets and claims are documents of one index, so a batch is one commit of it: tantivy makes a commit by renaming
one file. Of several processes one writes at a time, for as long as a batch takes; who holds the folder's lock is in it.

    PATH/TOPIC/current      the name of the folder that holds the index: replaced when the index is made anew
    PATH/TOPIC/lock         locked by the kernel while somebody writes
    PATH/TOPIC/N/           the index: rows with _key, and a document for each partition with _partition, _claim, _offset
"""

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import msgspec

from headwater.address import check_local
from headwater.change import Change
from headwater.clock import SystemClock
from headwater.errors import Away, StorageError, UsageError, one_line
from headwater.formats import TANTIVY_SINK
from headwater.sink.columns import Kind, kind, reader
from headwater.sink.driver import driver
from headwater.sink.folder import sync
from headwater.sink.rows import Newest, beaten, check_offset, fresh, identity, moved, newest
from headwater.sink.store import Batch, Feed, Poison, Store, Superseded

__all__ = ["Tantivy", "search"]

LOCK_S = 10.0
"""How long a batch waits for another process that writes."""
RETRY_S = 0.02
HEAP_BYTES = 50_000_000
PARTITIONS_MAX = 100_000
TRIES = 5
TERM_BYTES_MAX = 65_000
"""tantivy leaves longer terms out of the index, without a word."""
EARLIEST, LATEST = datetime(1677, 9, 22, tzinfo=UTC), datetime(2262, 4, 11, tzinfo=UTC)
"""What fits into nanoseconds since 1970; times beyond are indexed as these, and stay what they are in the row."""
Adder = Callable[[Any, str, Any], None]
WHOLE = {"TINYINT", "SMALLINT", "INT", "BIGINT"}
REAL = {"FLOAT", "DOUBLE", "DECIMAL"}


class Tantivy:
    """``hw.sink.Tantivy("./search", text=["title"])``: columns in ``text`` are cut into words, the others are met as they are."""

    kind = "tantivy"
    batch_records = 50_000
    """A commit makes a file of its own that is merged with others later: a few large ones are cheaper."""

    def __init__(self, path: str | Path, *, text: Sequence[str] = (), tokenizer: str = "default") -> None:
        self._path = Path(path)
        self._text = tuple(text)
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        return f"Tantivy({str(self._path)!r})"

    def place(self, topic: str) -> str:
        return str((self._path / topic).resolve())

    def check(self, feed: Feed) -> None:
        check_local(f"sink {feed.sink}", self._path)
        for name, notation in feed.columns.items():
            kind(notation)
            if name in self._text and kind(notation).name not in {"STRING", "ARRAY"}:
                raise UsageError(
                    f"sink {feed.sink}: column {name!r} is no text", got=notation, expected="STRING"
                )
        if missing := [name for name in self._text if name not in feed.columns]:
            raise UsageError(
                f"sink {feed.sink}: no such column",
                got=", ".join(missing),
                expected="of " + ", ".join(feed.columns),
            )

    def open(self, feed: Feed) -> Store:
        self.check(feed)
        return _Store(self._path / feed.topic, feed, self._text, self._tokenizer)


def search(path: str | Path, query: str, limit: int = 10) -> list[dict[str, Any]]:
    """The rows of the index in ``PATH/TOPIC`` that a query meets, best first: ``title:shoe AND total:[10 TO 20]``.

    Words without a column are looked for in the columns that are text. The rows are of one commit: no batch is seen half.
    """
    library = driver("tantivy", "search")
    folder = Path(path)
    if not (folder / "current").exists():
        raise UsageError(f"{folder} holds no index", expected="the sink's path and the name of its topic")
    about, index = _open(library, folder)
    try:
        asked = index.parse_query(query, list(about.text) or ["_key"])
    except ValueError as error:
        raise UsageError(f"the query {query!r} cannot be read", got=str(error)) from error
    searcher = index.searcher()
    hits = searcher.search(_rows_of(library, asked), limit).hits
    return [msgspec.json.decode(bytes(searcher.doc(address).get_first("_row"))) for _, address in hits]


class About(msgspec.Struct, frozen=True):
    """What ``current`` says."""

    number: int
    sink: str
    columns: Mapping[str, str]
    text: tuple[str, ...]
    tokenizer: str
    append: bool
    format: int = 1


class _Store:
    """The index of one topic. Each call takes the folder's lock and gives it back."""

    def __init__(self, folder: Path, feed: Feed, text: Sequence[str], tokenizer: str) -> None:
        self._library = driver("tantivy", "search")
        self._folder = folder
        self._feed = feed
        self._claims: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._clock = SystemClock()
        self._pause = threading.Event()
        self._read = reader(feed.columns)
        self._adders = [(name, _adder(self._library, kind(text))) for name, text in feed.columns.items()]
        words = tuple(text)
        self._wanted = About(1, feed.sink, feed.columns, words, tokenizer, feed.append, TANTIVY_SINK.newest)
        with self._locked():
            self._prepare()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        numbers = sorted(partitions)
        with self._locked():
            _, index = _open(self._library, self._folder)
            held = self._states(index)
            self._claims |= {number: held.get(number, (0, -1))[0] + 1 for number in numbers}
            self._offsets = {n: o for n, o in self._offsets.items() if n not in partitions}
            self._offsets |= {
                number: held[number][1] for number in numbers if held.get(number, (0, -1))[1] >= 0
            }
            with self._writing(index) as writer:
                for number in numbers:
                    self._place(writer, number, self._offsets.get(number, -1))
        return {number: self._offsets[number] for number in numbers if number in self._offsets}

    def apply(self, batch: Batch) -> None:
        changes = fresh(batch, self._offsets)
        rows = (
            [Newest(each, anew=False) for each in changes]
            if self._feed.append
            else list(newest(changes).values())
        )
        upto = moved(batch, self._offsets)
        with self._locked():
            _, index = _open(self._library, self._folder)
            held = self._states(index)
            for number in batch.upto:
                if held.get(number, (0, -1))[0] != self._claims.get(number, -1):
                    raise Superseded(
                        f"sink {self._feed.sink}: partition {number} was taken over by another process"
                    )
                check_offset(self._feed.sink, number, held[number][1], self._offsets.get(number))
            if not rows and not upto:
                return
            old = beaten(rows, self._versions(index, rows))
            with self._writing(index) as writer:
                for row in rows:  # tantivy's thread takes them in while the next ones are made
                    document = self._document(row.change)
                    if row.change.key in old:
                        continue
                    if not self._feed.append:
                        writer.delete_documents_by_term("_key", _term(row.change.key))
                    if document is not None:
                        writer.add_document(document)
                for number, offset in upto.items():
                    self._place(writer, number, offset)
        self._offsets |= upto

    def reset(self) -> None:
        with self._locked():
            about, index = _open(self._library, self._folder)
            claims = {number: (claim + 1, -1) for number, (claim, _) in self._states(index).items()}
            self._make(msgspec.structs.replace(about, number=about.number + 1), claims)
        self._claims.clear()
        self._offsets.clear()

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _prepare(self) -> None:
        """Makes the index, or makes it anew with the rows that are in it when the columns have changed."""
        if not (self._folder / "current").exists():
            self._make(self._wanted, {})
            return
        about, index = _open(self._library, self._folder)
        if about.sink != self._feed.sink:
            raise UsageError(
                f"sink {self._feed.sink}: {self._folder} is kept by sink {about.sink}",
                hint="give it another path",
            )
        wanted = msgspec.structs.replace(self._wanted, number=about.number)
        if wanted != about:
            again = msgspec.structs.replace(wanted, number=about.number + 1)
            self._make(again, self._states(index), index)

    def _make(self, about: About, states: Mapping[int, tuple[int, int]], old: Any = None) -> None:
        """An index of its own folder; it takes the old one's place, rows and offsets, when it is complete."""
        folder = self._folder / str(about.number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        index = self._library.Index(self._schema(about), path=str(folder))
        with self._writing(index) as writer:
            for document in self._again(old) if old is not None else ():
                writer.add_document(document)
            for number, (claim, offset) in states.items():
                self._place(writer, number, offset, claim)
        fresh_file = self._folder / "current.new"
        with fresh_file.open("wb") as file:
            file.write(msgspec.json.encode(about))
            file.flush()
            os.fsync(file.fileno())
        fresh_file.rename(self._folder / "current")
        sync(self._folder)
        for other in self._folder.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)

    def _schema(self, about: About) -> Any:
        made = self._library.SchemaBuilder()
        made.add_text_field("_key", stored=True, tokenizer_name="raw")
        made.add_bytes_field("_row", stored=True)
        for name in ("_version", "_partition", "_claim", "_offset"):
            made.add_integer_field(name, stored=True, indexed=True, fast=True)
        for name, notation in about.columns.items():
            given = kind(notation)
            base = given.inner[0].name if given.name == "ARRAY" else given.name
            if name in about.text:
                made.add_text_field(name, tokenizer_name=about.tokenizer)
            elif base == "STRING":
                made.add_text_field(name, tokenizer_name="raw", fast=True)
            elif base in WHOLE:
                made.add_integer_field(name, indexed=True, fast=True)
            elif base in REAL:
                made.add_float_field(name, indexed=True, fast=True)
            elif base == "BOOLEAN":
                made.add_boolean_field(name, indexed=True, fast=True)
            elif base in {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}:
                made.add_date_field(name, indexed=True, fast=True)
            elif base in {"STRUCT", "MAP"}:
                made.add_json_field(name, tokenizer_name="raw")
        return made.build()

    def _document(self, change: Change) -> Any:
        """A row as a document; None for a deletion."""
        if change.value is None:
            return None
        document = self._library.Document()
        document.add_text("_key", _term(identity(change, append=self._feed.append)))
        document.add_bytes("_row", change.value.encode())
        if change.version is not None:
            document.add_integer("_version", change.version)
        row = self._read(change)
        try:
            for name, add in self._adders:
                value = row.get(name)
                if value is not None:
                    add(document, name, value)
        except (ValueError, TypeError, OverflowError) as error:
            raise Poison(
                change.partition, change.offset, f"column {name!r} cannot be indexed: {error}"
            ) from error
        return document

    def _again(self, old: Any) -> Iterator[Any]:
        """The rows of an index as documents of today's columns."""
        index_rows = _rows_of(self._library, self._library.Query.all_query())
        searcher = old.searcher()
        for _, address in searcher.search(index_rows, max(searcher.num_docs, 1)).hits:
            stored = searcher.doc(address)
            key, value, version = (stored.get_first(name) for name in ("_key", "_row", "_version"))
            partition, _, offset = key.partition("-") if self._feed.append else ("0", "", "0")
            yield self._document(Change(key, bytes(value).decode(), int(partition), int(offset), 0, version))

    def _place(self, writer: Any, number: int, offset: int, claim: int | None = None) -> None:
        """Says how far a partition is; behind -1 there is nothing yet."""
        writer.delete_documents_by_term("_partition", number)
        document = self._library.Document()
        document.add_integer("_partition", number)
        document.add_integer("_claim", self._claims[number] if claim is None else claim)
        document.add_integer("_offset", offset)
        writer.add_document(document)

    def _states(self, index: Any) -> dict[int, tuple[int, int]]:
        """Claim and offset of each partition."""
        query = self._library.Query.exists_query("_partition")
        searcher = index.searcher()
        found = {}
        for _, address in searcher.search(query, PARTITIONS_MAX).hits:
            stored = searcher.doc(address)
            found[stored.get_first("_partition")] = (
                stored.get_first("_claim"),
                stored.get_first("_offset"),
            )
        return found

    def _versions(self, index: Any, rows: Sequence[Newest]) -> dict[str, int]:
        """The versions of the rows that are there, for those that come with one."""
        keys = {_term(row.change.key): row.change.key for row in rows if row.change.version is not None}
        if not keys:
            return {}
        searcher = index.searcher()
        query = self._library.Query.term_set_query(index.schema, "_key", list(keys))
        stored = [searcher.doc(address) for _, address in searcher.search(query, len(keys)).hits]
        found = {each.get_first("_key"): each.get_first("_version") for each in stored}
        return {keys[term]: version for term, version in found.items() if version is not None}

    @contextmanager
    def _writing(self, index: Any) -> Iterator[Any]:
        """A writer whose work is committed at the end, or never was."""
        writer = None
        try:
            writer = index.writer(HEAP_BYTES, 1)
            yield writer
            writer.commit()
            writer.wait_merging_threads()
        except BaseException as error:
            if writer is not None:
                with suppress(ValueError):
                    writer.wait_merging_threads()  # ends it: whoever keeps the error would keep tantivy's own lock
            if not isinstance(error, ValueError | OSError):
                raise
            raise Away(f"the index in {self._folder} cannot be written", got=self._cause(error)) from error
        finally:
            writer = None  # a traceback would keep it, and tantivy's own lock with it

    def _cause(self, error: Exception) -> str:
        """tantivy does not say what its threads died of; the usual cause can be seen."""
        free = shutil.disk_usage(self._folder).free
        room = f"No space left on the disk ({free} bytes): " if free < HEAP_BYTES else ""
        return room + one_line(error)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """The folder is ours alone, as far as it can be written."""
        try:
            with self._held():
                yield
        except OSError as error:
            raise Away(f"the index in {self._folder} cannot be written", got=one_line(error)) from error

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Away names the process that does not let go of the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        limit = self._clock.monotonic() + LOCK_S
        with (self._folder / "lock").open("a+") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if self._clock.monotonic() > limit:
                        file.seek(0)
                        raise Away(
                            f"the index in {self._folder} is being written by another process",
                            got=f"process {file.read() or 'unknown'}",
                            hint="if it hangs, end it",
                        ) from error
                    self._pause.wait(RETRY_S)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield


def _adder(library: Any, given: Kind) -> Adder:
    """What puts a value of a column into a document; one of a type that is not indexed is only kept in the row."""
    to = library.Document
    if given.name == "ARRAY":
        if given.inner[0].name == "ARRAY":
            return _add_nothing
        add = _adder(library, given.inner[0])

        def add_each(document: Any, name: str, values: list[Any]) -> None:
            for value in values:
                if value is not None:
                    add(document, name, value)

        return add_each
    made: Mapping[str, Adder] = {
        "BOOLEAN": to.add_boolean,
        "STRING": to.add_text,
        "DATE": lambda document, name, day: _add_time(document, name, datetime.combine(day, time.min, UTC)),
        **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NTZ"), _add_time),
        **dict.fromkeys(WHOLE, to.add_integer),
        **dict.fromkeys(REAL, lambda document, name, number: document.add_float(name, float(number))),
        **dict.fromkeys(("STRUCT", "MAP"), _add_json),
    }
    return made.get(given.name, _add_nothing)


def _add_time(document: Any, name: str, at: datetime) -> None:
    known = at if at.tzinfo else at.replace(tzinfo=UTC)
    document.add_date(name, min(max(known, EARLIEST), LATEST))


def _add_json(document: Any, name: str, value: Any) -> None:
    document.add_json(name, msgspec.json.encode(value).decode())


def _add_nothing(document: Any, name: str, value: Any) -> None:
    """Of a column that nobody can look for."""


def _term(key: str) -> str:
    """What a row is known by in the index: its key, or a digest of one that is too long. The term of a term is itself."""
    if len(key) * 4 <= TERM_BYTES_MAX or len(data := key.encode()) <= TERM_BYTES_MAX:
        return key
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _open(library: Any, folder: Path) -> tuple[About, Any]:
    """The index that is in use; one that was made anew under our hands is looked for again."""
    for _ in range(TRIES):
        about = TANTIVY_SINK.decode((folder / "current").read_bytes(), About, f"index {folder}")
        try:
            return about, library.Index.open(str(folder / str(about.number)))
        except (ValueError, OSError) as error:
            failure = error
    raise StorageError(f"the index in {folder} cannot be opened", got=one_line(failure))


def _rows_of(library: Any, query: Any) -> Any:
    """A query for rows alone: the documents of partitions are none."""
    partitions = library.Query.exists_query("_partition")
    occur = library.Occur
    return library.Query.boolean_query([(occur.Must, query), (occur.MustNot, partitions)])
