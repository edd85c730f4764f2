"""Derived streams to the outside, exactly once in effect.

Names are imported when they are asked for: ``import headwater.sink`` needs no driver of any store.
"""

import importlib
from typing import Any

__all__ = [
    "Call",
    "Delivery",
    "Delta",
    "Effect",
    "Kafka",
    "Mail",
    "OpenSearch",
    "Parquet",
    "Postgres",
    "Redis",
    "Reject",
    "Sqlite",
    "SqliteTable",
    "Tantivy",
    "Webhook",
]

_HOMES = {
    "Call": "call",
    "Delivery": "delivery",
    "Delta": "warehouse",
    "Effect": "effect",
    "Kafka": "kafka",
    "Mail": "mail",
    "OpenSearch": "opensearch",
    "Parquet": "parquet",
    "Postgres": "postgres",
    "Redis": "redis",
    "Reject": "effect",
    "Sqlite": "sqlite",
    "SqliteTable": "table",
    "Tantivy": "search",
    "Webhook": "webhook",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.sink' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headwater.sink.{_HOMES[name]}"), name)
