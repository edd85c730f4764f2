"""OpenSearch: the rows of a view as documents, written with its bulk interface.

OpenSearch has no transactions, so a document's version consists of partition and offset
(``external_gte``): whichever process writes, and however often, a document never becomes older. The
partition is the upper part. If a topic gets a multiple of its partitions, keys move only to greater
partitions (``hash % 2n`` is ``hash % n`` or that plus n), where offsets begin again; any other number of
partitions is refused.

The documents of a batch are written first, then its offsets; a batch that is repeated after a crash in
between changes nothing. A claim is a number in the document that holds a partition's offset. It is read
before each part of a batch, and the offset moves only if that document has not changed since.

A reset is marked in a document of the same kind. A process that finds the mark makes it its own and
finishes the reset; the process that set it before reads the mark before each step, and stops.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from headwater.address import options, shown
from headwater.change import Change
from headwater.decoders import from_json
from headwater.errors import UnavailableError, UsageError, one_line
from headwater.formats import OPENSEARCH_SINK
from headwater.sink.batch_rows import NewestChange, newest_changes, outdated_keys, row_id
from headwater.sink.claims import NOTHING, Claims, PartitionState
from headwater.sink.store import Batch, Poison, SinkFeed, Store, Superseded, partition_count
from headwater.sink.stores.opensearch_mapping import field
from headwater.sink.stores.opensearch_position import (
    CONFLICT,
    COUNT,
    FORMAT,
    INDEX,
    RESETTING,
    PositionDocument,
    Positions,
)
from headwater.sink.stores.optional_library import import_library
from headwater.sink.stores.spark_types import check_columns, parse_type

__all__ = ["OpenSearch"]

TIMEOUT_S = 30
BULK_BYTES = 5_000_000
"""The size of one request; a batch may be larger."""
OFFSET_BITS = 43
"""The lower bits of a version: room for a million partitions with eight trillion records each."""
TRIES = 10
BAD_REQUEST = 400
VERSION = "headwater_version"
"""The field for the version of a row that has one: names that begin with ``_`` are OpenSearch's own."""


class OpenSearch:
    """An index: ``hw.sink.OpenSearch("https://user:password@search:9200")``.

    It has the name of the topic, or ``index``. ``gc_deletes`` is how long OpenSearch remembers the version
    of a deleted document. ``settings`` are those of an index that the sink creates.
    """

    kind = "opensearch"

    def __init__(
        self,
        url: str,
        *,
        index: str = "",
        gc_deletes: str = "1h",
        settings: Mapping[str, Any] | None = None,
        ca: str = "",
    ) -> None:
        self.url = url
        self._index = index
        self.ca = ca
        self.settings = {"index.gc_deletes": gc_deletes, **(settings or {})}

    def __repr__(self) -> str:
        return f"OpenSearch({shown(self.url)!r})"

    def index(self, topic: str) -> str:
        """The name of the index, in lower case as OpenSearch requires."""
        return self._index or topic.lower()

    def place(self, topic: str) -> str:
        return f"{shown(self.url)}, index {self.index(topic)}"

    def check(self, feed: SinkFeed) -> None:
        options(f"sink {feed.sink}", self.url, hint="ca= and settings= are arguments of OpenSearch")
        name = self.index(feed.topic)
        if name != name.lower() or name[:1] in "-_+" or any(letter in '\\/*?"<>| ,#:' for letter in name):
            raise UsageError(
                f"sink {feed.sink}: OpenSearch has no index of such a name",
                got=repr(name),
                expected="small letters, digits, '.', '-' and '_'",
                hint="name it with index=",
            )
        if name == INDEX or VERSION in feed.columns:
            raise UsageError(
                f"sink {feed.sink}: this name is reserved for sinks",
                got=f"index {name!r}" if name == INDEX else f"column {VERSION!r}",
                hint="name the index with index=, or rename the column in the view",
            )
        check_columns(feed)

    def open(self, feed: SinkFeed) -> Store:
        self.check(feed)
        return _OpenSearchStore(self, feed)


