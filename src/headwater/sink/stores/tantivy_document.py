"""Rows as documents of a Tantivy index: the schema of the index, and one document for each row."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time
from typing import Any

import msgspec

from headwater.change import Change
from headwater.sink.batch_rows import row_id
from headwater.sink.claims import PartitionState
from headwater.sink.store import Poison, SinkFeed
from headwater.sink.stores.spark_types import SparkType, change_reader, parse_type

__all__ = ["Documents", "build_schema", "term"]

TERM_BYTES_MAX = 65_000
"""Tantivy silently leaves longer terms out of the index."""
EARLIEST, LATEST = datetime(1677, 9, 22, tzinfo=UTC), datetime(2262, 4, 11, tzinfo=UTC)
"""The range of nanoseconds since 1970. Times outside are indexed as these; the row keeps them unchanged."""
WHOLE = {"TINYINT", "SMALLINT", "INT", "BIGINT"}
REAL = {"FLOAT", "DOUBLE", "DECIMAL"}

Adder = Callable[[Any, str, Any], None]


def build_schema(library: Any, columns: Mapping[str, str], text: tuple[str, ...], tokenizer: str) -> Any:
    """The schema of an index with these columns; those in ``text`` are cut into words by ``tokenizer``."""
    builder = library.SchemaBuilder()
    builder.add_text_field("_key", stored=True, tokenizer_name="raw")
    builder.add_bytes_field("_row", stored=True)
    for name in ("_version", "_partition", "_claim", "_offset"):
        builder.add_integer_field(name, stored=True, indexed=True, fast=True)
    for name, notation in columns.items():
        column = parse_type(notation)
        base = column.inner[0].name if column.name == "ARRAY" else column.name
        if name in text:
            builder.add_text_field(name, tokenizer_name=tokenizer)
        elif base == "STRING":
            builder.add_text_field(name, tokenizer_name="raw", fast=True)
        elif base in WHOLE:
            builder.add_integer_field(name, indexed=True, fast=True)
        elif base in REAL:
            builder.add_float_field(name, indexed=True, fast=True)
        elif base == "BOOLEAN":
            builder.add_boolean_field(name, indexed=True, fast=True)
        elif base in {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}:
            builder.add_date_field(name, indexed=True, fast=True)
        elif base in {"STRUCT", "MAP"}:
            builder.add_json_field(name, tokenizer_name="raw")
    return builder.build()


class Documents:
    """Makes the documents of one feed."""

    def __init__(self, library: Any, feed: SinkFeed) -> None:
        self._library = library
        self._append = feed.append
        self._read = change_reader(feed.columns)
        self._adders = [
            (name, _adder(library, parse_type(notation))) for name, notation in feed.columns.items()
        ]

    def row(self, change: Change) -> Any:
        """The document of a row; None for a deletion. Poison if a value cannot be indexed."""
        if change.value is None:
            return None
        document = self._library.Document()
        document.add_text("_key", term(row_id(change, append=self._append)))
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

    def stored_row(self, document: Any) -> Any:
        """The document of a row that an older index has, with the columns of this feed."""
        key, value, version = (document.get_first(name) for name in ("_key", "_row", "_version"))
        partition, _, offset = key.partition("-") if self._append else ("0", "", "0")
        return self.row(Change(key, bytes(value).decode(), int(partition), int(offset), 0, version))

    def partition(self, number: int, state: PartitionState) -> Any:
        """The document that stores the claim and the offset of a partition."""
        document = self._library.Document()
        document.add_integer("_partition", number)
        document.add_integer("_claim", state.claim)
        document.add_integer("_offset", state.offset)
        return document


def term(key: str) -> str:
    """The name of a row in the index: its key, or a digest of a key that is too long.

    A term is its own term.
    """
    if len(key) * 4 <= TERM_BYTES_MAX or len(data := key.encode()) <= TERM_BYTES_MAX:
        return key
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _adder(library: Any, column: SparkType) -> Adder:
    """The function that adds a value of a column to a document, or nothing if its type is not indexed."""
    to = library.Document
    if column.name == "ARRAY":
        if column.inner[0].name == "ARRAY":
            return _add_nothing
        add = _adder(library, column.inner[0])

        def add_each(document: Any, name: str, values: list[Any]) -> None:
            for value in values:
                if value is not None:
                    add(document, name, value)

        return add_each
    adders: Mapping[str, Adder] = {
        "BOOLEAN": to.add_boolean,
        "STRING": to.add_text,
        "DATE": lambda document, name, day: _add_time(document, name, datetime.combine(day, time.min, UTC)),
        **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NTZ"), _add_time),
        **dict.fromkeys(WHOLE, to.add_integer),
        **dict.fromkeys(REAL, lambda document, name, number: document.add_float(name, float(number))),
        **dict.fromkeys(("STRUCT", "MAP"), _add_json),
    }
    return adders.get(column.name, _add_nothing)


def _add_time(document: Any, name: str, at: datetime) -> None:
    zoned = at if at.tzinfo else at.replace(tzinfo=UTC)
    document.add_date(name, min(max(zoned, EARLIEST), LATEST))


def _add_json(document: Any, name: str, value: Any) -> None:
    document.add_json(name, msgspec.json.encode(value).decode())


def _add_nothing(document: Any, name: str, value: Any) -> None:
    """Adds nothing: the column cannot be searched."""
