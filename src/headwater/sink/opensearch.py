"""OpenSearch: the rows of a view as documents, written with its bulk interface.

There are no transactions there, so a document's version is made of its partition and offset (``external_gte``): whoever writes, and however
often, a document never becomes older. The partition comes first. A topic that gets a multiple of its partitions moves keys to greater numbers only
(``hash % 2n`` is ``hash % n`` or that and n), where their offsets begin again; any other number is refused. First the documents of a batch are written, then the offsets; what was repeated after a crash
in between changes nothing. A claim is a number in the document that holds a partition's offset: it is looked at before each
part of a batch, and the offset moves only if that document is still the one that was looked at.

A reset is a mark in a document of the same kind. Whoever finds it there makes it its own, and finishes the reset; who marked it before
looks at the mark before each step, and stops.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from headwater.address import options, shown
from headwater.change import Change
from headwater.decoders import from_json
from headwater.errors import Away, UsageError, one_line
from headwater.formats import OPENSEARCH_SINK
from headwater.sink.columns import kind
from headwater.sink.driver import driver
from headwater.sink.opensearch_mapping import field
from headwater.sink.opensearch_position import COUNT, FORMAT, RESETTING, Held
from headwater.sink.rows import Newest, beaten, check_offset, fresh, identity, moved, newest
from headwater.sink.store import Batch, Feed, Poison, Store, Superseded
from headwater.sink.topics import partitions_of

__all__ = ["OpenSearch"]

POSITIONS = "headwater-positions"
TIMEOUT_S = 30
BULK_BYTES = 5_000_000
"""So much of a batch goes into one request."""
PARTITIONS_MAX = 10_000
OFFSET_BITS = 43
"""Of a version, below the partition: room for a million partitions with eight trillion records each."""
TRIES = 10
CONFLICT = 409
BAD_REQUEST = 400
VERSION = "headwater_version"
"""The field that keeps the version of a row that has one: names that begin with ``_`` are OpenSearch's own."""