class _OpenSearchStore:
    """One index and its offsets."""

    def __init__(self, target: OpenSearch, feed: SinkFeed) -> None:
        library = import_library("opensearchpy", "search")
        self._errors = library.exceptions
        self._address = shown(target.url)
        self._target = target
        self._feed = feed
        self._index = target.index(feed.topic)
        self._claims = Claims(feed.sink)
        self._partitions = 0
        """The number of partitions of the topic when it was last asked for."""
        options = {"ca_certs": target.ca} if target.ca else {}
        try:
            self._client = library.OpenSearch(target.url, timeout=TIMEOUT_S, max_retries=0, **options)
        except ValueError:  # which quotes the address
            raise UsageError(f"sink {feed.sink}: not an address of OpenSearch", got=self._address) from None
        self._positions = Positions(self._client, feed.sink, self._address)
        with self._translated():
            self._prepare()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        numbers = sorted(partitions)
        with self._translated():
            self._check_format()
            if numbers and numbers[-1] >= self._partitions:
                self._check_partitions()
            states = self._take(numbers)
            # Read after the claim: a reset that is marked later makes the claim invalid.
            if self._mark().state.claim:
                self._finish_reset(self._mark_reset())
                states = self._take(numbers)
        return self._claims.take(states)

    def apply(self, batch: Batch) -> None:
        changes = self._claims.new_changes(batch)
        offsets = self._claims.new_offsets(batch)
        rows = [NewestChange(change, was_deleted=False) for change in changes]
        with self._translated():
            documents = self._check(batch.upto)
            if not self._feed.append:
                rows = list(newest_changes(changes).values())
                outdated = outdated_keys(rows, self._versions(rows))
                rows = [row for row in rows if row.change.key not in outdated]
            for number, (body, part) in enumerate(list(self._parts([row.change for row in rows]))):
                if number:
                    documents = self._check(batch.upto)
                self._bulk(body, part)
            if offsets:
                states = {n: PartitionState(self._claims.claim(n), offset) for n, offset in offsets.items()}
                self._positions.write(states, documents)
        self._claims.advance(offsets)

    def reset(self) -> None:
        with self._translated():
            self._finish_reset(self._mark_reset())
        self._claims.clear()

    def close(self) -> None:
        self._client.close()

    # ---- claims and formats ----------------------------------------------------------------------------

    def _take(self, numbers: Collection[int]) -> dict[int, PartitionState]:
        """New claims; if another process claims at the same time, one of the two tries again."""
        for _ in range(TRIES):
            documents = self._positions.read(numbers)
            states = {number: document.state.claimed() for number, document in documents.items()}
            with suppress(Superseded):
                if states:
                    self._positions.write(states, documents)
                return states
        raise UnavailableError(f"others claim partitions of sink {self._feed.sink} all the time")

    def _check_format(self) -> None:
        """UsageError if a newer version has written the positions; notes the format if none is noted."""
        documents = self._positions.read([FORMAT])
        stored = documents[FORMAT].state.claim
        OPENSEARCH_SINK.check(stored, f"positions of sink {self._feed.sink} in OpenSearch at {self._address}")
        if not stored:
            with suppress(Superseded):  # another process has noted it
                self._positions.write({FORMAT: PartitionState(OPENSEARCH_SINK.newest)}, documents)

    def _check_partitions(self) -> None:
        """Notes the number of partitions of the topic.

        UsageError if versions could no longer say which record of a key is the newest.
        """
        if self._feed.append or self._feed.log is None:
            return
        count = partition_count(self._feed)
        for _ in range(TRIES):
            documents = self._positions.read([COUNT])
            before = documents[COUNT].state.claim
            if before and count > before and count % before:
                raise UsageError(
                    f"sink {self._feed.sink}: the partitions of topic {self._feed.topic} have grown"
                    f" from {before} to {count}",
                    expected=f"a multiple of {before}: otherwise keys move to partitions of smaller numbers,"
                    " and older documents stay",
                    hint=f"create the topic again: headwater topic delete {self._feed.topic};"
                    " the sink then fills its index from it",
                )
            if count < before:  # it is another topic
                self._finish_reset(self._mark_reset())
                continue
            with suppress(Superseded):
                if count != before:
                    self._positions.write({COUNT: PartitionState(count)}, documents)
                self._partitions = count
                return
        raise UnavailableError(f"others note the partitions of sink {self._feed.sink} all the time")

    def _check(self, numbers: Collection[int]) -> dict[int, PositionDocument]:
        documents = self._positions.read(numbers)
        for number, document in documents.items():
            self._claims.check(number, document.state)
        return documents

    # ---- documents -------------------------------------------------------------------------------------

    def _bulk(self, body: bytes, changes: Sequence[Change]) -> None:
        """Writes documents; newer ones in the index stay."""
        answer = self._client.bulk(body=body, index=self._index)
        for change, item in zip(changes, answer["items"], strict=True):
            (outcome,) = item.values()
            error = outcome.get("error")
            if error is None or outcome["status"] == CONFLICT:
                continue
            if outcome["status"] == BAD_REQUEST:
                cause = error.get("caused_by") or {}
                reason = ": ".join(filter(None, (error["type"], error["reason"], cause.get("reason"))))
                raise Poison(change.partition, change.offset, f"OpenSearch refuses the document: {reason}")
            raise UnavailableError(
                f"OpenSearch at {self._address} does not take documents", got=str(error.get("type"))
            )

    def _parts(self, changes: Sequence[Change]) -> Iterator[tuple[bytes, list[Change]]]:
        """The changes as requests of bounded size."""
        lines: list[bytes] = []
        part: list[Change] = []
        size = 0
        for change in changes:
            text = self._lines(change)
            if part and size + len(text) > BULK_BYTES:
                yield b"".join(lines), part
                lines, part, size = [], [], 0
            lines.append(text)
            part.append(change)
            size += len(text)
        if part:
            yield b"".join(lines), part

    def _lines(self, change: Change) -> bytes:
        about = {
            "_id": row_id(change, append=self._feed.append),
            "version": (change.partition << OFFSET_BITS) + change.offset + 1,
            "version_type": "external_gte",
        }
        if change.value is None:
            return msgspec.json.encode({"delete": about}) + b"\n"
        try:
            columns = from_json(change.value, dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            reason = f"the value is not a JSON object: {error}"
            raise Poison(change.partition, change.offset, reason) from error
        row: dict[str, Any] = {name: value for name, value in columns.items() if not name.startswith("_")}
        if change.version is not None:
            row[VERSION] = change.version
        return msgspec.json.encode({"index": about}) + b"\n" + msgspec.json.encode(row) + b"\n"

    def _versions(self, rows: Sequence[NewestChange]) -> dict[str, int]:
        """The stored versions of the documents whose rows come with a version."""
        keys = [row.change.key for row in rows if row.change.version is not None]
        if not keys:
            return {}
        answer = self._client.mget(body={"ids": keys}, index=self._index, _source_includes=[VERSION])
        stored = [document for document in answer["docs"] if document.get("found")]
        return {document["_id"]: document["_source"].get(VERSION, -1) for document in stored}

    # ---- resets ----------------------------------------------------------------------------------------

    def _mark(self) -> PositionDocument:
        return self._positions.read([RESETTING])[RESETTING]

    def _mark_reset(self) -> PositionDocument:
        """Makes the reset ours, even if another process has begun it."""
        return self._positions.write({RESETTING: PartitionState(1)}, {RESETTING: self._mark()})[RESETTING]

    def _finish_reset(self, mark: PositionDocument) -> None:
        """Forgets the offsets, which fences all holders, then removes the index, and last the mark.

        An index cannot be removed on a condition. If another process takes the mark between the check and
        the removal, the removal may have hit rows of a successor: the reset is then repeated, which lets
        it write them again.
        """
        for _ in range(TRIES):
            self._forget_offsets(mark)
            self._check_mark(mark)
            self._client.indices.delete(index=self._index, ignore_unavailable=True)
            self._prepare()
            if self._mark() == mark:
                self._positions.write({RESETTING: PartitionState()}, {RESETTING: mark})
                return
            mark = self._mark_reset()
        raise UnavailableError(f"others reset sink {self._feed.sink} all the time")

    def _check_mark(self, mark: PositionDocument) -> None:
        if self._mark() != mark:
            raise Superseded(f"sink {self._feed.sink}: another process has taken its reset over")

    def _forget_offsets(self, mark: PositionDocument) -> None:
        """Forgets the offsets of all partitions; their claims continue to count."""
        documents = self._positions.read(self._positions.numbers())
        states = {number: document.state.reset() for number, document in documents.items() if number >= 0}
        if COUNT in documents:
            states[COUNT] = PartitionState(0, NOTHING)
        self._check_mark(mark)
        if states:
            self._positions.write(states, documents)

    # ---- indices ---------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Creates the indices, or adds new fields to a mapping; OpenSearch refuses a changed type."""
        properties = {name: field(parse_type(notation)) for name, notation in self._feed.columns.items()}
        properties[VERSION] = {"type": "long"}
        mapping = {"dynamic": False, "properties": properties}
        self._create(self._index, mapping, self._target.settings)
        long, keyword = {"type": "long"}, {"type": "keyword"}
        self._create(INDEX, {"properties": {"sink": keyword, "partition": long, "offset": long}}, {})
        self._client.indices.put_mapping(body=mapping, index=self._index)
        gc_deletes = {"index.gc_deletes": self._target.settings["index.gc_deletes"]}
        self._client.indices.put_settings(body=gc_deletes, index=self._index)

    def _create(self, name: str, mapping: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        if self._client.indices.exists(index=name):
            return
        try:
            self._client.indices.create(index=name, body={"mappings": mapping, "settings": settings})
        except self._errors.RequestError as error:
            if error.error != "resource_already_exists_exception":
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except errors.ConnectionError as error:
            raise UnavailableError(
                f"OpenSearch at {self._address} does not answer", got=type(error).__name__
            ) from error
        except (errors.AuthenticationException, errors.AuthorizationException) as error:
            raise UsageError(f"OpenSearch at {self._address} refuses us", got=one_line(error)) from error
        except errors.RequestError as error:
            raise UsageError(
                f"OpenSearch at {self._address} does not fit sink {self._feed.sink}", got=one_line(error)
            ) from error
        except errors.OpenSearchException as error:  # overloaded, no shard, no master: it may pass
            raise UnavailableError(
                f"OpenSearch at {self._address} cannot process the request", got=one_line(error)
            ) from error
