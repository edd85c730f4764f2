"""Derived streams to the outside, exactly once in effect.

A name is imported on first use: ``import headwater.sink`` needs no driver of any store.
"""

import importlib
from typing import Any

__all__ = [
    "Call",
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
    "Tantivy",
    "Webhook",
]

_HOMES = {
    "Call": "effects.call",
    "Delta": "stores.delta",
    "Effect": "effects.effect",
    "Kafka": "stores.kafka",
    "Mail": "effects.mail",
    "OpenSearch": "stores.opensearch",
    "Parquet": "stores.parquet",
    "Postgres": "stores.postgres",
    "Redis": "stores.redis",
    "Reject": "effects.effect",
    "Sqlite": "stores.sqlite",
    "Tantivy": "stores.tantivy",
    "Webhook": "effects.webhook",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.sink' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headwater.sink.{_HOMES[name]}"), name)