class OpenSearch:
    """``hw.sink.OpenSearch("https://user:password@search:9200")``: an index named like the topic, or ``index``.

    ``gc_deletes`` is how long OpenSearch remembers the version of a deleted document. ``settings`` are those of an index that is made.
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
        """The name of the index; OpenSearch has no capitals there."""
        return self._index or topic.lower()

    def place(self, topic: str) -> str:
        return f"{shown(self.url)}, index {self.index(topic)}"

    def check(self, feed: Feed) -> None:
        options(f"sink {feed.sink}", self.url, hint="ca= and settings= are arguments of OpenSearch")
        name = self.index(feed.topic)
        if name != name.lower() or name[:1] in "-_+" or any(each in '\\/*?"<>| ,#:' for each in name):
            raise UsageError(
                f"sink {feed.sink}: OpenSearch has no index of such a name",
                got=repr(name),
                expected="small letters, digits, '.', '-' and '_'",
                hint="name it with index=",
            )
        if name == POSITIONS or VERSION in feed.columns:
            raise UsageError(
                f"sink {feed.sink}: a name is the sinks' own there",
                got=f"index {name!r}" if name == POSITIONS else f"column {VERSION!r}",
                hint="name the index with index=, or rename the column in the view",
            )
        for notation in feed.columns.values():
            kind(notation)

    def open(self, feed: Feed) -> Store:
        self.check(feed)
        return _Store(self, feed)


class _Store:
    """One index and its offsets."""

    def __init__(self, target: OpenSearch, feed: Feed) -> None:
        library = driver("opensearchpy", "search")
        self._errors = library.exceptions
        self._address = shown(target.url)
        self._target = target
        self._feed = feed
        self._index = target.index(feed.topic)
        self._claims: dict[int, int] = {}
        self._offsets: dict[int, int] = {}
        self._partitions = 0
        """How many the topic had when it was looked at."""
        options = {"ca_certs": target.ca} if target.ca else {}
        try:
            self._client = library.OpenSearch(target.url, timeout=TIMEOUT_S, max_retries=0, **options)
        except ValueError:  # which quotes the address
            raise UsageError(f"sink {feed.sink}: no address of an OpenSearch", got=self._address) from None
        with self._translated():
            self._prepare()

    def claim(self, partitions: Collection[int]) -> Mapping[int, int]:
        numbers = sorted(partitions)
        with self._translated():
            self._check_format()
            if numbers and numbers[-1] >= self._partitions:
                self._check_partitions()
            taken = self._take(numbers)
            if self._held([RESETTING])[
                RESETTING
            ].claim:  # looked at behind the claim: one that comes later undoes the claim
                self._finish_reset(self._mark_reset())
                taken = self._take(numbers)
        for number, (claim, offset) in taken.items():
            self._claims[number] = claim
            self._offsets.pop(number, None)
            if offset >= 0:
                self._offsets[number] = offset
        return {number: self._offsets[number] for number in numbers if number in self._offsets}

    def apply(self, batch: Batch) -> None:
        changes = fresh(batch, self._offsets)
        upto = moved(batch, self._offsets)
        rows = [Newest(each, anew=False) for each in changes]
        with self._translated():
            held = self._check(batch.upto)
            if not self._feed.append:
                rows = list(newest(changes).values())
                old = beaten(rows, self._versions(rows))
                rows = [row for row in rows if row.change.key not in old]
            parts = list(self._parts([row.change for row in rows]))
            for number, (body, part) in enumerate(parts):
                if number:
                    held = self._check(batch.upto)
                self._bulk(body, part)
            if upto:
                self._place({n: (self._claims[n], offset) for n, offset in upto.items()}, held)
        self._offsets |= upto

    def reset(self) -> None:
        with self._translated():
            self._finish_reset(self._mark_reset())
        self._claims.clear()
        self._offsets.clear()

    def close(self) -> None:
        self._client.close()

    def _take(self, numbers: Collection[int]) -> dict[int, tuple[int, int]]:
        """New claims; of two that come at once, one tries again."""
        for _ in range(TRIES):
            held = self._held(numbers)
            taken = {number: (seen.claim + 1, seen.offset) for number, seen in held.items()}
            try:
                self._place(taken, held)
            except Superseded:
                continue
            return taken
        raise Away(f"partitions of sink {self._feed.sink} are claimed by others all the time")

    def _check_format(self) -> None:
        """UsageError when a newer version keeps the positions of the sink; notes the format where none is noted."""
        held = self._held([FORMAT])
        found = held[FORMAT].claim
        OPENSEARCH_SINK.check(found, f"positions of sink {self._feed.sink} in OpenSearch at {self._address}")
        if not found:
            with suppress(Superseded):  # another has noted it
                self._place({FORMAT: (OPENSEARCH_SINK.newest, -1)}, held)

    def _check_partitions(self) -> None:
        """Notes how many partitions the topic has. UsageError when versions could no longer say which record of a key is the newest."""
        if self._feed.append or self._feed.log is None:
            return
        count = partitions_of(self._feed)
        for _ in range(TRIES):
            held = self._held([COUNT])
            before = held[COUNT].claim
            if before and count > before and count % before:
                raise UsageError(
                    f"sink {self._feed.sink}: the partitions of topic {self._feed.topic} have grown from {before} to {count}",
                    expected=f"a multiple of {before}: otherwise keys move to partitions of smaller numbers, and older documents stay",
                    hint=f"make the topic again: headwater topic delete {self._feed.topic}; the sink then fills its index from it",
                )
            if count < before:  # it is another topic
                self._finish_reset(self._mark_reset())
                continue
            try:
                if count != before:
                    self._place({COUNT: (count, -1)}, held)
            except Superseded:
                continue
            self._partitions = count
            return
        raise Away(f"the partitions of sink {self._feed.sink} are noted by others all the time")

    def _check(self, numbers: Collection[int]) -> dict[int, Held]:
        held = self._held(numbers)
        for number, seen in held.items():
            if seen.claim != self._claims.get(number, -1):
                raise self._superseded(number)
            check_offset(self._feed.sink, number, seen.offset, self._offsets.get(number))
        return held

    def _bulk(self, body: bytes, changes: Sequence[Change]) -> None:
        """Writes documents; one that is newer there stays."""
        answer = self._client.bulk(body=body, index=self._index)
        for change, item in zip(changes, answer["items"], strict=True):
            (outcome,) = item.values()
            error = outcome.get("error")
            if error is None or outcome["status"] == CONFLICT:
                continue
            if outcome["status"] == BAD_REQUEST:
                caused = error.get("caused_by") or {}
                reason = ": ".join(filter(None, (error["type"], error["reason"], caused.get("reason"))))
                raise Poison(change.partition, change.offset, f"OpenSearch refuses the document: {reason}")
            raise Away(f"OpenSearch at {self._address} does not take documents", got=str(error.get("type")))

    def _parts(self, changes: Sequence[Change]) -> Iterator[tuple[bytes, list[Change]]]:
        """The changes as requests of bounded size."""
        lines: list[bytes] = []
        part: list[Change] = []
        size = 0
        for change in changes:
            made = self._lines(change)
            if part and size + len(made) > BULK_BYTES:
                yield b"".join(lines), part
                lines, part, size = [], [], 0
            lines.append(made)
            part.append(change)
            size += len(made)
        if part:
            yield b"".join(lines), part

    def _lines(self, change: Change) -> bytes:
        about = {
            "_id": identity(change, append=self._feed.append),
            "version": (change.partition << OFFSET_BITS) + change.offset + 1,
            "version_type": "external_gte",
        }
        if change.value is None:
            return msgspec.json.encode({"delete": about}) + b"\n"
        try:
            columns = from_json(change.value, dict[str, msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise Poison(change.partition, change.offset, f"the value is no JSON object: {error}") from error
        row: dict[str, Any] = {name: value for name, value in columns.items() if not name.startswith("_")}
        if change.version is not None:
            row[VERSION] = change.version
        return msgspec.json.encode({"index": about}) + b"\n" + msgspec.json.encode(row) + b"\n"

    def _versions(self, rows: Sequence[Newest]) -> dict[str, int]:
        """The versions of the documents that are there, for rows that come with one."""
        keys = [row.change.key for row in rows if row.change.version is not None]
        if not keys:
            return {}
        answer = self._client.mget(body={"ids": keys}, index=self._index, _source_includes=[VERSION])
        return {each["_id"]: each["_source"].get(VERSION, -1) for each in answer["docs"] if each.get("found")}

    def _held(self, numbers: Collection[int]) -> dict[int, Held]:
        """Claims and offsets as they are now; these documents are read by id, and so are never stale."""
        if not numbers:
            return {}
        ids = [self._id(number) for number in numbers]
        answer = self._client.mget(body={"ids": ids}, index=POSITIONS)
        found = {}
        for number, each in zip(numbers, answer["docs"], strict=True):
            source = each.get("_source") or {"claim": 0, "offset": -1}
            place = (each["_seq_no"], each["_primary_term"]) if each.get("found") else None
            found[number] = Held(source["claim"], source["offset"], place)
        return found

    def _place(self, states: Mapping[int, tuple[int, int]], held: Mapping[int, Held]) -> dict[int, Held]:
        """Moves claims and offsets, each only if nobody has touched it since it was read; how they are then."""
        body = b""
        for number, (claim, offset) in states.items():
            about: dict[str, Any] = {"_id": self._id(number)}
            place = held[number].place
            if place is not None:
                about |= {"if_seq_no": place[0], "if_primary_term": place[1]}
            row = {"sink": self._feed.sink, "partition": number, "claim": claim, "offset": offset}
            act = "create" if place is None else "index"
            body += msgspec.json.encode({act: about}) + b"\n" + msgspec.json.encode(row) + b"\n"
        answer = self._client.bulk(body=body, index=POSITIONS)
        placed = {}
        for number, item in zip(states, answer["items"], strict=True):
            (outcome,) = item.values()
            if outcome["status"] == CONFLICT:
                raise self._superseded(number)
            if "error" in outcome:
                raise Away(
                    f"OpenSearch at {self._address} does not take positions", got=outcome["error"]["type"]
                )
            placed[number] = Held(*states[number], (outcome["_seq_no"], outcome["_primary_term"]))
        return placed

    def _mark_reset(self) -> Held:
        """Makes the reset ours, whoever has begun it."""
        return self._place({RESETTING: (1, -1)}, self._held([RESETTING]))[RESETTING]

    def _finish_reset(self, mark: Held) -> None:
        """Forgets offsets, and so shuts all holders out; then removes the index, and last the mark that it is to be done.

        The index cannot be removed on a condition. Should the mark have gone to another between the look and the removal, then the rows of
        a successor may be gone: the reset is made anew, which lets it fill them again.
        """
        for _ in range(TRIES):
            self._forget_offsets(mark)
            self._check_mark(mark)
            self._client.indices.delete(index=self._index, ignore_unavailable=True)
            self._prepare()
            if self._held([RESETTING])[RESETTING] == mark:
                self._place({RESETTING: (0, -1)}, {RESETTING: mark})
                return
            mark = self._mark_reset()
        raise Away(f"sink {self._feed.sink} is reset by others all the time")

    def _check_mark(self, mark: Held) -> None:
        if self._held([RESETTING])[RESETTING] != mark:
            raise Superseded(f"sink {self._feed.sink}: another process has taken its reset over")

    def _forget_offsets(self, mark: Held) -> None:
        """Of all partitions; claims go on counting."""
        self._client.indices.refresh(index=POSITIONS)
        query = {"query": {"term": {"sink": self._feed.sink}}, "size": PARTITIONS_MAX}
        hits = self._client.search(body=query, index=POSITIONS)["hits"]["hits"]
        held = self._held([each["_source"]["partition"] for each in hits])
        known = {number: (seen.claim + 1, -1) for number, seen in held.items() if number >= 0}
        known |= {COUNT: (0, -1)} if COUNT in held else {}
        self._check_mark(mark)
        if known:
            self._place(known, held)

    def _prepare(self) -> None:
        """Makes the indices, or adds to a mapping what is new; another type for a field is refused by OpenSearch."""
        properties = {name: field(kind(notation)) for name, notation in self._feed.columns.items()}
        properties[VERSION] = {"type": "long"}
        mapping = {"dynamic": False, "properties": properties}
        self._make(self._index, mapping, self._target.settings)
        long, keyword = {"type": "long"}, {"type": "keyword"}
        self._make(POSITIONS, {"properties": {"sink": keyword, "partition": long, "offset": long}}, {})
        self._client.indices.put_mapping(body=mapping, index=self._index)
        gc_deletes = {"index.gc_deletes": self._target.settings["index.gc_deletes"]}
        self._client.indices.put_settings(body=gc_deletes, index=self._index)

    def _make(self, name: str, mapping: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        if self._client.indices.exists(index=name):
            return
        try:
            self._client.indices.create(index=name, body={"mappings": mapping, "settings": settings})
        except self._errors.RequestError as error:
            if error.error != "resource_already_exists_exception":
                raise

    def _id(self, number: int) -> str:
        return f"{self._feed.sink}:{number}"

    def _superseded(self, number: int) -> Superseded:
        return Superseded(f"sink {self._feed.sink}: partition {number} was taken over by another process")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._errors
        try:
            yield
        except errors.ConnectionError as error:
            raise Away(f"OpenSearch at {self._address} does not answer", got=type(error).__name__) from error
        except (errors.AuthenticationException, errors.AuthorizationException) as error:
            raise UsageError(f"OpenSearch at {self._address} refuses us", got=one_line(error)) from error
        except errors.RequestError as error:
            raise UsageError(
                f"OpenSearch at {self._address} does not fit sink {self._feed.sink}", got=one_line(error)
            ) from error
        except errors.OpenSearchException as error:  # overloaded, no shard, no master: it may pass
            raise Away(f"OpenSearch at {self._address} cannot do its work", got=one_line(error)) from error
