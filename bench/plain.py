"""The plain ways to load stores from Python that ``bench/delivery.py`` measures sinks beside: no offsets, no claims, no dead letters, no deletions.

Each takes batches of messages, as big as the sinks' own, and loads of each the newest of a key, in one step of the store.
"""

import io
import sqlite3
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import opensearchpy
import psycopg
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet
import redis
import tantivy

Batches = Iterable[list[Any]]
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("customer", pa.int64()),
        ("country", pa.string()),
        ("total", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
SHARDS = {"number_of_shards": 1, "number_of_replicas": 0}


class Row(msgspec.Struct):
    id: str
    customer: int
    country: str
    total: float
    at: str


class Timed(Row):
    at: datetime


def newest(found: list[Any]) -> Iterator[Any]:
    """The last message of each key."""
    return iter({message.key(): message for message in found}.values())


def sqlite(batches: Batches, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(
        "CREATE TABLE t (id TEXT UNIQUE, customer BIGINT, country TEXT, total DOUBLE, at TEXT)"
    )
    decode, values = msgspec.json.Decoder(Row).decode, msgspec.structs.astuple
    upsert = (
        "INSERT INTO t VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, "
        "country = excluded.country, total = excluded.total, at = excluded.at"
    )
    for found in batches:
        connection.execute("BEGIN")
        connection.executemany(upsert, [values(decode(message.value())) for message in found])
        connection.execute("COMMIT")
    connection.close()


def postgres(batches: Batches, url: str, table: str) -> None:
    decode, values = msgspec.json.Decoder(Row).decode, msgspec.structs.astuple
    kinds = "id text{}, customer bigint, country text, total double precision, at timestamptz"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} ({kinds.format(' UNIQUE')})")
        connection.execute(f"CREATE TEMPORARY TABLE stage ({kinds.format('')}) ON COMMIT DELETE ROWS")
        for found in batches:
            with connection.transaction(), connection.cursor() as cursor:
                with cursor.copy("COPY stage FROM STDIN") as copy:
                    for message in newest(found):
                        copy.write_row(values(decode(message.value())))
                cursor.execute(
                    f"INSERT INTO {table} SELECT * FROM stage ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, "
                    "country = excluded.country, total = excluded.total, at = excluded.at"
                )


def redis_mset(batches: Batches, url: str, prefix: str) -> None:
    name = prefix.encode()
    with redis.Redis.from_url(url) as client:
        for found in batches:
            client.mset({name + message.key(): message.value() for message in found})


def tantivy_writer(batches: Batches, folder: Path) -> None:
    made = tantivy.SchemaBuilder()
    made.add_text_field("id", stored=True, tokenizer_name="raw")
    made.add_bytes_field("row", stored=True)
    made.add_integer_field("customer", indexed=True, fast=True)
    made.add_text_field("country", tokenizer_name="raw", fast=True)
    made.add_float_field("total", indexed=True, fast=True)
    made.add_date_field("at", indexed=True, fast=True)
    folder.mkdir(parents=True)
    writer = tantivy.Index(made.build(), path=str(folder)).writer(50_000_000, 1)
    decode = msgspec.json.Decoder(Timed).decode
    for found in batches:
        for message in newest(found):
            row = decode(message.value())
            document = tantivy.Document()
            document.add_text("id", row.id)
            document.add_bytes("row", message.value())
            document.add_integer("customer", row.customer)
            document.add_text("country", row.country)
            document.add_float("total", row.total)
            document.add_date("at", row.at)
            writer.delete_documents_by_term("id", row.id)
            writer.add_document(document)
        writer.commit()
    writer.wait_merging_threads()


def opensearch_bulk(batches: Batches, url: str, index: str) -> None:
    client = opensearchpy.OpenSearch(url, timeout=60)
    client.indices.create(index=index, body={"settings": SHARDS})
    for found in batches:
        lines = [
            b'{"index":{"_id":"%s"}}\n%s\n' % (message.key(), message.value()) for message in newest(found)
        ]
        answer = client.bulk(body=b"".join(lines), index=index)
        if answer["errors"]:
            raise RuntimeError(str(answer["items"][0]))
    client.close()


def delta_merge(batches: Batches, folder: Path) -> None:
    table = deltalake.DeltaTable.create(str(folder), deltalake.Schema.from_arrow(SCHEMA))
    for found in batches:
        merge = table.merge(_arrow(newest(found)), "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()


def parquet_files(batches: Batches, folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, found in enumerate(batches):
        pyarrow.parquet.write_table(_arrow(found), folder / f"{number}.parquet", compression="zstd")


def _arrow(found: Iterable[Any]) -> pa.Table:
    """Messages as a table, by Arrow's own reader of JSON."""
    options = pyarrow.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(
        io.BytesIO(b"\n".join(message.value() for message in found)), parse_options=options
    )
